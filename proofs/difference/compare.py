"""Every difference of the law between two revisions. What differs is found by reading both; each difference is then a
unit of work for the solvers, and the units are dealt out to the processors.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from proofs import prover
from proofs.difference import calls, laws, others
from proofs.difference.beside import NEW, OLD, RevisionPair
from proofs.difference.loaded import load
from proofs.difference.row import ADDED, DROPPED, KINDS, LAW, STRENGTHENED, WEAKENED, Row
from proofs.difference.texts import texts
from proofs.registry import STEMS, hints_of

RULE, ALONE, CALL, CALLS_ALONE, REST = "rule", "rules of one", "call", "calls of one", "rest"


@dataclass(frozen=True)
class Unit:
    """One piece of work: what is judged, by stem and name. ``also_in``: see ``Row``."""

    what: str
    stem: str
    name: str = ""
    also_in: tuple[str, ...] = ()


def differences(old: Path, new: Path, tell: Callable[[int, int], None] = lambda *_: None) -> list[Row]:
    """The differences between the specs in two folders, in order of kinds and stems. Both must have been linted.

    ``tell`` gets how many units are done, and how many there are. Raises ``loaded.Unreadable``.
    """
    if is_one_text(old, new):
        return [*others.assumptions(old, new)]
    rows = [*others.words(old, new), *others.assumptions(old, new)]
    revisions = load(old), load(new)
    rows += [*others.stems(*revisions), *others.headlines(*revisions), *others.scope(*revisions)]
    for pair in pairs(old, new):
        rows += [*others.state(pair), *_inherited(pair)]
    units = list(_units(old, new))
    for found in _done(old, new, units, tell):
        rows += found
    order = [*STEMS, *revisions[OLD].stems, *revisions[NEW].stems, ""]
    return sorted(rows, key=lambda row: (order.index(row.stem), KINDS.index(row.kind)))


def _done(old: Path, new: Path, units: list[Unit], tell: Callable[[int, int], None]) -> list[list[Row]]:
    tell(0, len(units))
    done = iter(range(1, len(units) + 1))
    if len(units) < 2:
        return [judged(old, new, unit) for unit in units]
    return prover.on_every_core(judged, [(old, new, unit) for unit in units], lambda _: tell(next(done), len(units)))


def is_one_text(old: Path, new: Path) -> bool:
    """The files of both specs say one thing, whatever their layout is: then nothing has to be loaded."""
    was, now = ({path.name: path.read_text(encoding="utf-8") for path in of.glob("*.py")} for of in (old, new))
    return was.keys() == now.keys() and all(
        was[name] == now[name] or _said(was[name]) == _said(now[name]) for name in was
    )


def _said(text: str) -> str:
    """What a file says, whatever its layout is."""
    return ast.dump(ast.parse(text))


@cache
def _pair(old: Path, new: Path, name: str) -> RevisionPair:
    hints = hints_of(name) if name in STEMS else None
    return RevisionPair(name, (load(old).stems[name], load(new).stems[name]), hints)


def pairs(old: Path, new: Path) -> Iterator[RevisionPair]:
    """The stems that both revisions have."""
    one, other = load(old).stems, load(new).stems
    yield from (
        _pair(old, new, name) for name in [*STEMS, *(n for n in one if n not in STEMS)] if name in one and name in other
    )


def _units(old: Path, new: Path) -> Iterator[Unit]:
    """What may differ. A stem that reads one text in both revisions differs in nothing."""
    every, sources = list(pairs(old, new)), (texts(old), texts(new))
    found = [pair for pair in every if sources[OLD].read_by(pair.name) != sources[NEW].read_by(pair.name)]
    changed = {pair.name: list(calls.differing(pair, sources)) for pair in found}
    through: dict[str, list[str]] = {}
    for stem, differing in changed.items():
        for name, parts in differing:
            for part in parts:
                through.setdefault(part, []).append(f"{stem}.{name}")
    for pair in found:
        yield from (Unit(RULE, pair.name, name) for name in laws.differing(pair, sources))
        if _names_differ(pair, laws.rules_of):
            yield Unit(ALONE, pair.name)
        for name, parts in changed[pair.name]:
            if not parts:
                yield Unit(CALL, pair.name, name, tuple(sorted(through.get(f"{pair.name}.{name}", ()))))
        if _names_differ(pair, lambda stem: stem.transitions):
            yield Unit(CALLS_ALONE, pair.name)
    for module in load(old).drains.keys() & load(new).drains.keys():
        if (of := _of_drain(every, module)) is not None:
            yield Unit(REST, of, module)


def _names_differ(pair: RevisionPair, names: Callable[[Any], Any]) -> bool:
    one, other = (names(stem) for stem in pair.stems)
    return {*one} != {*other}


def _of_drain(found: list[RevisionPair], module: str) -> str | None:
    """The stem of which a module says how it comes to rest: the module is called after it."""
    return max((pair.name for pair in found if module.startswith(pair.name)), key=len, default=None)


def judged(old: Path, new: Path, unit: Unit) -> list[Row]:
    """The rows of a unit of work."""
    pair, sources = _pair(old, new, unit.stem), (texts(old), texts(new))
    if unit.what == RULE:
        return [laws.judged(pair, sources, unit.name)]
    if unit.what == ALONE:
        return laws.alone(pair, sources)
    if unit.what == CALL:
        return calls.judged(pair, sources, unit.name, also_in=unit.also_in)
    if unit.what == CALLS_ALONE:
        return calls.alone(pair, sources)
    drains = load(old).drains[unit.name], load(new).drains[unit.name]
    return list(others.rest(pair, sources, drains))


def _inherited(pair: RevisionPair) -> Iterator[Row]:
    """Laws of a part that hold in the whole in one revision alone, although the part has them in both."""
    was, now = ({name: law for name, law in stem.invariants.items() if law.inherited} for stem in pair.stems)
    for one, other, side, change in ((was, now, OLD, DROPPED), (now, was, NEW, ADDED)):
        for name, law in one.items():
            if name not in other and _in_both(pair, law.inherited, name):
                row = Row(LAW, name, change, pair.name, guarantee=WEAKENED if side == OLD else STRENGTHENED)
                yield replace(row, notes=(f"It is a law of the part {law.inherited}.",))


def _in_both(pair: RevisionPair, part: str, name: str) -> bool:
    own = name.removeprefix(f"{part}.")
    return all(part not in stem.parts or own in stem.parts[part].invariants for stem in pair.stems)

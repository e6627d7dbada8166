"""What else changed between two revisions: stems, states, rest, the theorems in users' words, and what is taken for
granted. Where there is no formula, no solver judges, and the row says so.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from proofs.difference import beside, verdict
from proofs.difference.beside import NEW, OLD, RevisionPair, apart, states_of
from proofs.difference.decide import Entailment, decide
from proofs.difference.laws import ONE_FORMULA, Sources, shown, told
from proofs.difference.loaded import Revision, changed_words
from proofs.difference.row import (
    ADDED,
    ASSUMPTION,
    DROPPED,
    HEADLINE,
    INCOMPARABLE,
    NOT_KNOWN,
    SAME,
    SAME_MEANING,
    STATE,
    STATE_CHANGED,
    STEM,
    STRENGTHENED,
    THEOREM,
    WEAKENED,
    WORD,
    Row,
    Side,
)
from proofs.draining import COMES_TO_REST
from proofs.obligations import law_at
from proofs.symbols import World, lift
from spec.logic import Drain

NO_SOLVER = "There is no formula that a solver could judge: read both sentences."


def words(old: Path, new: Path) -> Iterator[Row]:
    """The words of the spec that differ: both revisions are read with the present ones."""
    for name in changed_words(old, new):
        note = "Both revisions are read with the words of this Slotproof, so that this change is not judged."
        yield Row(WORD, name, INCOMPARABLE, guarantee=NOT_KNOWN, decided=False, notes=(note,))


def stems(old: Revision, new: Revision) -> Iterator[Row]:
    """Stems of one revision alone, with all their laws."""
    for one, other, change, what in ((old, new, DROPPED, WEAKENED), (new, old, ADDED, STRENGTHENED)):
        for name, stem in one.stems.items():
            if name not in other.stems:
                laws = [law for law in stem.invariants.values() if not law.inherited]
                note = f"{len(laws)} laws and theorems, {len(stem.transitions)} transitions."
                yield Row(STEM, name, change, name, guarantee=what, notes=(note,))


def state(pair: RevisionPair) -> Iterator[Row]:
    """The fields of the state that differ, and the parts of the stem."""
    differ = apart(*(stem.state for stem in pair.stems))
    if differ.all:
        notes = [
            f"{what}: {', '.join(names)}."
            for what, names in (
                ("Added", differ.added),
                ("Dropped", differ.dropped),
                ("Of another kind", differ.changed),
            )
            if names
        ]
        name = str(pair.stems[NEW].state.__name__)
        yield Row(STATE, name, STATE_CHANGED, pair.name, guarantee=NOT_KNOWN, notes=tuple(notes), fields=differ.all)
    was, now = ({name: part.name for name, part in stem.parts.items()} for stem in pair.stems)
    if was != now:
        note = f"The parts were {_listed(was)}; they are {_listed(now)}: only their laws hold in the whole."
        yield Row(STATE, f"parts of {pair.name}", STATE_CHANGED, pair.name, guarantee=NOT_KNOWN, notes=(note,))


def _listed(parts: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({stem})" for name, stem in parts.items()) or "none"


# What is said in words.


def headlines(old: Revision, new: Revision) -> Iterator[Row]:
    """The theorems in users' words: the sentence, and the laws that say it exactly."""
    was, now = _headlines(old), _headlines(new)
    for name in {**was, **now}:
        one, other = was.get(name), now.get(name)
        sides = [h and Side(name, h.sentence, ", ".join(map(".".join, h.laws))) for h in (one, other)]
        row = partial(Row, HEADLINE, name, old=sides[OLD], new=sides[NEW])
        if one is None or other is None:
            yield row(change=DROPPED if one else ADDED, guarantee=WEAKENED if one else STRENGTHENED)
        elif (one.sentence, one.laws) != (other.sentence, other.laws):
            lost, gained = {*one.laws} - {*other.laws}, {*other.laws} - {*one.laws}
            notes = [
                f"It {what} {', '.join(sorted(map('.'.join, laws)))}."
                for what, laws in (("no longer names", lost), ("now names", gained))
                if laws
            ]
            change = {(False, False): SAME_MEANING, (True, False): WEAKENED, (False, True): STRENGTHENED}.get(
                (bool(lost), bool(gained)), INCOMPARABLE
            )
            if change == SAME_MEANING:
                notes.append("It names the laws that it named. " + NO_SOLVER)
            yield row(change=change, guarantee=SAME if change == SAME_MEANING else change, notes=tuple(notes))


def _headlines(revision: Revision) -> dict[str, Any]:
    known = vars(revision.modules["theorems"]).get("HEADLINES", ()) if "theorems" in revision.modules else ()
    return {one.name: one for one in known}


def scope(old: Revision, new: Revision) -> Iterator[Row]:
    """The transitions of parts of which the theorems about the whole say nothing."""
    was, now = ({".".join(key): said for key, said in _outside(one).items()} for one in (old, new))
    yield from _sentences(was, now, "The theorems about the whole leave it out.")


def _outside(revision: Revision) -> dict[tuple[str, str], str]:
    known = vars(revision.modules["scope"]).get("OUTSIDE", ()) if "scope" in revision.modules else ()
    return dict(known)


def assumptions(old: Path, new: Path) -> Iterator[Row]:
    """What the proofs take for granted, as the files of the proofs beside each revision say it; nothing where one of
    the revisions has no such files. They are read, and not executed.
    """
    folders = [path.parent / __name__.split(".")[-3] for path in (old, new)]
    if all(folder.is_dir() for folder in folders):
        was, now = (_assumptions(folder) for folder in folders)
        yield from _sentences(was, now, "The proofs take it for granted.")


def _assumptions(folder: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Assumption":
                said = [part.value for part in node.args if isinstance(part, ast.Constant)]
                if len(said) == 2:
                    found[str(said[0])] = " ".join(str(said[1]).split())
    return found


def _sentences(was: Mapping[str, str], now: Mapping[str, str], what: str) -> Iterator[Row]:
    for name in {**was, **now}:
        sides = [Side(name, known[name]) if name in known else None for known in (was, now)]
        row = partial(Row, ASSUMPTION, name, old=sides[OLD], new=sides[NEW])
        if name not in now:
            yield row(
                change=DROPPED,
                guarantee=STRENGTHENED,
                notes=(what.replace("take", "no longer take").replace("leave", "no longer leave"),),
            )
        elif name not in was:
            yield row(change=ADDED, guarantee=WEAKENED, notes=(what,))
        elif was[name] != now[name]:
            yield row(change=INCOMPARABLE, guarantee=NOT_KNOWN, decided=False, notes=(what, NO_SOLVER))


# Rest.


def rest(pair: RevisionPair, sources: Sources, drains: tuple[Drain, Drain]) -> Iterator[Row]:
    """What is said of rest: the states at rest, what the sizes must satisfy, and the calls that lead there."""
    one, other = drains
    calls = [[descent.name for descent in drain.descents] for drain in drains]
    notes = (
        []
        if calls[OLD] == calls[NEW]
        else [f"The calls were {', '.join(calls[OLD])}; they are {', '.join(calls[NEW])}."]
    )
    sides = [Side(COMES_TO_REST, d.sentence, t.formula(d.rest)) for d, t in zip(drains, sources, strict=True)]
    row = Row(THEOREM, COMES_TO_REST, SAME_MEANING, pair.name, old=sides[OLD], new=sides[NEW], notes=tuple(notes))
    judged, asks = _weighed(pair, row, one.rest, other.rest), other.given.__name__
    if judged is not None or one.sentence != other.sentence:
        yield judged or replace(row, notes=(*notes, ONE_FORMULA))
    sides = [Side(d.given.__name__, _said(d.given), t.formula(d.given)) for d, t in zip(drains, sources, strict=True)]
    given = Row(ASSUMPTION, asks, SAME_MEANING, pair.name, old=sides[OLD], new=sides[NEW])
    judged = _weighed(pair, given, one.given, other.given, asked=True)
    if judged is not None or sides[OLD].sentence != sides[NEW].sentence:
        yield judged or replace(given, notes=(ONE_FORMULA,))


def _said(function: Any) -> str:
    return " ".join((function.__doc__ or "").split())


def _weighed(pair: RevisionPair, row: Row, one: Any, other: Any, asked: bool = False) -> Row | None:
    """The row of two functions of a state; ``None`` where both are one formula. ``asked``: an assumption."""
    world = World()
    states = states_of(world, pair)
    said = beside.reading(world, lambda: one(states[OLD])), beside.reading(world, lambda: other(states[NEW]))
    if beside.is_one_formula(*said):
        return None
    if fields := apart(*(stem.state for stem in pair.stems)).read_by(said[OLD].symbols | said[NEW].symbols):
        return replace(row, change=STATE_CHANGED, guarantee=NOT_KNOWN, fields=tuple(fields))
    nothing_new = decide(partial(_implies, pair=pair, by=OLD, premise=one, goal=other), pair)
    still_said = decide(partial(_implies, pair=pair, by=NEW, premise=other, goal=one), pair)
    of = verdict.of_law(nothing_new.answer, still_said.answer)
    if asked:
        of = verdict.of_asked(nothing_new.answer, still_said.answer)
    return replace(
        row,
        change=of.change,
        guarantee=of.guarantee,
        decided=of.decided,
        notes=(*row.notes, *told(nothing_new, still_said)),
        examples=tuple(shown([nothing_new, still_said], "A state")),
    )


def _implies(world: World, pair: RevisionPair, by: int, premise: Any, goal: Any) -> Entailment:
    states, stem = states_of(world, pair), pair.stems[by]
    laws = [law for law in stem.invariants.values() if not law.theorem]
    claimed = lift(goal(states[1 - by]))

    def few() -> list[Any]:
        return [lift(premise(states[by]))]

    def every() -> list[Any]:
        kept = [law.current() if law.inherited and not world.small else law for law in laws]
        return [*few(), *(fact for law in kept for fact in law_at(world, law, states[by], []))]

    def confirmed(values: Mapping[str, Any]) -> bool:
        held = values["state"]
        return all(law.of(held) for law in laws) and bool(premise(held)) and not goal(values["other"])

    return Entailment((few, every), claimed, {"state": states[by]}, confirmed, {"other": states[1 - by]})

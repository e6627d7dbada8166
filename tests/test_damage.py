"""Random damage to what an engine shows: one value of a snapshot is changed, and the judgement finds it, unless nobody
can see it. What is let through is let through by every law at every judgement too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from random import Random
from typing import Any, NamedTuple

import pytest
from driven import SOAK, sampled

from benchmarks import runs
from conformance.driver import lockstep
from conformance.driver.lockstep import Finding, LockStep
from conformance.driver.trace import Trace
from conformance.engines import registry
from conformance.engines.ours import MAKERS

OURS = registry.load("ours")
_STATES = ("", ".next", ".slots.*")
_ROWS = ("lengths.protected", "slots.*", "slots.shorter")  # within a page
DAMAGES = 120 if SOAK else 50  # for each stem
# What nobody reads, so that a change of it is let through.
UNREAD = {
    # The mapping of a slot that no row uses, as that of the padding page; the last slot is rarely used.
    *(f"{pools}mapping.{what}" for pools in ("", "pools.", "rows.pools.") for what in ("*", "shorter")),
    # The engine's own number of a node, where nothing else names it, and the free lists of a cache's tree: the pools'
    # lists are read.
    *("nodes.*.id", "tree.nodes.*.id", "holds.*.node", "holds.*.top"),
    *(f"tree.free.{side}{what}" for side in ("full", "swa", "mamba") for what in (".*", ".shorter")),
    # A cursor within the tree's part says nothing, as long as it stays there.
    *(f"{rows}{who}.*.lengths.cursor" for rows in ("", "rows.") for who in ("requests", "sessions")),
    # Where nothing has left the window of every layer there is no gap (tests/test_all_sliding.py damages one).
    *(f"{rows}{who}.*.gap" for rows in ("", "rows.") for who in ("requests", "sessions")),
    # The records of requests that are gone, of sessions that have nothing, and which track is next where there is none.
    *(f"{states}{who}.*{what}" for states in ("", "states.") for who in ("requests", "sessions") for what in _STATES),
    *("rows.*", "states.rows.*"),
}
# Kinds that nobody reads in one state and everybody in another: slots that are used, requests that are there.
READ_WHERE_USED = {
    *(f"{pools}mapping.*" for pools in ("", "pools.", "rows.pools.")),
    *(f"{states}{what}" for states in ("", "states.") for what in ("requests.*", "requests.*.slots.*", "rows.*")),
    *(f"{states}sessions.*.slots.*" for states in ("", "states.")),
}


class Damage(NamedTuple):
    """A place in a snapshot, and what stands there now."""

    path: tuple[Any, ...]
    value: Any

    @property
    def kind(self) -> str:
        """The place without numbers, keys and texts: ``full.free.*``."""
        return ".".join(str(p) if isinstance(p, str) else "*" for p in self.path)


def places(shown: Any, path: tuple[Any, ...] = ()) -> Iterator[Damage]:
    """Each value of a snapshot, changed by one; each list without its last entry; each mapping of numbers without a
    key. The root of a tree has no slots and nobody counts its locks; the components of a tree are no numbers. A set of
    names says how an engine works (``MambaSlotsSnapshot.at_once``), and not what it holds.
    """
    if isinstance(shown, bool):
        yield Damage(path, not shown)
    elif isinstance(shown, int):
        yield Damage(path, shown + 1)
        if shown:
            yield Damage(path, shown - 1)
    elif isinstance(shown, Mapping):
        for key, value in shown.items():
            if not isinstance(key, str):
                yield Damage((*path, key), None)
            yield from places(value, (*path, key))
    elif isinstance(shown, (list, tuple)) and not hasattr(shown, "_fields"):
        if isinstance(shown, list) and len(shown) > (path[-1:] == ("nodes",)):
            yield Damage((*path, "shorter"), shown[:-1])
        for number, value in enumerate(shown):
            if path[-1:] == ("nodes",) and number == 0:
                continue
            yield from places(value, (*path, number))
    elif shown is not None and not isinstance(shown, (str, frozenset)):
        for name in names(shown):
            yield from places(getattr(shown, name), (*path, name))


def names(shown: Any) -> list[str]:
    """The fields of a snapshot or of a part of it."""
    return [f.name for f in fields(shown)] if is_dataclass(shown) else list(shown._fields)


def damaged(shown: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The snapshot with the value at the place; ``None`` takes a key out of a mapping."""
    if not path:
        return value
    first, rest = path[0], path[1:]
    if first == "shorter":
        return value
    if isinstance(shown, Mapping):
        if not rest and value is None:
            return {key: known for key, known in shown.items() if key != first}
        return {**shown, first: damaged(shown[first], rest, value)}
    if isinstance(shown, list):
        return [*shown[:first], damaged(shown[first], rest, value), *shown[first + 1 :]]
    if hasattr(shown, "_fields"):
        return shown._replace(**{first: damaged(getattr(shown, first), rest, value)})
    if isinstance(shown, tuple):
        return (*shown[:first], damaged(shown[first], rest, value), *shown[first + 1 :])
    return replace(shown, **{first: damaged(getattr(shown, first), rest, value)})


def after(trace: Trace) -> LockStep:
    """The run after its operations."""
    lock = runs.begin(trace.stem, OURS, trace)
    for step in trace.steps:
        lock.do(**step)
    return lock


def shown_by(lock: LockStep) -> Any:
    """The engine's snapshot."""
    engine: Any = lock.run
    return engine.engine.cache_snapshot() if lock.law.stem.name == "cache" else engine.engine.snapshot()


def show(lock: LockStep, shown: Any) -> None:
    """The run reads this snapshot next."""
    run: Any = lock.run
    name = "cache_snapshot" if lock.law.stem.name == "cache" else "snapshot"
    setattr(run.engine, name, lambda: shown)
    lock.run.seen = lock.run.snapshot()


def outcome(trace: Trace, damage: Damage, often: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the judgement of the damaged snapshot says; empty for nothing."""
    monkeypatch.setattr(lockstep, "OFTEN", often)
    lock = after(trace)
    lock.judged = 0
    try:
        show(lock, damaged(shown_by(lock), damage.path, damage.value))
        lock.judge("damage")
    except Finding as finding:
        return f"{finding.law}: {finding.detail}"
    return ""


def survey(
    stem: str, monkeypatch: pytest.MonkeyPatch, seed: int = 1, count: int = DAMAGES, only: str = ""
) -> Iterator[tuple[str, str, str]]:
    """For random damages their kind, and what is said by default and with every law at every judgement. ``only``: this
    kind of damage alone, where a run shows such a place.
    """
    random, often = Random(seed), lockstep.OFTEN
    drawn = [trace for trace in runs.draw(stem, OURS, 150) if trace.steps]
    for _ in range(count):
        trace = random.choice(drawn)
        cut = Trace(stem, trace.config, trace.steps[: random.randint(1, min(12, len(trace.steps)))])
        lock = after(cut)
        kinds: dict[str, list[Damage]] = {}
        for damage in places(shown_by(lock)):
            kinds.setdefault(damage.kind, []).append(damage)
        if only and only not in kinds:
            continue
        damage = random.choice(kinds[only or random.choice(sorted(kinds))])
        yield damage.kind, outcome(cut, damage, often, monkeypatch), outcome(cut, damage, 1, monkeypatch)


@pytest.mark.parametrize("stem", sampled(MAKERS, 2))  # host_tier has no implementation of ours
def test_damage_is_found_and_no_law_that_was_not_evaluated_would_have_found_more(
    stem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = 0
    changed, read = set(), set()
    for kind, default, every in survey(stem, monkeypatch):
        assert default == every, kind
        assert default or kind in UNREAD, f"nobody sees a change of {kind}"
        found += bool(default)
        changed.add(kind)
        read |= {kind} if default else set()
    assert found > DAMAGES // 3
    for kind in sorted(changed & READ_WHERE_USED - read):
        assert any(default for _, default, _ in survey(stem, monkeypatch, only=kind)), f"nobody reads {kind}"

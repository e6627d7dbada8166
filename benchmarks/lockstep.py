"""Operations of the lock-step a second, for each stem, and where the time goes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks import runs
from benchmarks.timing import a_second
from conformance.driver.lockstep import LockStep, breaks
from conformance.driver.trace import Trace
from conformance.engines.registry import Loaded

# Where the time of a run goes; ``tables.time_spent`` says what each of them is.
BUILDING, ENGINE, SNAPSHOTS, EXPLAINING = "building", "engine", "snapshots", "explaining"
PROJECTING, LAWS, DIFFERENCES = "projecting", "laws", "differences"
SHARES = (BUILDING, ENGINE, SNAPSHOTS, EXPLAINING, PROJECTING, LAWS, DIFFERENCES)

Prepare = Callable[[LockStep], None]


@dataclass(frozen=True)
class Rate:
    """Operations a second of one stem: as ``slotproof check`` does them, with every law evaluated at every judgement,
    and with no law evaluated. ``shares``: where the time goes in the first case, in percent.
    """

    stem: str
    operations: int
    a_second: float
    every_law: float
    no_laws: float
    shares: dict[str, float]


def measure(stem: str, own: Loaded, operations: int = 1000, passes: int = 3) -> Rate:
    """Draws runs of our implementation once, and times how fast they are replayed."""
    drawn = runs.draw(stem, own, operations)
    kinds: tuple[Prepare, ...] = (as_checked, with_every_law, without_laws)
    rates = [a_second(lambda kind=kind: _replay(stem, own, drawn, kind), passes) for kind in kinds]  # type: ignore[misc]
    checked, every_law, no_laws = rates
    done = sum(len(trace.steps) for trace in drawn)
    return Rate(stem, done, checked, every_law, no_laws, shares(stem, own, drawn))


def as_checked(lock: LockStep) -> None:
    """Nothing is changed."""
    del lock


def with_every_law(lock: LockStep) -> None:
    """Every law is evaluated, though nothing differs from the law's own state."""
    laws = lock.law.stem.invariants.values()
    _replace(lock, "broken", lambda observed, _: [law for law in laws if breaks(law, observed)])


def without_laws(lock: LockStep) -> None:
    """No law is evaluated."""
    _replace(lock, "broken", lambda *_: [])


def _replace(owner: Any, name: str, method: Callable[..., Any]) -> None:
    setattr(owner, name, method)


def _replay(stem: str, own: Loaded, drawn: list[Trace], prepare: Prepare) -> int:
    """Replays the runs; building the engines is a part of it, as it is of a check."""
    for trace in drawn:
        lock = runs.begin(stem, own, trace)
        prepare(lock)
        for step in trace.steps:
            lock.do(**step)
    return sum(len(trace.steps) for trace in drawn)


class Clock:
    """Time by share. A part that is measured inside another one is not counted for that other one."""

    def __init__(self) -> None:
        self.spent = dict.fromkeys(SHARES, 0.0)
        self._inside = [0.0]  # for each part that runs: the time of the parts inside it

    def timed(self, share: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, with its time counted for ``share``."""

        def measured(*arguments: Any, **named: Any) -> Any:
            self._inside.append(0.0)
            start = time.process_time()
            try:
                return call(*arguments, **named)
            finally:
                whole = time.process_time() - start
                self.spent[share] += whole - self._inside.pop()
                self._inside[-1] += whole

        return measured

    def watch(self, lock: LockStep) -> None:
        """Measures the parts of a run. The rest of ``do`` is explaining, the rest of ``judge`` finding differences."""
        parts: tuple[tuple[Any, dict[str, str]], ...] = (
            (lock, {"do": EXPLAINING, "_answer": ENGINE, "judge": DIFFERENCES, "broken": LAWS}),
            (lock.run, {"snapshot": SNAPSHOTS, "follow": EXPLAINING, "project": PROJECTING}),
        )
        for owner, names in parts:
            for name, share in names.items():
                _replace(owner, name, self.timed(share, getattr(owner, name)))


def shares(stem: str, own: Loaded, drawn: list[Trace]) -> dict[str, float]:
    """Where the time of the runs goes, in percent."""
    clock = Clock()
    begin = clock.timed(BUILDING, runs.begin)
    for trace in drawn:
        lock = begin(stem, own, trace)
        clock.watch(lock)
        for step in trace.steps:
            lock.do(**step)
    whole = sum(clock.spent.values())
    return {share: round(100 * spent / whole, 1) for share, spent in clock.spent.items()}

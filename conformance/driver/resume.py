"""Runs that need not begin with their first operation: copies of a run are kept along the way that others share."""

from __future__ import annotations

import time
from collections.abc import Callable

from conformance.driver.copying import Uncopyable, copied
from conformance.driver.lockstep import LockStep
from conformance.driver.protocol import Json
from conformance.driver.trace import Trace


class Resumed:
    """Copies of a run, each after some of the operations of one trace, which ``follow`` names.

    A run that begins with these operations goes on from the last copy that fits, where this takes less time than to do
    the operations again: both are measured. Where a run cannot be copied (``conformance.driver.copying`` says when),
    every run begins with its first operation. What a run shows is equal either way.
    """

    def __init__(self, start: Callable[[Json], LockStep], copies: bool = True) -> None:
        """``start`` makes a fresh run of a configuration. ``copies``: whether copies are made at all."""
        self._start, self._copies = start, copies
        self._trace: Trace | None = None
        self._kept: dict[int, LockStep] = {}  # by the number of operations that were done
        self._copying, self._doing = Mean(), Mean()
        self._since = 0.0

    def follow(self, trace: Trace) -> None:
        """From now on copies are made along this trace; those that have done something else are dropped."""
        same = self._shared(trace)
        self._kept = {count: lock for count, lock in self._kept.items() if count <= same}
        self._trace = trace

    def at(self, trace: Trace) -> LockStep:
        """A run that has done the first operations of the trace, or none: ``trace`` of the run says which."""
        same = self._shared(trace)
        count = max((count for count in self._kept if count <= same), default=0)
        lock = self._copy(self._kept[count]) if count and self._is_worth(count) else self._start(trace.config)
        self._since = time.perf_counter()
        return lock

    def keep(self, lock: LockStep) -> None:
        """To be called after each operation of a run that has done those of its trace and nothing else: keeps a copy of
        it where it is on the way that is followed.
        """
        if not self._copies:
            return
        self._doing.add(time.perf_counter() - self._since)
        count = len(lock.trace.steps)
        if count not in self._kept and self._is_worth(count, copies=2) and self._shared(lock.trace) == count:
            try:
                self._kept[count] = self._copy(lock)
            except Uncopyable:
                self._copies, self._kept = False, {}
        self._since = time.perf_counter()

    def _copy(self, lock: LockStep) -> LockStep:
        begun = time.perf_counter()
        made = copied(lock)
        self._copying.add(time.perf_counter() - begun)
        return made

    def _is_worth(self, count: int, copies: int = 1) -> bool:
        """The copies take less time than so many operations, as far as that was measured. One that is kept is copied
        again when a run goes on from it.
        """
        return count * self._doing.value >= copies * self._copying.value

    def _shared(self, trace: Trace) -> int:
        """With how many operations of the followed trace a trace begins; 0 in another configuration."""
        known = self._trace
        if known is None or known.config != trace.config:
            return 0
        pairs = zip(known.steps, trace.steps, strict=False)
        least = min(len(known.steps), len(trace.steps))
        return next((n for n, (one, other) in enumerate(pairs) if one != other), least)


class Mean:
    """The mean of the numbers that were added; 0 where there is none."""

    def __init__(self) -> None:
        self.sum, self.count = 0.0, 0

    def add(self, number: float) -> None:
        """One more number."""
        self.sum, self.count = self.sum + number, self.count + 1

    @property
    def value(self) -> float:
        """The mean."""
        return self.sum / self.count if self.count else 0.0

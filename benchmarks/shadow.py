"""What the shadow memory costs: runs of a stem with it and without it, in turn in one process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks import runs
from conformance.driver.trace import Trace
from conformance.engines.registry import Loaded

STEMS = ("cache",)
LIMIT = 1.2  # the ratio may be so much


@dataclass(frozen=True)
class Cost:
    """Milliseconds of processor time that an operation takes, with the shadow and without it: the sums over all runs
    of the median of each run. ``ratio``: the first divided by the second.
    """

    stem: str
    operations: int
    with_ms: float
    without_ms: float

    @property
    def ratio(self) -> float:
        """How much longer an operation takes with the shadow."""
        return self.with_ms / self.without_ms

    @property
    def dear(self) -> bool:
        """The shadow costs more than it may."""
        return self.ratio > LIMIT


def measure(stem: str, own: Loaded, operations: int = 1000, passes: int = 5) -> Cost:
    """Draws runs of our implementation once. Then each is replayed in turn with the shadow and without it."""
    drawn = runs.draw(stem, own, operations)
    taken: list[tuple[float, float]] = []
    for trace in drawn:
        pairs = [(_replay(stem, own, trace, as_it_is), _replay(stem, own, trace, without)) for _ in range(passes)]
        slower, faster = zip(*pairs, strict=True)
        taken.append((statistics.median(slower), statistics.median(faster)))
    done = sum(len(trace.steps) for trace in drawn)
    with_s, without_s = (sum(column) for column in zip(*taken, strict=True))
    return Cost(stem, done, 1000 * with_s / done, 1000 * without_s / done)


def _replay(stem: str, own: Loaded, trace: Trace, prepare: Callable[[Any], None]) -> float:
    """Seconds of processor time that the run takes; building the engine is a part of it, as it is of a check."""
    start = time.process_time()
    lock = runs.begin(stem, own, trace)
    prepare(lock.run)
    for step in trace.steps:
        lock.do(**step)
    return time.process_time() - start


def as_it_is(run: Any) -> None:
    """Nothing is changed."""
    del run


def without(run: Any) -> None:
    """Takes the passes out of a run: nothing is written to its shadow, or read from it."""
    run.calls.passes = _NoPasses()


class _NoPasses:
    """Has every method of passes; none does anything."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        del name
        return _nothing


def _nothing(*_: Any) -> None:
    pass

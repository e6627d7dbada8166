"""Times of calls that take microseconds: interleaved repetitions, medians."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch


class Work(Protocol):
    """One call to be timed; what it needs before and leaves behind is not timed."""

    def prepare(self) -> Any: ...
    def call(self, prepared: Any) -> Any: ...
    def undo(self, prepared: Any, result: Any) -> None: ...


class Timing(NamedTuple):
    """The median of each work in microseconds, and how often each was done."""

    medians: list[float]
    repetitions: int


def interleaved(
    works: Sequence[Work], device: torch.device, budget_s: float, least: int = 3, most: int = 300
) -> Timing:
    """Does one work after the other, again and again, so that whatever else the machine does meets all alike.

    Each is done once untimed before it is timed, so that none pays for the caches that the one before it left cold.
    """
    taken: list[list[float]] = [[] for _ in works]
    start = time.perf_counter()
    for repetition in range(most):
        if repetition >= least and time.perf_counter() - start > budget_s:
            break
        for times, work in zip(taken, works, strict=True):
            once(work, device)
            times.append(once(work, device))
    return Timing([statistics.median(times) for times in taken], len(taken[0]))


def once(work: Work, device: torch.device) -> float:
    """One call in microseconds; on CUDA up to the end of what it launched."""
    prepared = work.prepare()
    wait = torch.cuda.synchronize if device.type == "cuda" else _nothing
    wait()
    start = time.perf_counter_ns()
    result = work.call(prepared)
    wait()
    end = time.perf_counter_ns()
    work.undo(prepared, result)
    return (end - start) / 1000


def _nothing() -> None:
    pass


def a_second(does: Callable[[], int], passes: int = 5) -> float:
    """How many of something ``does`` does in a second of one core, the median of passes; it says how many it did."""
    rates = []
    for _ in range(passes):
        start = time.process_time()
        done = does()
        rates.append(done / (time.process_time() - start))
    return statistics.median(rates)

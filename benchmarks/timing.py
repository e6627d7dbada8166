"""How calls are timed that take microseconds: repetitions of all works in turn, medians."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch


class Work(Protocol):
    """One call to time. What it needs (``prepare``) and what it leaves (``undo``) is not timed."""

    def prepare(self) -> Any: ...
    def call(self, prepared: Any) -> Any: ...
    def undo(self, prepared: Any, result: Any) -> None: ...


class Timing(NamedTuple):
    """The median of each work in microseconds, and how many times each was timed."""

    medians: list[float]
    repetitions: int


def interleaved(
    works: Sequence[Work], device: torch.device, budget_s: float, least: int = 3, most: int = 300
) -> Timing:
    """Times the works in turn, again and again, so that other load on the machine slows all of them equally.

    Each is done once untimed before it is timed: the work before it has left the processor's caches cold.
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
    """One call in microseconds; on CUDA until the kernels that it launched have ended."""
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
    """How many things ``does`` does in a second of one core: the median of the passes. It returns how many it did."""
    rates = []
    for _ in range(passes):
        start = time.process_time()
        done = does()
        rates.append(done / (time.process_time() - start))
    return statistics.median(rates)

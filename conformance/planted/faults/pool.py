"""Work on faults in parallel processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any, TypeVar

import torch

from conformance.driver.collector import collect_rarely
from conformance.stems.fault import Fault

WORKERS = 8  # at most, since each of them loads torch
Result = TypeVar("Result")


def on_processes(
    work: Callable[..., Result],
    faults: Sequence[Fault],
    done: Callable[[Fault], None],
    seconds: Mapping[str, float] | None = None,
    **arguments: Any,
) -> list[Result]:
    """The results of ``work`` on each fault, with these arguments, in the order of the faults. ``done`` is called for
    each fault when it ends.

    ``seconds``: how long the work on a fault took at another time. The longest is begun first, so that no process works
    alone at the end; what is not known comes before all others.

    The processes are spawned, since torch's threads do not survive a fork.
    """
    known = seconds or {}
    first = sorted(faults, key=lambda fault: -known.get(fault.name, float("inf")))
    workers = min(WORKERS, os.cpu_count() or 1, len(faults))
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=_begin) as pool:
        futures = {pool.submit(work, fault, **arguments): fault for fault in first}
        for future in as_completed(futures):
            future.result()
            done(futures[future])
    found = {fault.name: future.result() for future, fault in futures.items()}
    return [found[fault.name] for fault in faults]


def _begin() -> None:
    collect_rarely()
    torch.set_num_threads(1)  # the tensors are tiny, and each process has a processor

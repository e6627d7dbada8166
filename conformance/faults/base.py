"""What a fault is, and how it is shown: refuted by the provers, found by the run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from typing import Any

from conformance.check import Result, check
from conformance.machine import CONFORMS, Json
from proofs import counterexample, obligations
from proofs.counterexample import Counterexample
from proofs.explore import Path
from proofs.hints import Transition
from proofs.registry import hints_of

WORKERS = 8  # at most: each of them loads torch


@dataclass(frozen=True)
class Fault:
    """A bug in ``stem``: ``spec`` replaces transitions by name, ``make`` builds the faulty implementation.

    ``search``: fields of ``Hints`` by which a path to the bug is looked for, where the stem's own do not lead there.
    """

    name: str
    stem: str
    sentence: str
    spec: Mapping[str, Transition]
    make: Callable[[Json], Any]
    search: Mapping[str, Any] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Callable[[str], Fault], tuple[str]]:
        """Between processes a fault goes by its name: its functions could not."""
        return _named, (self.name,)


def _named(name: str) -> Fault:
    from conformance.faults import FAULTS

    return FAULTS[name]


@dataclass(frozen=True)
class Shown:
    """How a fault was refuted and found; ``invariant`` is the first law that the faulty spec breaks."""

    fault: Fault
    invariant: str | None
    example: Counterexample | None
    reach: str | None
    path: Path | None
    run: Result
    seconds: float

    @property
    def proof(self) -> str:
        """``refuted`` or ``missed``."""
        return "missed" if self.invariant is None else "refuted"

    @property
    def found(self) -> str:
        """``found`` or ``missed``."""
        return "missed" if self.run.verdict == CONFORMS else "found"

    @property
    def steps(self) -> int:
        """How many steps the shrunk run has."""
        return 0 if self.run.trace is None else len(self.run.trace.steps)


def show(fault: Fault, examples: int = 2000, seed: int | None = None) -> Shown:
    """Refutes the faulty spec and looks for the bug in the faulty implementation."""
    start = time.perf_counter()
    invariant, example = refute(fault)
    reach, path = _reach(fault) if example else (None, None)
    run = check(fault.stem, fault.make, examples=examples, seed=seed)
    return Shown(fault, invariant, example, reach, path, run, round(time.perf_counter() - start, 2))


def show_all(faults: Sequence[Fault], seed: int | None, done: Callable[[Fault], None]) -> list[Shown]:
    """Shows each fault, side by side; ``done`` hears of each as it ends.

    The processes begin afresh, since torch's threads do not survive a fork.
    """
    workers = min(WORKERS, os.cpu_count() or 1, len(faults))
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        futures = {pool.submit(show, fault, seed=seed): fault for fault in faults}
        for future in as_completed(futures):
            future.result()
            done(futures[future])
    return [future.result() for future in futures]


def refute(fault: Fault) -> tuple[str | None, Counterexample | None]:
    """The first law that the faulty spec breaks, and a concrete lawful state from which it does."""
    hints = hints_of(fault.stem)
    for name, transition in fault.spec.items():
        for law in (*hints.stem.invariants, obligations.ATOMIC):
            example = counterexample.find(hints, name, transition, law)
            if example is not None:
                return law, example
    return None, None


def _reach(fault: Fault) -> tuple[str, Path | None]:
    hints = replace(hints_of(fault.stem), **fault.search)
    return counterexample.classify(hints, {**hints.stem.transitions, **fault.spec})

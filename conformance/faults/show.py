"""Shows that a fault is caught: the provers refute the wrong transition, and drawn runs find the faulty
implementation.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context

from conformance.check import Result, Search, check
from conformance.collector import collect_rarely
from conformance.faults.fault import Fault
from conformance.lockstep import ANSWERED, CONFORMS, LATENT, VIOLATION
from proofs import counterexample, obligations
from proofs.counterexample import Counterexample
from proofs.explore import Path
from proofs.registry import hints_of

WORKERS = 8  # at most, since each of them loads torch
SEARCHES, RUNS = 20, 300  # Hypothesis varies the runs that it drew: one long search may stay where no bug is


@dataclass(frozen=True)
class Shown:
    """How a fault was refuted and found.

    ``invariant``: the first law that the wrong transition breaks, ``None`` if none. ``example``: a lawful state from
    which it does. ``reach``, ``path``: whether and how this is reached from the first state. ``run``: what the drawn
    runs found.
    """

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
        """``found`` or ``missed``. An engine that only raises an exception has not shown the bug."""
        broken = self.run.verdict in (VIOLATION, LATENT) and self.run.law != ANSWERED
        return "found" if broken else "missed"

    @property
    def steps(self) -> int:
        """How many operations the shrunk run has; 0 if the fault was not found."""
        return 0 if self.run.trace is None else len(self.run.trace.steps)


def show(fault: Fault, examples: int = RUNS, seed: int | None = None) -> Shown:
    """Refutes the wrong transition, and draws runs on the faulty implementation: ``examples`` runs in each of at most
    ``SEARCHES`` searches, each with a seed of its own.
    """
    start = time.perf_counter()
    seeds = [seed, *((seed or 0) + n for n in range(1, SEARCHES))]
    invariant, example = refute(fault)
    reach, path = _reach(fault) if example else (None, None)
    for search in (Search(examples=examples, seed=s) for s in seeds):
        run = check(fault.stem, fault.make, search)
        if run.verdict != CONFORMS:
            break
    return Shown(fault, invariant, example, reach, path, run, round(time.perf_counter() - start, 2))


def show_all(faults: Sequence[Fault], seed: int | None, done: Callable[[Fault], None]) -> list[Shown]:
    """Shows the faults in parallel processes, and returns the results in order. ``done`` is called for each fault when
    it ends.

    The processes are spawned, since torch's threads do not survive a fork.
    """
    workers = min(WORKERS, os.cpu_count() or 1, len(faults))
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=collect_rarely) as pool:
        futures = {pool.submit(show, fault, seed=seed): fault for fault in faults}
        for future in as_completed(futures):
            future.result()
            done(futures[future])
    return [future.result() for future in futures]


def refute(fault: Fault) -> tuple[str | None, Counterexample | None]:
    """The first law that the wrong transition breaks, and a concrete lawful state from which it does; ``None`` twice
    if none.
    """
    hints = hints_of(fault.stem)
    for name, transition in fault.spec.items():
        changes = [law.name for law in hints.stem.changes.values() if law.binds(name)]
        for law in (*hints.stem.invariants, *changes, obligations.ATOMIC):
            example = counterexample.find(hints, name, transition, law)
            if example is not None:
                return law, example
    return None, None


def _reach(fault: Fault) -> tuple[str, Path | None]:
    hints = replace(hints_of(fault.stem), **fault.search)
    return counterexample.classify(hints, {**hints.stem.transitions, **fault.spec})

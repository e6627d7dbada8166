"""Shows that a fault is found from nothing: the provers refute the wrong transition, and drawn runs, which know nothing
of the fault, find the faulty implementation. ``conformance.planted.faults.catch`` replays the run that was found and
kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from conformance.driver.lockstep import ANSWERED, CONFORMS, LATENT, VIOLATION
from conformance.planted.faults.kept import refuting_law
from conformance.planted.faults.pool import on_processes
from conformance.search.check import Result, Search, check
from conformance.stems.fault import Fault
from proofs import counterexample, obligations
from proofs.counterexample import Counterexample
from proofs.explore import Path
from proofs.registry import hints_of

SEARCHES, RUNS = 20, 300  # Hypothesis varies the runs that it drew: one long search may stay where no bug is


@dataclass(frozen=True)
class Shown:
    """How a fault was refuted and found.

    ``invariant``: a law that the wrong transition breaks, ``None`` if it breaks none. ``example``: a lawful state from
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
        if run.verdict != CONFORMS and run.law != ANSWERED:  # what only raises an exception has not shown the bug
            break
    return Shown(fault, invariant, example, reach, path, run, round(time.perf_counter() - start, 2))


def show_all(
    faults: Sequence[Fault], seed: int | None, done: Callable[[Fault], None], seconds: Mapping[str, float] | None = None
) -> list[Shown]:
    """Shows the faults in parallel processes, and returns the results in order. ``done``, ``seconds``: see
    ``on_processes``.
    """
    return on_processes(show, faults, done, seconds, seed=seed)


def refute(fault: Fault) -> tuple[str | None, Counterexample | None]:
    """A law that the wrong transition breaks, and a concrete lawful state from which it does; ``None`` twice if none.

    The law of the fault's kept run is asked first, then all laws in order: to show that a law stays costs much more.
    """
    hints, kept = hints_of(fault.stem), refuting_law(fault)
    for name, transition in fault.spec.items():
        changes = [law.name for law in hints.stem.changes.values() if law.binds(name)]
        laws = (*hints.stem.invariants, *changes, obligations.ATOMIC)
        for law in sorted(laws, key=lambda law: law != kept):
            example = counterexample.find(hints, name, transition, law)
            if example is not None:
                return law, example
    return None, None


def _reach(fault: Fault) -> tuple[str, Path | None]:
    hints = replace(hints_of(fault.stem), **fault.search)
    return counterexample.classify(hints, {**hints.stem.transitions, **fault.spec})

"""Shows in seconds that a fault is caught: a proof refutes the wrong transition by the kept law, and the kept run shows
the bug on the faulty implementation and nothing on the right one.

That the bug is found without a kept run is what ``conformance.planted.faults.show`` shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from conformance.driver.lockstep import CONFORMS, WORDS_OF_KIND
from conformance.planted.faults.kept import KeptRun, kept_run
from conformance.planted.faults.pool import on_processes
from conformance.stems.fault import Fault
from conformance.traces.outcome import Break, Outcome, outcome
from proofs import counterexample
from proofs.registry import hints_of


@dataclass(frozen=True)
class Caught:
    """How a fault was caught.

    ``refuted``: a small lawful state was found from which the wrong transition breaks the law ``kept.refuted_by``.
    ``missing``: why the kept run does not show the bug, empty if it does.
    """

    fault: Fault
    kept: KeptRun
    refuted: bool
    missing: str
    seconds: float

    @property
    def proof(self) -> str:
        """``refuted`` or ``missed``."""
        return "refuted" if self.refuted else "missed"

    @property
    def found(self) -> str:
        """``found`` or ``missed``: whether the kept run shows the bug."""
        return "missed" if self.missing else "found"


def catch(fault: Fault, kept: KeptRun | None = None) -> Caught:
    """Refutes the wrong transition by the kept law, and replays the kept run. ``kept``: by default the fault's own.

    Raises ``UsageError`` where the fault has no kept run that can be used.
    """
    start = time.perf_counter()
    kept = kept or kept_run(fault)
    refuted, missing = is_refuted(fault, kept.refuted_by), why_not_shown(fault, kept)
    return Caught(fault, kept, refuted, missing, round(time.perf_counter() - start, 2))


def catch_all(faults: Sequence[Fault], done: Callable[[Fault], None]) -> list[Caught]:
    """Catches the faults in parallel processes, and returns the results in order. ``done``: see ``on_processes``."""
    return on_processes(catch, faults, done)


def is_refuted(fault: Fault, law: str) -> bool:
    """A wrong transition of the fault breaks the law from a small lawful state; the finite reading confirms it."""
    hints = hints_of(fault.stem)
    change = hints.stem.changes.get(law)
    return any(
        counterexample.find(hints, name, transition, law, smallest=False) is not None
        for name, transition in fault.spec.items()
        if change is None or change.binds(name)
    )


def why_not_shown(fault: Fault, kept: KeptRun) -> str:
    """Why the kept run does not show the bug, in words; empty if it does.

    It shows the bug if the faulty implementation breaks the kept law in the kept way in the last operation and nothing
    before, and if our implementation without the fault does every operation and breaks nothing.
    """
    return _not_shown(kept, outcome(kept.trace, fault.make)) or _not_right(outcome(kept.trace, fault.right))


def _not_shown(kept: KeptRun, faulty: Outcome) -> str:
    last = len(kept.trace.steps)
    first = next(iter(faulty.breaks), None)
    if first is None:
        return f"the planted bug breaks no law in its kept run{_stopped(faulty)}"
    if first.step != last:
        return f"the planted bug breaks {_what(first)} in operation {first.step} of {last}, not in the last one"
    if (first.law, first.kind) != (kept.law, kept.kind):
        return f"the planted bug breaks {_what(first)}, and its run is kept for {_named(kept.law, kept.kind)}"
    return ""


def _not_right(right: Outcome) -> str:
    if right.breaks:
        first = right.breaks[0]
        return f"our implementation without the bug breaks {_what(first)} too, in operation {first.step}"
    return "" if right.verdict == CONFORMS else f"our implementation without the bug cannot do the run{_stopped(right)}"


def _stopped(seen: Outcome) -> str:
    return f": operation {seen.stopped_at}: {seen.stopped}" if seen.stopped else ""


def _what(found: Break) -> str:
    return _named(found.law, found.kind)


def _named(law: str, kind: str) -> str:
    return WORDS_OF_KIND[kind].format(law)

"""What the report says of proofs and of known bugs, as plain data: the verdicts on all obligations, the law of each
stem with its witnesses and mutants, and how each known bug is refuted and shown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from conformance.driver.protocol import Json
from conformance.planted.faults.kept import kept_run
from conformance.planted.faults.known_bugs import FAULTS
from conformance.planted.faults.pool import on_processes
from conformance.planted.faults.show import refute
from conformance.stems.fault import Fault
from conformance.telling.picture import frame
from conformance.telling.tell import tell
from conformance.traces.outcome import outcome
from proofs import draining, prover
from proofs.hints import Hints
from proofs.obligations import CALLS
from proofs.prover import Verdict
from proofs.registry import STEMS, hints_of
from slotproof.console.remembering import remembered
from slotproof.pages.law_pages import of_each_call, own_laws, parts_of
from slotproof.pages.marking import marked
from slotproof.proving.proving import memory_of, mutant_of, vacuity_of
from spec.logic import Stem

PARTS, CALLED = "laws_of_its_parts", "promises_of_its_calls"  # columns that stand for many obligations
__all__ = ["FAULTS", "STEMS", "Done", "bugs", "law_of_each_stem", "proved", "prover", "shown_bug", "stem_of"]
Done = Callable[[], None]


def proved(done: Done) -> list[Verdict]:
    """The verdicts on all obligations. What was proved before is remembered, obligation by obligation, as ``slotproof
    prove`` does it. ``done`` is called for each unit of ``prover.tasks``.
    """
    return prover.prove(STEMS, lambda _: done(), memory=memory_of(fresh=False))


def bugs(done: Done) -> list[Json]:
    """The known bugs, each as the report shows it. ``done`` is called for each."""
    found: list[Json] = remembered(
        "report/known-bugs",
        list(FAULTS),
        lambda: on_processes(shown_bug, [*FAULTS.values()], lambda _: done()),
        lambda _: [],
    )
    return found


def shown_bug(fault: Fault) -> Json:
    """A known bug as plain data: the law that a proof says is broken with a picture of it, and its kept run told step
    by step on our implementation with the bug.
    """
    law, example = refute(fault)
    run = kept_run(fault)
    before, after = (frame(example.before)["panels"], frame(example.after)["panels"]) if example else ([], [])
    shows = [found for found in outcome(run.trace, fault.make).breaks if found.law == run.law]
    return {
        "name": fault.name,
        "sentence": fault.sentence,
        "proof": "missed" if law is None else "refuted",
        "invariant": law,
        "example": str(example) if example else "",
        "picture": marked(after, before, []),
        "found": "found" if shows else "missed",
        "law": run.law,
        "kind": run.kind,
        "step": len(run.trace.steps),
        "trace": run.trace.as_json(),
        "story": [asdict(step) for step in tell(run.trace, fault.make)],
    }


def law_of_each_stem(done: Done) -> dict[str, Json]:
    """The witnesses and the mutants of each stem, by its name. ``done`` is called for each stem."""
    rows = prover.on_every_core(
        witnesses_and_mutants, [(name,) for name in STEMS], lambda _: done(), weight=lambda unit: prover.weight(unit[0])
    )
    return dict(zip(STEMS, rows, strict=True))


def witnesses_and_mutants(name: str) -> Json:
    """The witnesses of a stem and its mutants; remembered while nothing of ours has changed."""

    def make() -> Json:
        killed = [mutant_of(name, number) for number in range(len(hints_of(name).mutants))]
        return {"witnesses": vacuity_of(name), "mutants": killed}

    found: Json = remembered(f"report/laws-{name}", name, make, lambda _: [])
    return found


def stem_of(name: str, verdicts: list[Verdict], shown: Json) -> dict[str, Any]:
    """What the report shows of a stem. ``shown``: see ``witnesses_and_mutants``."""
    hints = hints_of(name)
    matrix: dict[str, dict[str, list[Verdict]]] = defaultdict(lambda: defaultdict(list))
    for verdict in verdicts:
        if verdict.stem == name:
            matrix[verdict.transition][_column(hints.stem, verdict.invariant)].append(verdict)
    own = [law.name for law in own_laws(hints.stem)]
    return {
        "name": name,
        "spec": hints.stem,
        "parts": parts_of(hints.stem),
        "laws": [*own, *hints.stem.changes, *of_each_call(hints.stem), *_shared_columns(hints)],
        "matrix": matrix,
        **shown,
    }


def _shared_columns(hints: Hints) -> list[str]:
    """The columns that stand for many obligations."""
    return [*(draining.sentences(hints.drain) if hints.drain else ())] + [PARTS, CALLED] * bool(hints.stem.parts)


def _column(stem: Stem, obligation: str) -> str:
    """The column of an obligation: all that are inherited share one, and so do all promises of calls."""
    if obligation.startswith(CALLS):
        return CALLED
    if (drained := draining.law_of(obligation)) is not None:
        return drained
    law = stem.invariants.get(obligation)
    return PARTS if law is not None and law.inherited else obligation

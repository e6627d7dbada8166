"""``slotproof report``: the reviewer's page, one HTML file with the law, the matrix, and every counterexample drawn."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

from conformance import kept
from conformance.faults import FAULTS
from conformance.faults.base import Shown, show_all
from conformance.picture import frame
from conformance.story import as_test, tell
from conformance.subjects.loading import RELEASES
from proofs import prover
from proofs.obligations import ATOMIC, CALLS
from proofs.prover import Verdict
from proofs.registry import STEMS, hints_of
from slotproof.documents import FINDINGS, environment, own_laws, parts_of, said_by
from slotproof.proving import assumptions, mutants, vacuity
from slotproof.screen import console, progress
from spec.logic import Stem

PARTS, CALLED = "laws_of_its_parts", "promises_of_its_calls"


def run(folder: Path) -> int:
    """Proves, runs the known bugs, and writes ``index.html``; exit code 0 once it is written."""
    folder.mkdir(parents=True, exist_ok=True)
    with progress() as bar:
        proving = bar.add_task("proving", total=len(prover.tasks(STEMS)))
        verdicts = prover.prove(STEMS, lambda _: bar.advance(proving))
        known = bar.add_task("known bugs", total=len(FAULTS))
        faults = [_fault(shown) for shown in show_all([*FAULTS.values()], None, lambda _: bar.advance(known))]
    (folder / "index.html").write_text(_page(verdicts, faults))
    console.print(f"written: {folder / 'index.html'}")
    return 0


def _page(verdicts: list[Verdict], faults: list[dict[str, Any]]) -> str:
    template = environment(html=True).get_template("report.html.j2")
    return template.render(
        stems=[_stem(name, verdicts) for name in STEMS],
        proved=sum(v.proved for v in verdicts),
        total=len(verdicts),
        assumptions=assumptions(STEMS),
        faults=faults,
        traces=_traces(),
        releases=RELEASES,
        test=as_test,
        step=said_by,
    )


def _stem(name: str, verdicts: list[Verdict]) -> dict[str, Any]:
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
        "laws": [*own, ATOMIC, *((PARTS, CALLED) if hints.stem.parts else ())],
        "matrix": matrix,
        "witnesses": vacuity(hints),
        "mutants": mutants(hints),
    }


def _column(stem: Stem, obligation: str) -> str:
    """Where an obligation stands in the matrix: what is inherited or called is not listed law by law."""
    if obligation.startswith(CALLS):
        return CALLED
    law = stem.invariants.get(obligation)
    return PARTS if law is not None and law.inherited else obligation


def _fault(shown: Shown) -> dict[str, Any]:
    example, trace = shown.example, shown.run.trace
    return {
        "shown": shown,
        "before": frame(example.before) if example else None,
        "after": frame(example.after) if example else None,
        "steps": [asdict(step) for step in tell(trace, shown.fault.make)] if trace else [],
    }


def _traces() -> list[tuple[kept.Kept, list[dict[str, Any]]]]:
    found = json.loads(FINDINGS.read_text())["traces"] if FINDINGS.exists() else {}
    return [(kept.load(name), [{"story": None, **row} for row in rows]) for name, rows in found.items()]

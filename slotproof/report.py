"""``slotproof report``: the reviewer's page, one HTML file with the law, the matrix, and every counterexample drawn."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

from conformance import kept
from conformance.faults import FAULTS
from conformance.faults.base import Shown, show
from conformance.picture import frame
from conformance.story import as_test, tell
from conformance.subjects.loading import RELEASES
from proofs import prover
from proofs.obligations import ATOMIC
from proofs.prover import Verdict
from proofs.registry import STEMS, hints_of
from slotproof.documents import FINDINGS, environment
from slotproof.proving import assumptions, mutants, vacuity
from slotproof.screen import console, progress


def run(folder: Path) -> int:
    """Proves, runs the known bugs, and writes ``index.html``; exit code 0 once it is written."""
    folder.mkdir(parents=True, exist_ok=True)
    with progress() as bar:
        proving = bar.add_task("proving", total=len(prover.tasks(STEMS)))
        verdicts = prover.prove(STEMS, lambda _: bar.advance(proving))
        known = bar.add_task("known bugs", total=len(FAULTS))
        faults = [_fault(show(fault), lambda: bar.advance(known)) for fault in FAULTS.values()]
    page = (
        environment(html=True)
        .get_template("report.html.j2")
        .render(
            stems=[_stem(name, verdicts) for name in STEMS],
            proved=sum(v.proved for v in verdicts),
            total=len(verdicts),
            assumptions=assumptions(STEMS),
            faults=faults,
            traces=_traces(),
            releases=RELEASES,
            test=as_test,
        )
    )
    (folder / "index.html").write_text(page)
    console.print(f"written: {folder / 'index.html'}")
    return 0


def _stem(name: str, verdicts: list[Verdict]) -> dict[str, Any]:
    hints = hints_of(name)
    matrix: dict[str, dict[str, Verdict]] = defaultdict(dict)
    for verdict in verdicts:
        if verdict.stem == name:
            matrix[verdict.transition][verdict.invariant] = verdict
    return {
        "name": name,
        "spec": hints.stem,
        "laws": [*hints.stem.invariants, ATOMIC],
        "matrix": matrix,
        "witnesses": vacuity(hints),
        "mutants": mutants(hints),
    }


def _fault(shown: Shown, done: Any) -> dict[str, Any]:
    done()
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

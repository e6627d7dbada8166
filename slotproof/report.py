"""``slotproof report``: one HTML page with the proofs, the law, and every counterexample and finding drawn."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

from conformance.engines.protocol import EngineError, Json
from conformance.faults import FAULTS
from conformance.faults.show import Shown, show_all
from conformance.lockstep import LATENT, VIOLATION
from conformance.replay import rows_elsewhere
from conformance.story.pasted import as_test
from conformance.story.picture import frame
from conformance.story.tell import tell
from proofs import prover
from proofs.draining import COMES_TO_REST, DRAIN
from proofs.hints import Hints
from proofs.obligations import CALLS
from proofs.prover import Verdict
from proofs.registry import STEMS, hints_of
from slotproof import documents
from slotproof.codes import HOLDS
from slotproof.documents import FINDINGS, Findings, Rows, environment, of_each_call, own_laws, parts_of, said_by
from slotproof.headlines import assumptions
from slotproof.output import write_text
from slotproof.proving import mutants, vacuity
from slotproof.screen import progress, say
from spec.logic import Stem

PARTS, CALLED = "laws_of_its_parts", "promises_of_its_calls"  # columns that stand for many obligations
NO_FINDINGS = "The page has no findings in engines: docs/findings.json is missing, `slotproof engines` writes it."
Release = tuple[str, str]  # an engine and its release


def run(folder: Path) -> int:
    """Proves, plants the known bugs, replays the findings, and writes ``index.html``; exit code 0."""
    findings = documents.with_rows(documents.kept_findings()) if FINDINGS.exists() else []
    with progress() as bar:
        proving = bar.add_task("proving", total=len(prover.tasks(STEMS)))
        verdicts = prover.prove(STEMS, lambda _: bar.advance(proving))
        known = bar.add_task("known bugs", total=len(FAULTS))
        faults = [_fault(shown) for shown in show_all([*FAULTS.values()], None, lambda _: bar.advance(known))]
        wanted = _by_release(findings)
        replaying = bar.add_task("findings", total=len(wanted))
        stories: dict[str, Json] = {}
        for release, names in wanted.items():
            stories |= stories_of(release, names)
            bar.advance(replaying)
    page = _page(verdicts, faults, findings, stories)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "index.html", page)
    if not findings:
        say(NO_FINDINGS)
    say(f"written: {folder / 'index.html'}")
    return HOLDS


def _page(verdicts: list[Verdict], faults: list[Json], findings: Findings, stories: dict[str, Json]) -> str:
    template = environment(html=True).get_template("report.html.j2")
    return template.render(
        stems=[_stem(name, verdicts) for name in STEMS],
        proved=sum(v.proved for v in verdicts),
        total=len(verdicts),
        assumptions=assumptions(STEMS),
        faults=faults,
        traces=findings,
        no_findings=NO_FINDINGS,
        stories=stories,
        engines=documents.labels(findings),
        test=as_test,
        step=said_by,
    )


def worst(rows: Rows) -> Json | None:
    """The first violation of a release, else its first latent finding."""
    released = [row for row in rows if row["release"]]
    return next((row for verdict in (VIOLATION, LATENT) for row in released if row["verdict"] == verdict), None)


def _by_release(findings: Findings) -> dict[Release, list[str]]:
    """The traces whose worst row is on each release."""
    names: dict[Release, list[str]] = defaultdict(list)
    for kept, rows in findings:
        row = worst(rows)
        if row is not None:
            names[row["subject"], row["release"]].append(kept.name)
    return names


def stories_of(release: Release, names: list[str]) -> dict[str, Json]:
    """The traces told step by step on a release: rows with a ``story``, or with ``missing``, why there is none."""
    try:
        rows = rows_elsewhere(names, *release, told=True)
    except EngineError as error:
        rows = [{"missing": f"{' '.join(release)} could not be loaded here: {error}"} for _ in names]
    nothing = {"story": [], "missing": "", "engine": release[0], "release": release[1]}
    return {name: {**nothing, **row} for name, row in zip(names, rows, strict=True)}


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
        "laws": [*own, *hints.stem.changes, *of_each_call(hints.stem), *_shared_columns(hints)],
        "matrix": matrix,
        "witnesses": vacuity(hints),
        "mutants": mutants(hints),
    }


def _shared_columns(hints: Hints) -> list[str]:
    """The columns that stand for many obligations."""
    return [COMES_TO_REST] * (hints.drain is not None) + [PARTS, CALLED] * bool(hints.stem.parts)


def _column(stem: Stem, obligation: str) -> str:
    """The column of an obligation: all that are inherited share one, and so do all promises of calls."""
    if obligation.startswith(CALLS):
        return CALLED
    if obligation.startswith(DRAIN):
        return COMES_TO_REST
    law = stem.invariants.get(obligation)
    return PARTS if law is not None and law.inherited else obligation


def _fault(shown: Shown) -> Json:
    example, trace = shown.example, shown.run.trace
    return {
        "shown": shown,
        "before": frame(example.before) if example else None,
        "after": frame(example.after) if example else None,
        "steps": [asdict(step) for step in tell(trace, shown.fault.make)] if trace else [],
    }

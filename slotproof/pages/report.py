"""``slotproof report``: pages on which every finding can be stepped through, with the theorems, the law and the proofs.

``index.html`` says first what is wrong, then what is proved, then everything else. Each finding and each known bug has
a page of its own, see ``slotproof.pages.explorer``.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from conformance.driver import trace
from conformance.driver.protocol import EngineError, Json
from conformance.engines import named, registry
from conformance.planted.faults.known_bugs import FAULTS
from conformance.planted.faults.show import Shown, show_all
from conformance.search.replay import rows_elsewhere
from conformance.telling.pasted import as_test
from conformance.telling.picture import frame
from conformance.telling.tell import tell
from conformance.traces import trace_files
from conformance.traces.harm_found import rank_of
from conformance.traces.trace_files import Kept
from proofs import prover
from proofs.draining import COMES_TO_REST, DRAIN
from proofs.hints import Hints
from proofs.obligations import CALLS
from proofs.prover import Verdict
from proofs.registry import STEMS, hints_of
from slotproof.console.codes import HOLDS
from slotproof.console.output import write_text
from slotproof.console.remembering import remembered
from slotproof.console.screen import progress, say
from slotproof.pages import documents, explorer
from slotproof.pages.documents import FINDINGS, Findings, Rows, environment
from slotproof.pages.finding_pages import BROKEN, KeptFinding, of_engine
from slotproof.pages.law_pages import of_each_call, own_laws, parts_of, said_by
from slotproof.pages.marking import marked
from slotproof.pages.packing import packed
from slotproof.proving.headlines import assumptions, theorems
from slotproof.proving.proving import mutants, vacuity
from spec.logic import Stem

PARTS, CALLED = "laws_of_its_parts", "promises_of_its_calls"  # columns that stand for many obligations
NO_FINDINGS = "The page has no findings in engines: docs/findings.json is missing, `slotproof engines` writes it."
LIMIT = 180.0  # seconds in which an engine that is named by its place must have replayed a trace
Release = tuple[str, str]  # an engine and its release


def run(folder: Path) -> int:
    """Proves, plants the known bugs, replays the findings, and writes the pages; exit code 0.

    What was done before and would show nothing new is taken from the cache folder.
    """
    kept = documents.with_rows(documents.kept_findings()) if FINDINGS.exists() else []
    findings = in_order([f for plugin in registry.released() for f in of_engine(plugin.name, kept)])
    with progress() as bar:
        proving = bar.add_task("proving", total=len(prover.tasks(STEMS)))
        verdicts = proved(lambda: bar.advance(proving))
        known = bar.add_task("known bugs", total=len(FAULTS))
        faults = bugs(lambda: bar.advance(known))
        wanted = _by_release(findings)
        replaying = bar.add_task("findings", total=len(wanted))
        stories: dict[str, Json] = {}
        for release, names in wanted.items():
            stories |= stories_of(release, names)
            bar.advance(replaying)
    files = {**dict(explorer.files()), **packed(_pages(verdicts, faults, kept, findings, stories))}
    _write(folder, files)
    if not kept:
        say(NO_FINDINGS)
    size = sum(len(text.encode()) for text in files.values())
    say(f"written: {folder / 'index.html'} ({len(files)} files, {size / 1e6:.2f} MB)")
    return HOLDS


def of_trace(folder: Path, trace: str, engine: str | None, release: str | None, source: Path | None) -> int:
    """Writes the page of one trace: on the engine that was asked for, else on the release that shows it worst, else on
    our own implementation; exit code 0. Raises ``EngineError`` if the engine cannot be loaded.
    """
    kept = trace_files.load(trace)
    if engine is None and release is None and source is None:
        engine, release = _worst_on(kept) or (None, None)
    name = engine or registry.own().name
    limit = LIMIT if named.is_place(name) else None  # a release may have to be downloaded
    (row,) = rows_elsewhere([trace], name, release, told=True, source=source, limit=limit)
    text = explorer.page(environment(html=True), kept, {"missing": row["detail"], **row}, **_alone(kept, row, source))
    _write(folder, {**dict(explorer.files()), "index.html": tidy(text)})
    say(f"written: {folder / 'index.html'}")
    return HOLDS


def _worst_on(kept: Kept) -> Release | None:
    """The release of ``docs/findings.json`` that shows a kept trace worst."""
    rows: Rows = documents.kept_findings()["traces"].get(kept.name, []) if FINDINGS.exists() else []
    found = [f for plugin in registry.released() for f in of_engine(plugin.name, [(kept, rows)])]
    return (found[0].gravest["subject"], found[0].gravest["release"]) if found else None


def _alone(kept: Kept, row: Json, source: Path | None) -> Json:
    test = as_test(kept.trace, row["law"], row["kind"], row["engine"], row["release"], source) if row["law"] else ""
    return {"up": "", "home": False, "title": "", "test": test, "rows": []}


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)


# What is shown.


def in_order(findings: list[KeptFinding]) -> list[KeptFinding]:
    """Violations before latent findings, then those of the newest release first, then the gravest harm first."""

    def place(finding: KeptFinding) -> tuple[int, int, int, str]:
        newest = next(n for n, row in enumerate(reversed(finding.rows)) if row["verdict"] in BROKEN)
        harm = rank_of(finding.worst_harm["harm"])
        return BROKEN.index(finding.verdict), newest, harm, finding.kept.name

    return sorted(findings, key=place)


def proved(done: Any) -> list[Verdict]:
    """The verdicts on all obligations. They are kept if all are proved."""
    asked = [f.name for f in fields(Verdict)]
    rows = remembered(
        "report/proofs",
        asked,
        lambda: [asdict(verdict) for verdict in prover.prove(STEMS, lambda _: done())],
        lambda rows: [] if all(Verdict(**row).proved for row in rows) else None,
    )
    return [Verdict(**row) for row in rows]


def bugs(done: Any) -> list[Json]:
    """The known bugs, each as the page shows it."""
    names = list(FAULTS)
    found: list[Json] = remembered(
        "report/known-bugs",
        names,
        lambda: [_fault(shown) for shown in show_all([*FAULTS.values()], None, lambda _: done())],
        lambda _: [],
    )
    return found


def stories_of(release: Release, names: list[str]) -> dict[str, Json]:
    """The traces told step by step on a release: rows with a ``story``, or with ``missing``, why there is none."""

    def rows() -> list[Json]:
        try:
            return rows_elsewhere(names, *release, told=True)
        except EngineError as error:
            return [{"missing": f"{' '.join(release)} could not be loaded here: {error}"} for _ in names]

    def roots(found: list[Json]) -> list[str] | None:
        return None if any("missing" in row for row in found) else found[0]["roots"]

    told = remembered(f"report/findings-{'-'.join(release)}", [release, names], rows, roots)
    nothing: Json = {
        "story": [],
        "missing": "",
        "engine": release[0],
        "release": release[1],
        "step": None,
        "verdict": "",
    }
    return {name: {**nothing, "law": None, "harm": None, **row} for name, row in zip(names, told, strict=True)}


def _by_release(findings: list[KeptFinding]) -> dict[Release, list[str]]:
    """The traces whose gravest row is on each release."""
    names: dict[Release, list[str]] = defaultdict(list)
    for finding in findings:
        names[finding.gravest["subject"], finding.gravest["release"]].append(finding.kept.name)
    return names


def _fault(shown: Shown) -> Json:
    """A known bug as plain data: the law that the proof says is broken with a picture of it, and the shortest run."""
    example, found, fault = shown.example, shown.run, shown.fault
    before, after = (frame(example.before)["panels"], frame(example.after)["panels"]) if example else ([], [])
    return {
        "name": fault.name,
        "sentence": fault.sentence,
        "proof": shown.proof,
        "invariant": shown.invariant,
        "reach": shown.reach,
        "example": str(example) if example else "",
        "picture": marked(after, before, []),
        "found": shown.found,
        "law": found.law,
        "kind": found.kind,
        "step": len(found.trace.steps) if found.trace else None,
        "trace": found.trace.as_json() if found.trace else None,
        "story": [asdict(step) for step in tell(found.trace, fault.make)] if found.trace else [],
    }


# The pages.


def _pages(
    verdicts: list[Verdict], faults: list[Json], kept: Findings, findings: list[KeptFinding], stories: dict[str, Json]
) -> dict[str, str]:
    """The text of each page by its name."""
    templates = environment(html=True)
    return {
        "index.html": index(verdicts, faults, kept, findings, [_stem(name, verdicts) for name in STEMS]),
        **{f"findings/{f.kept.name}.html": tidy(_finding(templates, f, stories[f.kept.name])) for f in findings},
        **{f"bugs/{fault['name']}.html": tidy(_bug(templates, fault)) for fault in faults if fault["trace"]},
    }


def index(
    verdicts: list[Verdict],
    faults: list[Json],
    kept: Findings,
    findings: list[KeptFinding],
    stems: list[dict[str, Any]],
) -> str:
    """The first page. ``stems``: the proofs of each stem, as ``_stem`` has them."""
    text = (
        environment(html=True)
        .get_template("report.html.j2")
        .render(
            findings=findings,
            no_findings=NO_FINDINGS,
            theorems=theorems(STEMS),
            stems=stems,
            proved=sum(v.proved for v in verdicts),
            total=len(verdicts),
            assumptions=assumptions(STEMS),
            faults=faults,
            traces=kept,
            engines=documents.labels(kept),
            step=said_by,
        )
    )
    return tidy(text)


def tidy(text: str) -> str:
    """The page without the empty lines and the indentation that templates leave."""
    return "\n".join(line for line in text.splitlines() if line.strip()) + "\n"


def _finding(templates: Any, finding: KeptFinding, row: Json) -> str:
    kept = finding.kept
    test = as_test(kept.trace, row["law"], row["kind"], row["engine"], row["release"]) if row["law"] else ""
    more = {"up": "../", "home": True, "title": finding.title, "test": test, "rows": finding.rows}
    more["plain"] = f"slotproof report --trace {kept.name}"
    return explorer.page(templates, kept, {**row, "story": shortened(row["story"])}, **more)


def shortened(story: list[Json]) -> list[Json]:
    """The story with the engine's functions only where a law breaks: a hundred pages must stay small."""
    return [told if told["wrong"] else {**told, "engine": [], "deeper": False} for told in story]


def _bug(templates: Any, fault: Json) -> str:
    kept = Kept(fault["name"], fault["law"] or "", fault["sentence"], "", trace.Trace(**fault["trace"]))
    row = {"engine": registry.own().name, "release": None, "verdict": "", "harm": None, "missing": "", **fault}
    row["story"] = shortened(fault["story"])
    more = {"up": "../", "home": True, "title": f"Known bug {fault['name']}", "test": "", "rows": [], "bug": fault}
    more["plain"] = f"slotproof faults {fault['name']}"
    return explorer.page(templates, kept, row, **more)


def _stem(name: str, verdicts: list[Verdict]) -> dict[str, Any]:
    hints = hints_of(name)
    matrix: dict[str, dict[str, list[Verdict]]] = defaultdict(lambda: defaultdict(list))
    for verdict in verdicts:
        if verdict.stem == name:
            matrix[verdict.transition][_column(hints.stem, verdict.invariant)].append(verdict)
    own = [law.name for law in own_laws(hints.stem)]
    witnesses, killed = remembered(f"report/laws-{name}", name, lambda: [vacuity(hints), mutants(hints)], lambda _: [])
    return {
        "name": name,
        "spec": hints.stem,
        "parts": parts_of(hints.stem),
        "laws": [*own, *hints.stem.changes, *of_each_call(hints.stem), *_shared_columns(hints)],
        "matrix": matrix,
        "witnesses": witnesses,
        "mutants": killed,
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

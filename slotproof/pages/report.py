"""``slotproof report``: pages on which every finding can be stepped through, with the theorems, the law and the proofs.

``index.html`` says first what is wrong, then what is proved, then everything else. Each finding and each known bug has
a page of its own, see ``slotproof.pages.explorer``. A page is written as soon as it is ready, and ``index.html`` with
it; the findings come first, the proofs last.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.driver import trace
from conformance.driver.protocol import Json
from conformance.engines import registry
from conformance.telling.pasted import as_test
from conformance.traces.harm_found import rank_of
from conformance.traces.trace_files import Kept
from slotproof.console.codes import HOLDS
from slotproof.console.output import write_text
from slotproof.console.screen import say
from slotproof.pages import explorer, kept_findings
from slotproof.pages.finding_pages import BROKEN, KeptFinding, of_engine
from slotproof.pages.kept_findings import FINDINGS, Findings
from slotproof.pages.law_pages import own_laws, said_by
from slotproof.pages.packing import packed
from slotproof.pages.stories import stories
from slotproof.pages.templating import environment, tidy

NO_FINDINGS = "The page has no findings in engines: docs/findings.json is missing, `slotproof engines` writes it."
BETWEEN = 2.0  # seconds between two lines of progress, and between two writings of the first page


@dataclass
class Proofs:
    """What the first page says of proofs: the verdicts on obligations, and each stem as ``proof_part.stem_of`` has it;
    the theorems and what they take for granted, see ``slotproof.proving.headlines``.
    """

    verdicts: list[Any]
    stems: list[dict[str, Any]]
    theorems: list[Any]
    assumptions: list[Any]


@dataclass
class FirstPage:
    """What the first page shows so far. ``written``: the findings and known bugs that have their page. ``faults``,
    ``proofs``: ``None`` while they are not ready.
    """

    findings: list[KeptFinding]
    kept: Findings
    written: set[str] = field(default_factory=set)
    faults: list[Json] | None = None
    proofs: Proofs | None = None


class ReportFolder:
    """The folder that a report is written to, page by page."""

    def __init__(self, folder: Path, first: FirstPage) -> None:
        self.folder, self.first = folder, first
        self.start, self._said, self._written = time.perf_counter(), 0.0, float("-inf")
        self.pages: dict[str, str] = {}
        for name, text in explorer.files():
            self._write(name, text)
        self.write_first()

    def add(self, place: str, name: str, text: str) -> None:
        """Writes the page of a finding or of a known bug; from now on the first page leads to it."""
        self.pages[place] = text
        self._write(place, text)
        self.first.written.add(name)
        if time.perf_counter() - self._written > BETWEEN:
            self.write_first()

    def write_first(self) -> None:
        """Writes the first page with what there is."""
        self.pages["index.html"] = index(self.first)
        self._write("index.html", self.pages["index.html"])
        self._written = time.perf_counter()

    def tell(self, what: str, at_once: bool = True) -> None:
        """Prints a line of progress; ``at_once`` is false for one of many, of which few are printed."""
        now = time.perf_counter()
        if at_once or now - self._said > BETWEEN:
            self._said = now
            say(f"{now - self.start:4.0f} s  {what}", style="dim")

    def pack(self) -> tuple[int, int]:
        """Writes all pages again, packed; how many files there are, and their bytes."""
        files = {**dict(explorer.files()), **packed(self.pages)}
        for name, text in sorted(files.items(), key=lambda file: file[0].endswith(".html")):  # what pages load first
            self._write(name, text)
        return len(files), sum(len(text.encode()) for text in files.values())

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)


def run(folder: Path) -> int:
    """Replays the findings, shows the known bugs, proves the law, and writes the pages; exit code 0.

    What was done before and would show nothing new is taken from the cache folder.
    """
    kept = kept_findings.with_rows(kept_findings.kept()) if FINDINGS.exists() else []
    findings = in_order([f for plugin in registry.released() for f in of_engine(plugin.name, kept)])
    pages = ReportFolder(folder, FirstPage(findings, kept))
    pages.tell(f"{folder / 'index.html'} lists {len(findings)} findings; their pages follow")
    _findings(pages)
    _bugs(pages)
    _proofs(pages)
    count, size = pages.pack()
    if not kept:
        say(NO_FINDINGS)
    say(f"written: {folder / 'index.html'} ({count} files, {size / 1e6:.2f} MB)")
    return HOLDS


def _findings(pages: ReportFolder) -> None:
    templates, total = environment(html=True), len(pages.first.findings)
    for number, (finding, row) in enumerate(stories(pages.first.findings), start=1):
        place = f"findings/{finding.kept.name}.html"
        pages.add(place, finding.kept.name, tidy(_finding(templates, finding, row)))
        pages.tell(f"{number} of {total} findings have their page, the last is {place}", number in (1, total))
    pages.write_first()


def _bugs(pages: ReportFolder) -> None:
    from slotproof.pages import proof_part  # torch and the provers take seconds to load

    pages.tell(f"the known bugs: {len(proof_part.FAULTS)}")
    templates, faults = environment(html=True), proof_part.bugs(_counting(pages, len(proof_part.FAULTS), "known bugs"))
    pages.first.faults = faults
    for fault in faults:
        pages.add(f"bugs/{fault['name']}.html", fault["name"], tidy(_bug(templates, fault)))
    pages.write_first()


def _proofs(pages: ReportFolder) -> None:
    from slotproof.pages import proof_part
    from slotproof.proving.headlines import assumptions, theorems

    stems = proof_part.STEMS
    units = len(proof_part.prover.tasks(stems))
    pages.tell(f"the proofs: {units} transitions; what was proved before is remembered")
    verdicts = proof_part.proved(_counting(pages, units, "transitions"))
    shown = proof_part.law_of_each_stem(_counting(pages, len(stems), "stems, with the mutants of their laws"))
    of_stems = [proof_part.stem_of(name, verdicts, shown[name]) for name in stems]
    pages.first.proofs = Proofs(verdicts, of_stems, theorems(stems), assumptions(stems))
    pages.write_first()


def _counting(pages: ReportFolder, total: int, what: str) -> Callable[[], None]:
    count = 0

    def done() -> None:
        nonlocal count
        count += 1
        pages.tell(f"{count} of {total} {what}", count == total)

    return done


# What is shown.


def in_order(findings: list[KeptFinding]) -> list[KeptFinding]:
    """Violations before latent findings, then those of the newest release first, then the gravest harm first."""

    def place(finding: KeptFinding) -> tuple[int, int, int, str]:
        newest = next(n for n, row in enumerate(reversed(finding.rows)) if row["verdict"] in BROKEN)
        harm = rank_of(finding.worst_harm["harm"])
        return BROKEN.index(finding.verdict), newest, harm, finding.kept.name

    return sorted(findings, key=place)


def index(first: FirstPage) -> str:
    """The first page."""
    text = (
        environment(html=True)
        .get_template("report.html.j2")
        .render(
            findings=first.findings,
            written=first.written,
            no_findings=NO_FINDINGS,
            faults=first.faults,
            proofs=first.proofs,
            traces=first.kept,
            engines=kept_findings.labels(first.kept),
            step=said_by,
            own=own_laws,
        )
    )
    return tidy(text)


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

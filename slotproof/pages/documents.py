"""The generated documents: the pages about the law, ``docs/status.md``, ``docs/unneeded.md``, the pages of the
findings, and parts of ``README.md``.

What the engines show is kept in ``docs/findings.json``, which ``slotproof engines`` writes, and what refutes and finds
the known bugs in ``docs/faults.json``, which ``slotproof faults --search --keep`` writes. Which edits of the spec no
law refutes is kept in ``docs/mutation.json``, which ``slotproof mutate spec --keep`` writes. It names the spec that it
is about: ``slotproof docs --check`` fails where the spec has changed since. Which mutants of our implementation
nothing notices is kept in ``docs/mutation_impl.json``, which ``slotproof mutate impl --keep`` writes; its page says
which files have changed since. What ``slotproof check`` finds of drawn edits of engines is kept in
``docs/mutation_engines.json``, which ``slotproof mutate engine --keep`` writes, and what recordings say of some of them
in ``docs/recorded_edits.json``, see ``slotproof.planted.recording_edits``. Which functions of the newest releases
lead to which transitions is kept in ``docs/functions.json``, which ``slotproof engines`` writes too. Everything else is
made from the code, so ``slotproof docs --check`` sees a document that is out of date without loading an engine of
others and without searching for the known bugs. Tests search for some of them and compare what they find with
``docs/faults.json``. The kept traces are run on our implementation for ``proofs/corners.json``.
"""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment
from rich.console import Console

from conformance.driver.lockstep import UNSUPPORTED
from conformance.driver.naming import UsageError
from conformance.driver.protocol import Json
from conformance.engines import registry
from conformance.search.enough import LONGEST, OPERATIONS, ROUNDS, RUNS, TIMES
from conformance.stems.stem_registry import ROOMS as STEMS_OF_RUNS
from conformance.traces.trace_files import Kept
from proofs.corners import KEPT as KEPT_CORNERS
from proofs.obligations import FRAME, PROOF, START, TRIVIAL, all_of
from proofs.registry import STEMS, hints_of
from slotproof.checks.replays import shown
from slotproof.console.codes import BROKEN, HOLDS
from slotproof.console.needs import needed_checkout
from slotproof.console.output import write_text
from slotproof.console.screen import say, show
from slotproof.pages import blind_pages, corners, kept_findings
from slotproof.pages.blind_pages import Searched
from slotproof.pages.catalogue import pages as catalogue_pages
from slotproof.pages.cause_pages import pages as cause_pages
from slotproof.pages.finding_pages import left_over, of_engine
from slotproof.pages.kept_findings import FINDINGS, Findings, Rows
from slotproof.pages.law_pages import own_laws, parts_of
from slotproof.pages.law_pages import pages as law_pages
from slotproof.pages.templating import environment
from slotproof.pages.tutorial import played
from slotproof.planted import kept_search, mutating, mutating_engine, mutating_impl, recording_edits
from slotproof.proving.headlines import theorems
from slotproof.proving.minimal import listed
from slotproof.proving.trusted import trusted_base

MUTATED = FINDINGS.with_name(mutating_impl.KEPT)  # what `slotproof mutate impl --keep` writes
DRAWN = FINDINGS.with_name(mutating_engine.KEPT)  # what `slotproof mutate engine --keep` writes
RECORDED = FINDINGS.with_name(recording_edits.KEPT)
UNNEEDED = FINDINGS.with_name("unneeded.json")  # what `slotproof prove --minimal --json` writes
EXAMPLE = "insert_under_reader"  # the trace that README.md shows
REQUIRED = ("found",)  # the parts that README.md must have


def write(check_only: bool) -> int:
    """Writes the documents that are out of date, or only says which they are (exit code 1)."""
    root = needed_checkout("docs")
    made = _documents(root)
    stale = [(path, text) for path, text in made if not path.exists() or path.read_text("utf-8") != text]
    gone = left_over(root / "docs", (path for path, _ in made))
    names = ", ".join(str(path.relative_to(root)) for path in [*(path for path, _ in stale), *gone])
    if check_only:
        older = mutating.out_of_date()
        say(f"out of date, run make docs: {names}" if names else "the generated documents are up to date")
        if older:
            say(older)
        return BROKEN if names or older else HOLDS
    for path, text in stale:
        path.parent.mkdir(exist_ok=True)
        write_text(path, text)
    for path in gone:
        path.unlink()
    say(f"written: {names}" if names else "nothing to write: all documents were up to date")
    return 0


def kept_unneeded() -> list[Json]:
    """Each promise, choice and fit with what became of the proofs without it, as ``prove --minimal`` found last."""
    kept: list[Json] = json.loads(UNNEEDED.read_text("utf-8"))["requirements"]
    return kept


def _documents(root: Path) -> list[tuple[Path, str]]:
    found, pages = kept_findings.kept(), environment()
    findings, docs, readme = kept_findings.with_rows(found), root / "docs", root / "README.md"
    parts = _parts(pages, findings)
    made = {
        "claims.md": _claims(),
        "status.md": {name: parts[name]() for name in ("stems", "faults")},
        **({"unneeded.md": {"rows": listed(kept_unneeded())}} if UNNEEDED.exists() else {}),
        "mutation.md": mutating.page(),
        **({"mutation_impl.md": mutating_impl.page()} if MUTATED.exists() else {}),
        **({"mutation_engines.md": mutating_engine.page()} if DRAWN.exists() else {}),
        **({"recorded_edits.md": recording_edits.page()} if RECORDED.exists() else {}),
    }
    return [
        (KEPT_CORNERS, corners.derived()),
        *(
            (docs / name, pages.get_template(f"{name}.j2").render(values).rstrip() + "\n")
            for name, values in made.items()
        ),
        *law_pages(pages, docs).items(),
        *catalogue_pages(pages, docs, found, findings).items(),
        *cause_pages(pages, docs, findings).items(),
        *blind_pages.pages(pages, docs, _searched(findings)).items(),
        *((path, played(filled(path.read_text("utf-8"), parts))) for path in written_by_hand(docs)),
        (readme, filled(readme.read_text("utf-8"), parts, REQUIRED)),
    ]


def _searched(findings: list[tuple[Kept, list[Json]]]) -> list[Searched]:
    """What ``slotproof blind`` found last, engine by engine."""
    kept = blind_pages.kept_searches()
    every = (blind_pages.searched(one.name, kept, of_engine(one.name, findings)) for one in registry.released())
    return [one for several in every for one in several]


def _claims() -> dict[str, Any]:
    """What an engine claims on each stem, and the minimum of a search."""
    minimum = {"operations": OPERATIONS, "times": TIMES, "rounds": ROUNDS, "runs": RUNS, "longest": int(LONGEST)}
    return {"stems": {name: driven.claims for name, driven in STEMS_OF_RUNS.items()}, **minimum}


def written_by_hand(docs: Path) -> list[Path]:
    """The pages of docs/ of which only parts are generated: what their commands print, or a marked part."""
    texts = {path: path.read_text("utf-8") for path in sorted(docs.glob("*.md"))}
    return [path for path, text in texts.items() if "<!-- run" in text or "<!-- generated: " in text]


def _parts(pages: Environment, findings: Findings) -> dict[str, Callable[[], str]]:
    """How each generated part is made."""
    parts: Any = pages.get_template("parts.md.j2").module
    rows_of = {kept.name: (kept, rows) for kept, rows in findings}
    return {
        "theorems": lambda: parts.theorems(theorems(STEMS)),
        "stems": lambda: parts.stems([_stem(name) for name in STEMS]),
        "faults": lambda: parts.faults(kept_search.faults(), str(kept_search.search())),
        "found": lambda: _replay(*rows_of[EXAMPLE]),
        "trusted": lambda: parts.trusted(trusted_base()),
    }


def _stem(name: str) -> dict[str, Any]:
    hints, made_of = hints_of(name), parts_of(hints_of(name).stem)
    return {
        "name": name,
        "parts": [part["name"] for part in made_of],
        "transitions": len(hints.stem.transitions),
        "laws": len(own_laws(hints.stem)) + len(hints.stem.changes),
        "inherited": sum(part["laws"] for part in made_of),
        "obligations": {kind: obligations_of(name)[kind] for kind in (PROOF, FRAME, TRIVIAL)},
        "mutants": len(hints.mutants),
    }


@cache
def obligations_of(name: str) -> Counter[str]:
    """How many obligations a stem has, by kind (``proofs.obligations.Formula.kind``)."""
    hints = hints_of(name)
    units: dict[str, Any] = {START: hints.stem.start, **hints.stem.transitions}
    return Counter(formula.kind for unit, made in units.items() for formula in all_of(hints, unit, made))


def _replay(kept: Kept, rows: Rows) -> str:
    """A replay as the command prints it on a screen of 110 columns, without the releases that do not support it."""
    out = io.StringIO()
    page = Console(file=out, width=110, highlight=False, color_system=None)
    for part in shown(kept, [row for row in rows if row["verdict"] != UNSUPPORTED]):
        show(part, on=page)
    lines = "\n".join(line.rstrip() for line in out.getvalue().splitlines())
    return f"```\n$ slotproof replay {kept.name}\n{lines}\n```"


def filled(text: str, parts: dict[str, Callable[[], str]], required: Collection[str] = ()) -> str:
    """A page with its marked parts made anew: what is between ``<!-- generated: NAME -->`` and ``<!-- end -->``."""
    for name, make in parts.items():
        pattern = re.compile(rf"(<!-- generated: {name} -->).*?(<!-- end -->)", re.DOTALL)
        if pattern.search(text):
            part = make().strip()
            text = pattern.sub(lambda match, part=part: f"{match[1]}\n{part}\n{match[2]}", text)  # type: ignore[misc]
        elif name in required:
            raise UsageError(f"README.md has no part <!-- generated: {name} -->")
    return text

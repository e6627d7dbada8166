"""The pages of the findings, ``docs/findings/NAME.md`` with one each. ``docs/findings.md`` is made by ``catalogue``.

A finding is a kept trace with its rows: what the trace shows on our own implementation and on each release.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment

from conformance.driver.lockstep import CONFORMS, LATENT, UNSUPPORTED, VIOLATION
from conformance.driver.protocol import Json
from conformance.engines import registry
from conformance.stems.found import law_of
from conformance.traces.harm_found import rank_of
from conformance.traces.trace_files import Kept
from slotproof.pages.chain_pages import kept_chains
from slotproof.pages.mend_pages import kept_mends

MARKS = {VIOLATION: "**V**", LATENT: "l", CONFORMS: "·", UNSUPPORTED: " "}
BROKEN = (VIOLATION, LATENT)  # the gravest first
FOLDERS = ("findings", "causes", "laws")  # in the folder of the documents: all their pages are generated
SCRIPTS = "scripts"  # the folder beside an engine's ``traces`` that has the scripts


@dataclass(frozen=True)
class KeptFinding:
    """A kept trace and its rows on one engine's releases, oldest release first.

    ``own``: the row of our own implementation. ``script``: a program that shows the finding with the engine alone,
    empty where there is none.
    """

    kept: Kept
    own: Json | None
    rows: list[Json]
    script: str = ""

    @property
    def engine(self) -> str:
        """The engine whose releases the rows are of."""
        return str(self.rows[0]["subject"])

    @property
    def shown(self) -> list[Json]:
        """The rows of the releases that show the finding."""
        return [row for row in self.rows if row["verdict"] in BROKEN]

    @property
    def verdict(self) -> str:
        """The gravest verdict."""
        shown = {row["verdict"] for row in self.shown}
        return next(verdict for verdict in BROKEN if verdict in shown)

    @property
    def gravest(self) -> Json:
        """The row of the newest release with the gravest verdict."""
        return [row for row in self.shown if row["verdict"] == self.verdict][-1]

    @property
    def worst_harm(self) -> Json:
        """The row of the newest release with the gravest harm."""
        return min(reversed(self.shown), key=lambda row: rank_of(row["harm"]))

    @property
    def stands(self) -> bool:
        """The newest release shows the finding."""
        return self.rows[-1]["verdict"] in BROKEN

    @property
    def repaired_in(self) -> str:
        """The first release after the last one that shows the finding, if the trace keeps the law there; else empty."""
        last = max(number for number, row in enumerate(self.rows) if row["verdict"] in BROKEN)
        after = next(iter(self.rows[last + 1 :]), None)
        return str(after["release"]) if after and after["verdict"] == CONFORMS else ""

    @property
    def spans(self) -> str:
        """In which releases the finding stands, for example ``0.5.11 to 0.5.13`` or ``from 0.5.12 on``."""
        runs = [list(run) for broken, run in groupby(self.rows, lambda row: row["verdict"] in BROKEN) if broken]
        return ", ".join(self._span(run) for run in runs)

    def _span(self, run: Sequence[Json]) -> str:
        first, last = run[0]["release"], run[-1]["release"]
        if run[-1] is self.rows[-1]:
            return f"from {first} on" if first != self.rows[0]["release"] else "every release"
        return f"{first} to {last}" if first != last else str(first)

    @property
    def sentence(self) -> str:
        """The law in English; empty where no invariant of the stem is broken, but an answer or a transition."""
        law = law_of(self.kept.trace.stem).invariants.get(self.gravest["law"])
        return law.sentence if law else ""

    @property
    def law_page(self) -> str | None:
        """Where the law or transition that is broken stands, from the folder of the documents."""
        from slotproof.pages.law_pages import place  # it reads the proofs; who shows a finding may be without solvers

        return place(law_of(self.kept.trace.stem).name, self.gravest["law"])

    @property
    def title(self) -> str:
        """The title of the text to file: the first line of the script's docstring; empty where it has none."""
        return (ast.get_docstring(ast.parse(self.script)) or "").partition("\n")[0].rstrip(".")

    @property
    def before(self) -> str:
        """Why the releases before the first that shows the finding do not: they conform, or they lack a call."""
        first = self.rows.index(self.shown[0])
        return self.rows[first - 1]["verdict"] if first else ""

    @property
    def place(self) -> tuple[int, int, int, str]:
        """Where the finding stands in a list: the gravest harm first, then violations, then those of the newest
        release, then by name.
        """
        newest = max(n for n, row in enumerate(self.rows) if row["verdict"] in BROKEN)
        return rank_of(self.worst_harm["harm"]), BROKEN.index(self.verdict), -newest, self.kept.name


def of_engine(engine: str, findings: Iterable[tuple[Kept, list[Json]]]) -> list[KeptFinding]:
    """The findings of one engine with releases, the gravest first. Those that no release shows are left out."""
    folder = registry.plugin(engine).folder
    found = []
    for kept, rows in findings:
        own = next((row for row in rows if row["release"] is None), None)
        mine = [row for row in rows if row["subject"] == engine]
        if any(row["verdict"] in BROKEN for row in mine):
            found.append(KeptFinding(kept, own, mine, _script(folder, kept.name)))
    return sorted(found, key=lambda finding: finding.place)


def _script(folder: Path | None, name: str) -> str:
    path = folder and folder / SCRIPTS / f"{name}.py"
    return path.read_text("utf-8") if path and path.is_file() else ""


def pages(
    templates: Environment, docs: Path, findings: list[tuple[Kept, list[Json]]], told: Mapping[str, Any]
) -> dict[Path, str]:
    """The page of each finding by its path. ``told``: the entry of the catalogue that a finding belongs to, by its
    name; a finding of older releases alone has none.
    """
    page = templates.get_template("finding.md.j2")
    mends = {(one.engine, one.finding): one for one in kept_mends()}
    chains = {one.key: one for one in kept_chains()}
    every = (finding for plugin in registry.released() for finding in of_engine(plugin.name, findings))
    return {
        docs / "findings" / f"{one.kept.name}.md": page.render(
            finding=one,
            entry=told.get(one.kept.name),
            mend=mends.get((one.engine, one.kept.name)),
            chain=chains.get((one.engine, one.kept.name)),
        ).rstrip()
        + "\n"
        for one in every
    }


def left_over(docs: Path, made: Iterable[Path]) -> list[Path]:
    """The pages of findings, causes and stems that are there no more."""
    return sorted({page for folder in FOLDERS for page in (docs / folder).glob("*.md")} - {*made})

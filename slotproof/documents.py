"""The generated documents: ``docs/laws.md``, ``docs/findings.md``, and the marked parts of ``README.md``.

What engines show is kept in ``docs/findings.json`` by ``slotproof engines``; everything else is made from the code, so
that ``slotproof docs --check`` finds any drift without an engine.
"""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from rich.console import Console

from conformance import kept
from conformance.check import STEMS
from conformance.faults import FAULTS
from conformance.faults.base import show
from conformance.kept import Kept
from conformance.replaying import UNSUPPORTED
from conformance.subjects.loading import RELEASES
from proofs.obligations import ATOMIC, call
from proofs.registry import hints_of
from proofs.symbols import World
from slotproof.replays import shown
from slotproof.screen import console

ROOT = Path(__file__).parent.parent
FINDINGS = ROOT / "docs" / "findings.json"
EXAMPLE = "stale_tail_after_restore"
DRIFT = 1
MARK = {"violation": "**violation**", "latent": "latent", "conforms": "holds", UNSUPPORTED: "no such call"}

Rows = list[dict[str, Any]]


def environment(html: bool = False) -> Environment:
    """The templates, escaped for HTML if asked."""
    made = Environment(loader=PackageLoader("slotproof"), undefined=StrictUndefined, autoescape=html)
    made.filters["line"] = _html if html else lambda text: " ".join((text or "").split())
    made.filters["mark"] = lambda verdict: MARK[verdict]
    return made


def _html(text: str | None) -> Markup:
    """A docstring on one line, its ``code`` marked up."""
    line = str(escape(" ".join((text or "").split())))
    return Markup(re.sub(r"``(.*?)``", r"<code>\1</code>", line))


def write(check_only: bool) -> int:
    """Writes every generated document, or says which of them is not what it should be."""
    stale = [(path, text) for path, text in _documents() if not path.exists() or path.read_text() != text]
    names = ", ".join(str(path.relative_to(ROOT)) for path, _ in stale)
    if check_only:
        console.print(f"out of date, run make docs: {names}" if stale else "generated documents are up to date")
        return DRIFT if stale else 0
    for path, text in stale:
        path.write_text(text)
    console.print(f"written: {names or 'nothing, all were up to date'}")
    return 0


def _documents() -> list[tuple[Path, str]]:
    if not FINDINGS.exists():
        raise ValueError("docs/findings.json is missing: run make engines first")
    found = json.loads(FINDINGS.read_text())
    traces = [(kept.load(name), rows) for name, rows in found["traces"].items()]
    pages, readme = environment(), ROOT / "README.md"
    stems = [hints_of(name).stem for name in STEMS]
    laws = pages.get_template("laws.md.j2").render(stems=stems, atomic=ATOMIC, promises=_promises)
    findings = pages.get_template("findings.md.j2").render(checks=found["checks"], traces=traces)
    return [
        (ROOT / "docs" / "laws.md", laws.rstrip() + "\n"),
        (ROOT / "docs" / "findings.md", findings.rstrip() + "\n"),
        (readme, _filled(readme.read_text(), _parts(pages, traces))),
    ]


def _promises(stem: str, transition: str) -> list[str]:
    """The sentences of what a caller of the transition promises."""
    hints = hints_of(stem)
    made = call(hints, hints.stem.transitions[transition], World())
    return [promise.sentence for promise in made.step.promises]


def _parts(pages: Environment, traces: list[tuple[Kept, Rows]]) -> dict[str, str]:
    parts: Any = pages.get_template("readme_parts.md.j2").module
    example = next(((name, rows) for name, rows in traces if name.name == EXAMPLE))
    return {
        "stems": parts.stems([_stem(name) for name in STEMS]),
        "faults": parts.faults([show(fault) for fault in FAULTS.values()]),
        "findings": parts.findings(traces, RELEASES),
        "replay": _replay(*example),
    }


def _stem(name: str) -> dict[str, Any]:
    hints = hints_of(name)
    transitions, laws = len(hints.stem.transitions), len(hints.stem.invariants)
    obligations = transitions * (laws + 1) + laws  # each law and atomic failure; the first state is lawful
    return {
        "name": name,
        "transitions": transitions,
        "laws": laws,
        "obligations": obligations,
        "mutants": len(hints.mutants),
    }


def _replay(trace: Kept, rows: Rows) -> str:
    """A replay as the command prints it, without the releases that lack the call."""
    out = io.StringIO()
    page = Console(file=out, width=110, highlight=False, color_system=None)
    for part in shown(trace, [r for r in rows if r["verdict"] != UNSUPPORTED]):
        page.print(part, markup=False)
    lines = "\n".join(line.rstrip() for line in out.getvalue().splitlines())
    return f"```\n$ slotproof replay {trace.name}\n{lines}\n```"


def _filled(text: str, parts: dict[str, str]) -> str:
    for name, part in parts.items():
        pattern = re.compile(rf"(<!-- generated: {name} -->).*?(<!-- end -->)", re.DOTALL)
        if not pattern.search(text):
            raise ValueError(f"README.md has no part <!-- generated: {name} -->")
        text = pattern.sub(lambda match, part=part: f"{match[1]}\n{part.strip()}\n{match[2]}", text)  # type: ignore[misc]
    return text

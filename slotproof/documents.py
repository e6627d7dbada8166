"""The generated documents: ``docs/laws.md``, ``docs/findings.md``, and the marked parts of ``README.md``.

What engines show is kept in ``docs/findings.json`` by ``slotproof engines``; everything else is made from the code, so
that ``slotproof docs --check`` finds any drift without an engine.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from rich.console import Console

from conformance import kept
from conformance.faults import FAULTS
from conformance.faults.base import show_all
from conformance.kept import Kept
from conformance.replaying import UNSUPPORTED
from conformance.subjects.loading import RELEASES
from proofs.obligations import ATOMIC, call
from proofs.registry import STEMS, hints_of
from proofs.symbols import World
from slotproof.replays import shown
from slotproof.screen import console
from spec.logic import Invariant, Stem

ROOT = Path(__file__).parent.parent
FINDINGS = ROOT / "docs" / "findings.json"
EXAMPLES = {"replay": "stale_tail_after_restore", "found": "insert_under_reader"}  # by their marks in the README
DRIFT = 1
MARK = {"violation": "**violation**", "latent": "latent", "conforms": "holds", UNSUPPORTED: "no such call"}

Rows = list[dict[str, Any]]


class Said(NamedTuple):
    """What a transition asks of its caller, and what it calls."""

    promises: list[str]
    calls: list[str]


def environment(html: bool = False) -> Environment:
    """The templates, escaped for HTML if asked."""
    made = Environment(loader=PackageLoader("slotproof"), undefined=StrictUndefined, autoescape=html)
    made.filters["line"] = _html if html else lambda text: " ".join((text or "").split())
    made.filters["mark"] = lambda verdict: MARK[verdict]
    made.filters["own"] = own_laws
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
    laws = pages.get_template("laws.md.j2").render(stems=stems, atomic=ATOMIC, step=said_by, parts=parts_of)
    findings = pages.get_template("findings.md.j2").render(checks=found["checks"], traces=traces)
    return [
        (ROOT / "docs" / "laws.md", laws.rstrip() + "\n"),
        (ROOT / "docs" / "findings.md", findings.rstrip() + "\n"),
        (readme, _filled(readme.read_text(), _parts(pages, traces))),
    ]


@cache
def said_by(stem: str, transition: str) -> Said:
    """What a caller of the transition promises, and what it calls, each by its part's stem."""
    hints = hints_of(stem)
    step = call(hints, hints.stem.transitions[transition], World()).step
    calls = [f"{hints.stem.parts[c.part].name}.{c.transition.__name__}" for c in step.calls]
    return Said(_once(promise.sentence for promise in step.promises), calls)


def _once(sentences: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(sentences))


def parts_of(stem: Stem) -> list[dict[str, Any]]:
    """The stems that a stem is made of, and how many laws it inherits from each."""
    laws = [law.inherited for law in stem.invariants.values()]
    return [{"field": at, "name": part.name, "laws": laws.count(at)} for at, part in stem.parts.items()]


def own_laws(stem: Stem) -> list[Invariant]:
    """The laws that the stem adds to those of its parts, its theorems last."""
    own = [law for law in stem.invariants.values() if not law.inherited]
    return sorted(own, key=lambda law: law.theorem)


def _parts(pages: Environment, traces: list[tuple[Kept, Rows]]) -> dict[str, str]:
    parts: Any = pages.get_template("readme_parts.md.j2").module
    of = {known.name: (known, rows) for known, rows in traces}
    return {
        "stems": parts.stems([_stem(name) for name in STEMS]),
        "faults": parts.faults(show_all([*FAULTS.values()], None, lambda _: None)),
        "findings": parts.findings(traces, RELEASES),
        **{mark: _replay(*of[name]) for mark, name in EXAMPLES.items()},
    }


def _stem(name: str) -> dict[str, Any]:
    hints, made_of = hints_of(name), parts_of(hints_of(name).stem)
    return {
        "name": name,
        "parts": [part["name"] for part in made_of],
        "transitions": len(hints.stem.transitions),
        "laws": len(own_laws(hints.stem)),
        "inherited": sum(part["laws"] for part in made_of),
        "obligations": obligations_of(name),
        "mutants": len(hints.mutants),
    }


def obligations_of(name: str) -> int:
    """How many: each transition keeps its stem's own laws and fails whole, and each call it makes is lawful.

    The first state keeps all laws, those of the parts too; that a theorem follows is proved once.
    """
    stem = hints_of(name).stem
    kept = sum(not law.theorem for law in own_laws(stem)) + 1
    return len(stem.invariants) + sum(kept + len(said_by(name, transition).calls) for transition in stem.transitions)


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

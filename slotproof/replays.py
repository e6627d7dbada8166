"""``slotproof replay``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from conformance import kept
from conformance.kept import Kept
from conformance.machine import VIOLATION
from conformance.replaying import row, rows_elsewhere
from conformance.subjects.loading import RELEASES, SUBJECTS, load
from slotproof.screen import choose, console, progress, write_json

BROKEN = 1


def run(trace: str, subjects: Sequence[str], releases: Sequence[str], json: Path | None) -> int:
    """Replays on every subject and release; exit code 1 if one of them violates a law."""
    found = kept.load(trace)
    chosen = choose(subjects, SUBJECTS, "subject")
    rows = rows_of(trace, chosen, list(releases) or list(RELEASES))
    for part in shown(found, rows):
        console.print(part, markup=False)
    write_json(json, {"trace": found.name, "rows": rows})
    return BROKEN if any(r["verdict"] == VIOLATION for r in rows) else 0


def shown(found: Kept, rows: Sequence[dict[str, Any]]) -> list[str | Table]:
    """The steps, and a table of verdicts."""
    table = Table(title=f"{found.name}: {found.law}", title_justify="left")
    for column in ("subject", "verdict", "step", "law", "where"):
        table.add_column(column)
    for r in rows:
        name = f"{r['subject']} {r['release'] or ''}".strip()
        table.add_row(name, r["verdict"], str(r["step"] or "-"), r["law"] or "-", r["detail"])
    return [*(f"  {line}" for line in found.trace.lines()), table]


def rows_of(trace: str, subjects: Sequence[str], releases: Sequence[str]) -> list[dict[str, Any]]:
    """One row a subject and release."""
    rows = []
    with progress() as bar:
        task = bar.add_task("replaying", total=len(subjects) + len(releases))
        if "ours" in subjects:
            rows.append(row(kept.load(trace), load("ours")))
            bar.advance(task)
        for release in releases if "sglang" in subjects else ():
            rows += rows_elsewhere([trace], release)
            bar.advance(task)
    return rows

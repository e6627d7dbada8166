"""``slotproof faults``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from conformance.faults import FAULTS
from conformance.faults.base import Shown, show_all
from conformance.kept import as_json
from slotproof.screen import choose, console, progress, write_json

BROKEN = 1


def run(names: Sequence[str], seed: int | None, json: Path | None) -> int:
    """Shows each fault; exit code 1 if one was missed by the proof or by the run."""
    chosen = choose(names, FAULTS, "fault")
    with progress() as bar:
        task = bar.add_task("known bugs", total=len(chosen))
        shown = show_all([FAULTS[name] for name in chosen], seed, lambda _: bar.advance(task))
    _print(shown)
    write_json(json, {"faults": [_data(s) for s in shown]})
    return BROKEN if any("missed" in (s.proof, s.found) for s in shown) else 0


def _data(shown: Shown) -> dict[str, Any]:
    return {
        "name": shown.fault.name,
        "stem": shown.fault.stem,
        "proof": shown.proof,
        "invariant": shown.invariant,
        "counterexample": str(shown.example),
        "reach": shown.reach,
        "run": shown.found,
        "law": shown.run.law,
        "steps": shown.steps,
        "seconds": shown.seconds,
        "trace": None if shown.run.trace is None else as_json(shown.run.trace),
    }


def _print(shown: list[Shown]) -> None:
    table = Table(title="known bugs", title_justify="left")
    for column in ("fault", "proof", "law the proof sees broken", "reach", "run", "law the run sees broken", "steps"):
        table.add_column(column)
    for s in shown:
        law = s.run.law or "-"
        table.add_row(s.fault.name, s.proof, s.invariant or "-", s.reach or "-", s.found, law, str(s.steps))
    console.print(table)
    for s in shown:
        console.print(f"{s.fault.name} ({s.seconds:.1f} s): {s.fault.sentence}")
        console.print(f"  proof: {s.example}", markup=False)
        if s.run.trace is not None:
            console.print(f"  run:   {'; '.join(s.run.trace.lines())}", markup=False)
            console.print(f"         {s.run.detail}", markup=False)

"""``slotproof faults``: known bugs, planted in the law and in our implementation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from conformance.engines.protocol import Json
from conformance.faults import FAULTS
from conformance.faults.show import Shown, show_all
from slotproof.codes import BROKEN, HOLDS
from slotproof.screen import broken, choose, progress, say, show, table, write_json


def run(names: Sequence[str], seed: int | None, json: Path | None) -> int:
    """Shows each fault; exit code 1 if the proof does not refute one or the runs do not find it."""
    chosen = choose(names, FAULTS, "fault")
    with progress() as bar:
        task = bar.add_task("known bugs", total=len(chosen))
        shown = show_all([FAULTS[name] for name in chosen], seed, lambda _: bar.advance(task))
    write_json(json, {"faults": [_data(s) for s in shown]})
    _print(shown)
    return BROKEN if any("missed" in (s.proof, s.found) for s in shown) else HOLDS


def _data(shown: Shown) -> Json:
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
        "trace": None if shown.run.trace is None else shown.run.trace.as_json(),
    }


def _print(shown: list[Shown]) -> None:
    columns = ("fault", "proof", "law broken in the proof", "reachable", "runs", "broken in the run", "operations")
    rows = [
        (
            *(s.fault.name, s.proof, s.invariant or "-", s.reach or "-", s.found),
            *(broken(s.run.law, s.run.kind), s.steps),
        )
        for s in shown
    ]
    show(table("Known bugs", columns, rows))
    for s in shown:
        say(f"{s.fault.name} ({s.seconds:.1f} s): {s.fault.sentence}")
        say(f"  proof: {s.example}")
        if s.run.trace is not None:
            say(f"  run:   {'; '.join(s.run.trace.lines())}")
            say(f"         {s.run.detail}")

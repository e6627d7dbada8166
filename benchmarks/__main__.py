"""Measures and prints; ``--json FILE`` also writes the numbers to a file."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import track

from benchmarks import (
    engines,
    events,
    locks,
    lockstep,
    recording,
    schedulers,
    shadow,
    startup,
    tables,
    transitions,
    trees,
)
from benchmarks.engines import Comparison
from conformance.driver.protocol import EngineError
from conformance.engines import registry
from conformance.stems.stem_registry import STEMS

MEASUREMENTS = Path(__file__).resolve().parents[1] / "docs" / "measurements"
out = Console(record=True, width=None if sys.stdout.isatty() else 140)
err = Console(stderr=True)


def main(
    engine: Annotated[str | None, typer.Option(help="The engine to compare with; default: the first that can.")] = None,
    release: Annotated[str | None, typer.Option(help="Its release; default: the newest.")] = None,
    device: Annotated[str, typer.Option(help="Where the tensors of the comparison are: cpu or cuda.")] = "cpu",
    seconds: Annotated[float, typer.Option(min=0, help="Time for each case of the comparison.")] = 0.15,
    operations: Annotated[int, typer.Option(min=1, help="Operations of the lock-step to time, for each stem.")] = 1000,
    to: Annotated[Path | None, typer.Option("--json", help="Also write the numbers to this file.")] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Also write docs/measurements/DATE-DEVICE.json, and the tables beside it.")
    ] = False,
) -> None:
    """Measures the lock-step of every stem, the spec alone, the help texts, and our implementation beside an engine.

    With ``--device cuda`` only the last is measured: the others use no device but the processor.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("this machine has no CUDA device", param_hint="--device")
    torch.set_num_threads(1)
    os.environ.setdefault("TRITON_INTERPRET", "0" if device == "cuda" else "1")
    on_processor = speeds(operations) if device == "cpu" else {}
    found = {**on_processor, "comparison": comparison(engine, release, torch.device(device), seconds)}
    text = json.dumps({"machine": machine(device), **found}, indent=2) + "\n"
    if to is not None:
        to.write_text(text, encoding="utf-8")
    if keep:
        kept(machine(device), text, out.export_text())


def kept(on: dict[str, Any], numbers: str, tables_as_text: str) -> None:
    """Writes the numbers and the tables to docs/measurements/, named by the day and the device."""
    device = re.sub(r"\W+", "-", on["accelerator"] or f"cpu-{on['processor']}").lower()
    place = MEASUREMENTS / f"{datetime.now(UTC).date()}-{device}.json"
    place.write_text(numbers, encoding="utf-8")
    said = ", ".join(f"{name} {value}" for name, value in on.items() if value is not None)
    lines = "\n".join(line.rstrip() for line in tables_as_text.strip().splitlines())
    head = f"# Measured by `make bench`\n\nOn {said}. The numbers are in [{place.name}]({place.name}).\n\n"
    place.with_suffix(".md").write_text(f"{head}```\n{lines}\n```\n", encoding="utf-8")


def speeds(operations: int) -> dict[str, Any]:
    """The lock-step with our implementation, the spec alone, and the help texts."""
    own = registry.load(registry.own().name)
    runs = [lockstep.measure(stem, own, operations) for stem in _progress(list(STEMS), "lock-step")]
    out.print(tables.lock_step(runs))
    out.print(tables.time_spent(runs))
    costs = [shadow.measure(stem, own, operations) for stem in _progress(list(shadow.STEMS), "shadow memory")]
    out.print(tables.shadow_memory(costs))
    alone = [transitions.measure(stem) for stem in _progress(list(transitions.STEMS), "spec")]
    out.print(tables.spec_alone(alone))
    streams = [events.measure(form) for form in _progress(list(events.FORMATS), "KV events")]
    out.print(tables.kv_events(streams))
    measured = (schedulers.measure(*one) for one in _progress(schedulers.engines(), "schedulers"))
    steps = [rate for rate in measured if rate is not None]
    out.print(tables.scheduler_steps(steps))
    recorded = [recording.measure(*one) for one in _progress(recording.cases(), "recorders")]
    out.print(tables.recorders(recorded))
    helps = [startup.measure(command) for command in _progress(startup.commands(), "help")]
    out.print(tables.helps(helps))
    return {
        "lockstep": [asdict(r) for r in runs],
        "shadow": [{**asdict(c), "ratio": c.ratio} for c in costs],
        "transitions": [asdict(r) for r in alone],
        "events": [asdict(r) for r in streams],
        "schedulers": [asdict(r) for r in steps],
        "recorders": [asdict(c) for c in recorded],
        "help": [asdict(r) for r in helps],
    }


def comparison(engine: str | None, release: str | None, device: torch.device, seconds: float) -> dict[str, Any]:
    """Our implementation beside a release of an engine, or one line that says why not."""
    try:
        other = engines.load(engine, release, device)
    except EngineError as error:
        out.print(f"The comparison with an engine is skipped: {error}", markup=False, soft_wrap=True)
        return {"engine": None, "device": str(device), "skipped": str(error), "rows": [], "locks": None, "trees": None}
    cases = _progress(list(engines.cases()), other.label)
    rows = [engines.measure(other, case, device, seconds) for case in cases]
    out.print(tables.side_by_side(rows, other.label, str(device)))
    done = {"engine": other.label, "device": str(device), "skipped": None, "rows": [asdict(r) for r in rows]}
    return {**done, "locks": locking(other, device, seconds), "trees": prefix_caches(other, device, seconds)}


def prefix_caches(other: Comparison, device: torch.device, seconds: float) -> dict[str, Any]:
    """Calls of our prefix cache and of the engine's; one line where the engine has no such trees."""
    rows, skipped = trees.measure(other, device, seconds)
    if skipped is not None:
        out.print(f"The comparison of prefix caches is skipped: {skipped}", markup=False, soft_wrap=True)
    else:
        out.print(tables.prefix_caches(rows, other.label))
    return {"texts": trees.TEXTS, "skipped": skipped, "rows": [asdict(r) for r in rows]}


def locking(other: Comparison, device: torch.device, seconds: float) -> dict[str, Any]:
    """Locks on our tree and on the engine's; one line where the engine has no such tree."""
    rows, skipped = locks.measure(other, device, seconds)
    if skipped is not None:
        out.print(f"The comparison of locks is skipped: {skipped}", markup=False, soft_wrap=True)
    out.print(tables.locking(rows, other.label, str(device)))
    return {"nodes": locks.NODES, "skipped": skipped, "rows": [asdict(r) for r in rows]}


def machine(device: str) -> dict[str, Any]:
    """What the numbers depend on."""
    accelerator = torch.cuda.get_device_name() if device == "cuda" else None
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    return {**versions, "processor": platform.machine(), "cores": os.cpu_count(), "accelerator": accelerator}


def _progress(items: list[Any], what: str) -> Any:
    return track(items, what, console=err, transient=True)


if __name__ == "__main__":
    typer.run(main)

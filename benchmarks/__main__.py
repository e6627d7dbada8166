"""Measures and prints; ``--json FILE`` writes the same numbers for machines."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import track

from benchmarks import engines, locks, lockstep, tables, transitions
from conformance.subjects.errors import SubjectError
from conformance.subjects.sglang import SGLang

out, err = Console(), Console(stderr=True)


def main(
    release: Annotated[str, typer.Option(help="The SGLang release to compare with.")] = "0.5.14",
    device: Annotated[str, typer.Option(help="cpu or cuda, for the comparison.")] = "cpu",
    seconds: Annotated[float, typer.Option(min=0, help="Time for each case of the comparison.")] = 0.5,
    steps: Annotated[int, typer.Option(min=40, help="Lock-step steps to time.")] = 4000,
    to: Annotated[Path | None, typer.Option("--json", help="Write the numbers to this file too.")] = None,
) -> None:
    """Steps and transitions a second, and our implementation beside SGLang's."""
    if device == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("there is no CUDA device", param_hint="--device")
    torch.set_num_threads(1)
    os.environ.setdefault("TRITON_INTERPRET", "0" if device == "cuda" else "1")
    found = {**speeds(steps), "comparison": comparison(release, torch.device(device), seconds)}
    if to is not None:
        to.write_text(json.dumps({"machine": machine(device), **found}, indent=2) + "\n", encoding="utf-8")


def speeds(steps: int) -> dict[str, Any]:
    """The lock-step and the spec alone, each stem."""
    runs = [lockstep.measure(stem, runs=steps // 40) for stem in _progress(list(lockstep.POOLS), "lock-step")]
    out.print(tables.lock_step(runs))
    alone = [transitions.measure(stem) for stem in _progress(list(lockstep.POOLS), "spec")]
    out.print(tables.spec_alone(alone))
    return {"lockstep": [asdict(r) for r in runs], "transitions": [asdict(r) for r in alone]}


def comparison(release: str, device: torch.device, seconds: float) -> dict[str, Any]:
    """Ours beside a release of SGLang, or one line that says why not."""
    try:
        engine = engines.load(release)
    except SubjectError as error:
        out.print(f"The comparison with SGLang is skipped: {error}", markup=False, soft_wrap=True)
        return {"release": release, "device": str(device), "skipped": str(error), "rows": [], "locks": None}
    cases = _progress(list(engines.cases()), f"SGLang {release}")
    rows = [engines.measure(engine, case, device, seconds) for case in cases]
    out.print(tables.side_by_side(rows, release, str(device)))
    done = {"release": release, "device": str(device), "skipped": None, "rows": [asdict(r) for r in rows]}
    return {**done, "locks": locking(engine, release, device, seconds)}


def locking(engine: SGLang, release: str, device: torch.device, seconds: float) -> dict[str, Any]:
    """Acquire and release on one tree, ours and the release's; one line where it has no such tree."""
    rows, skipped = locks.measure(engine, device, seconds)
    if skipped is not None:
        out.print(f"The comparison of locks with SGLang is skipped: {skipped}", markup=False, soft_wrap=True)
    out.print(tables.locking(rows, release, str(device)))
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

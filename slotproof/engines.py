"""``slotproof engines``: every release on every stem, and every kept trace on every release."""

from __future__ import annotations

import json as jsonlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.table import Table

from conformance import kept
from conformance.machine import LATENT, VIOLATION
from conformance.replaying import row, rows_elsewhere
from conformance.subjects.loading import RELEASES, load
from slotproof.documents import FINDINGS, write
from slotproof.screen import console, progress, write_json


def run(json: Path | None) -> int:
    """Checks and replays, prints the verdicts, and writes the findings and the documents made from them."""
    names, ours = kept.names(), load("ours")
    checks, traces = [], {name: [row(kept.load(name), ours)] for name in names}
    # Each release needs processes of its own; threads wait for them.
    with progress() as bar, ThreadPoolExecutor(os.cpu_count()) as pool:
        task = bar.add_task("sglang", total=len(RELEASES))
        for found, seen in pool.map(lambda release: (_checked(release), rows_elsewhere(names, release)), RELEASES):
            checks += found
            for name, one in zip(names, seen, strict=True):
                traces[name].append(one)
            bar.advance(task)
    console.print(_verdicts(checks))
    kept_traces = {name: _one_story(rows) for name, rows in traces.items()}
    write_json(FINDINGS, {"checks": [_timeless(c) for c in checks], "traces": kept_traces})
    write_json(json, {"checks": checks, "traces": traces})
    return write(check_only=False)


def _one_story(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, with the story of the first violation alone (of the first latent finding if there is none)."""
    worst = next((r for v in (VIOLATION, LATENT) for r in rows if r["verdict"] == v), None)
    return [row if row is worst else {k: v for k, v in row.items() if k != "story"} for row in rows]


def _timeless(checked: dict[str, Any]) -> dict[str, Any]:
    return {key: checked[key] for key in ("release", "stem", "verdict", "known")}


def _checked(release: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "check.json"
        command = [sys.executable, "-m", "slotproof.cli", "check", "sglang", "--release", release, "--json", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not out.exists():
            raise ValueError(f"sglang {release}: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
        results = jsonlib.loads(out.read_text())["results"]
    keys = ("stem", "verdict", "law", "steps", "seconds")
    return [{"release": release, **{k: r[k] for k in keys}, "known": len(r["known"])} for r in results]


def _verdicts(checks: Iterable[dict[str, Any]]) -> Table:
    table = Table(title="SGLang releases", title_justify="left")
    for column in ("release", "stem", "verdict", "known differences", "steps", "seconds"):
        table.add_column(column)
    for c in checks:
        table.add_row(c["release"], c["stem"], c["verdict"], str(c["known"]), str(c["steps"]), str(c["seconds"]))
    return table

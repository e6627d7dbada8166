"""What every command shows alike: a console, a progress bar, JSON files, stories of traces."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from conformance.machine import Json, Trace
from conformance.story import as_test, tell

console = Console(width=None if os.isatty(1) else 120, highlight=False, soft_wrap=False)


def progress() -> Progress:
    """A bar on standard error, gone when the work is done."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)


def write_json(path: Path | None, data: Any) -> None:
    """Writes ``data`` for machines, if a file was named."""
    if path is not None:
        path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")


def choose(names: Iterable[str], known: Iterable[str], what: str) -> list[str]:
    """The named ones, all of them if none is named; ``ValueError`` for a name that does not exist."""
    known, names = list(known), list(names)
    for name in names:
        if name not in known:
            raise ValueError(f"no {what} {name!r}: there are {', '.join(known)}")
    return names or known


def story(trace: Trace, make: Callable[[Json], Any], subject: str, release: str | None) -> None:
    """The trace step by step, and the test that reproduces it."""
    config = ", ".join(f"{k}={v}" for k, v in trace.config.items())
    table = Table(title=f"{trace.stem}: {config}", title_justify="left", show_lines=True)
    for column in ("", "call", "what it changed"):
        table.add_column(column)
    for number, told in enumerate(tell(trace, make), start=1):
        wrong = f"\n[bold red]{told.wrong}[/]" if told.wrong else ""
        table.add_row(str(number), told.call, told.changed + wrong)
    console.print(table)
    console.print("The same as a test:", style="dim")
    console.print(as_test(trace, subject, release), markup=False)

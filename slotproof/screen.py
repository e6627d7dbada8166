"""What all commands share: the console, progress bars, tables, JSON files, and how a broken law is named."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from conformance.engines.protocol import Json
from conformance.lockstep import WORDS_OF_KIND
from conformance.traces import Trace

console = Console(width=None if os.isatty(1) else 120, highlight=False, soft_wrap=False)

# What was broken, by the kind of a finding; the name is that of a law or of a transition of the spec.


def broken(law: str | None, kind: str | None, quote: str = "") -> str:
    """What a finding broke, for example "promise of revive_tombstone"; "-" if nothing is broken."""
    if not law:
        return "-"
    return WORDS_OF_KIND.get(kind or "", "{}").format(f"{quote}{law}{quote}")


def progress() -> Progress:
    """A progress bar on standard error; it disappears when the work is done."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)


def table(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]], lines: bool = False) -> Table:
    """A table of plain text. An engine's messages may contain brackets, so no cell is read as markup."""
    made = Table(title=Text(title), title_justify="left", show_lines=lines)
    for column in columns:
        made.add_column(column)
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    return made


def write_json(path: Path | None, data: Any) -> None:
    """Writes ``data`` as JSON, if a file is given."""
    if path is not None:
        path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def choose(names: Iterable[str], known: Iterable[str], what: str) -> list[str]:
    """The given names, or all known names if none is given; ``ValueError`` for a name that is not known."""
    known, names = list(known), list(names)
    for name in names:
        if name not in known:
            raise ValueError(f"no {what} {name!r}: there are {', '.join(known)}")
    return names or known


def story(trace: Trace, make: Callable[[Json], Any], engine: str, release: str | None) -> None:
    """Prints each operation of the trace with what it changed, and a test that reproduces the finding."""
    from conformance.story.tell import as_test, tell

    rows = []
    for number, told in enumerate(tell(trace, make), start=1):
        changed = Text(told.changed)
        if told.wrong:
            changed.append(f"\n{told.wrong}", style="bold red")
        rows.append((number, told.call, changed))
    config = ", ".join(f"{name}={value}" for name, value in trace.config.items())
    console.print(table(f"{trace.stem}: {config}", ("", "operation", "what it changed"), rows, lines=True))
    console.print("A pytest test that fails while the finding is there:", style="dim")
    console.print(as_test(trace, engine, release), markup=False)

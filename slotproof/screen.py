"""What all commands share: the console, progress bars, tables, JSON files, and how a broken law is named.

No text is ever read as rich's markup, since an engine's messages and names may hold anything. So all commands print
with ``say`` and ``show``, never with the console itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from conformance.lockstep import WORDS_OF_KIND
from conformance.plain import LONGEST, printable
from conformance.traces import Trace

if TYPE_CHECKING:
    from conformance.story.tell import Told

console = Console(width=None if os.isatty(1) else 120, highlight=False, soft_wrap=False)


def say(*parts: str | tuple[str, str], style: str = "", wrap: bool = True) -> None:
    """Prints a line of plain text. A part is a text, or a text with its style. ``wrap``: long lines are broken at the
    width of the screen, and what is very long is cut; ``False`` for what is meant to be copied.
    """
    console.print(plain(*parts, style=style, cut=wrap), soft_wrap=not wrap)


def show(part: str | Table, on: Console | None = None) -> None:
    """Prints a text, as plain text, or a table that ``table`` made. ``on``: another console."""
    (on or console).print(plain(part) if isinstance(part, str) else part)


def plain(*parts: str | tuple[str, str], style: str = "", cut: bool = True) -> Text:
    """Plain text in which every character can be seen. A part is a text, or a text with its style. ``cut``: a part that
    is very long is cut.
    """
    made = Text(style=style)
    for part in parts:
        said, own = (part, "") if isinstance(part, str) else part
        made.append(printable(said, LONGEST if cut else None), own)
    return made


# What was broken, by the kind of a finding; the name is that of a law or of a transition of the spec.


def broken(law: str | None, kind: str | None, quote: str = "") -> str:
    """What a finding broke, for example "promise of revive_tombstone"; "-" if nothing is broken."""
    if not law:
        return "-"
    return WORDS_OF_KIND.get(kind or "", "{}").format(f"{quote}{law}{quote}")


class _Description(ProgressColumn):
    """What is being done, as plain text: it may be an engine's name."""

    def render(self, task: Task) -> Text:
        """The description on one line."""
        return plain(" ".join(task.description.split()))


def progress() -> Progress:
    """A progress bar on standard error; it disappears when the work is done."""
    columns = (
        SpinnerColumn(),
        _Description(),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)


def table(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]], lines: bool = False) -> Table:
    """A table of plain text; a cell that is a ``Text`` is one that ``plain`` made."""
    made = Table(title=plain(title), title_justify="left", show_lines=lines)
    for column in columns:
        made.add_column(plain(column))
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else plain(str(cell)) for cell in row))
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


def story(trace: Trace, told: Sequence[Told], test: str) -> None:
    """Prints each operation of the trace with the engine's functions that it called and with what it changed; and a
    test that reproduces the finding. ``told``: made by ``conformance.story.tell``, ``test`` by
    ``conformance.story.pasted``.
    """
    config = ", ".join(f"{name}={value}" for name, value in trace.config.items())
    rows = [(number, _operation(one)) for number, one in enumerate(told, start=1)]
    columns = ("", "operation, the engine's functions that it called, and what it changed")
    show(table(f"{trace.stem}: {config}", columns, rows, lines=True))
    say("A pytest test that fails while the finding is there:", style="dim")
    say(test, wrap=False)


def _operation(told: Told) -> Text:
    lines = [plain(told.call, style="bold"), *(plain(f"  {frame}", style="dim") for frame in told.engine)]
    if told.deeper:
        lines.append(plain("  … and functions that these called", style="dim"))
    lines += [plain(line) for line in told.changed.split("; ")]
    lines += [plain(line, style="bold red") for line in told.wrong.splitlines()]
    for number, raised in enumerate(told.raised):
        lines.append(plain(f"{'caused by ' if number else ''}{raised.what}", style="red"))
        lines += [plain(f"  {frame}", style="red") for frame in raised.frames]
    return Text("\n").join(lines)

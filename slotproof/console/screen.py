"""What all commands share: the console, colours, progress bars, tables, and how a broken law is named.

No text is ever read as rich's markup, since an engine's messages and names may hold anything. So all commands print
with ``say`` and ``show``, never with the console itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
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

from conformance.driver.lockstep import CONFORMS, LATENT, UNSUPPORTED, VIOLATION, WORDS_OF_KIND
from conformance.driver.naming import UsageError, unknown
from conformance.driver.printable import LONGEST, printable
from conformance.driver.trace import Trace
from slotproof.console.output import write_json

if TYPE_CHECKING:
    from conformance.telling.tell import ToldOperation

__all__ = ["broken", "choose", "graded", "literal", "progress", "say", "show", "story", "table", "write_json"]

PLAIN_WIDTH = 120  # characters a line, where the output is no terminal and COLUMNS is not set
FIXED = not os.isatty(1) and "COLUMNS" not in os.environ
console = Console(width=PLAIN_WIDTH if FIXED else None, highlight=False, soft_wrap=False)

UNCHANGED = (
    "The run called no function whose text differs from the base's: what changed is a constant, the body of a class, a "
    "function that is gone, or code that is not Python."
)
# Colours are left out where the output is no terminal or NO_COLOR is set; FORCE_COLOR brings them back (rich does it).
STYLES = {VIOLATION: "bold red", LATENT: "yellow", CONFORMS: "green", UNSUPPORTED: "dim"}


def say(*parts: str | tuple[str, str], style: str = "", wrap: bool = True) -> None:
    """Prints a line of plain text. A part is a text, or a text with its style. ``wrap``: long lines are broken at the
    width of the screen, and what is very long is cut; ``False`` for what is meant to be copied.
    """
    console.print(literal(*parts, style=style, cut=wrap), soft_wrap=not wrap)


def show(part: str | TableOfRows, on: Console | None = None) -> None:
    """Prints a text, as plain text, or a table that ``table`` made. ``on``: another console."""
    (on or console).print(literal(part) if isinstance(part, str) else part)


def literal(*parts: str | tuple[str, str], style: str = "", cut: bool = True) -> Text:
    """Plain text in which every character can be seen. A part is a text, or a text with its style. ``cut``: a part that
    is very long is cut.
    """
    made = Text(style=style)
    for part in parts:
        said, own = (part, "") if isinstance(part, str) else part
        made.append(printable(said, LONGEST if cut else None), own)
    return made


def graded(verdict: str) -> Text:
    """A verdict in the colour of its severity."""
    return Text(verdict, style=STYLES.get(verdict, ""))


def broken(law: str | None, kind: str | None, quote: str = "") -> str:
    """What a finding broke, for example "promise of revive_tombstone"; "-" if nothing is broken. ``kind`` is the kind
    of the finding; ``law`` is the name of a law or of a transition of the spec.
    """
    if not law:
        return "-"
    return WORDS_OF_KIND.get(kind or "", "{}").format(f"{quote}{law}{quote}")


class _Description(ProgressColumn):
    """What is being done, as plain text: it may be an engine's name."""

    def render(self, task: Task) -> Text:
        """The description on one line."""
        return literal(" ".join(task.description.split()))


def progress() -> Progress:
    """A progress bar on standard error, if that is a terminal; it disappears when the work is done."""
    columns = (
        SpinnerColumn(),
        _Description(),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not os.isatty(2))


class TableOfRows:
    """A table in which no word is cut; where the console is too narrow for it, a list with one line for each cell."""

    def __init__(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Text]], lines: bool) -> None:
        self.title, self.columns, self.rows, self.lines = title, columns, rows, lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = self._widths(options.max_width - 3 * len(self.columns) - 1)  # without borders and padding
        if widths is None:
            yield from self._list()
        else:
            yield self._table(widths)

    def _widths(self, room: int) -> list[int] | None:
        """The width of each column: the widest are made narrower until all fit, but none is narrower than its longest
        word. ``None`` if they cannot fit.
        """
        columns = [*zip(map(Text, self.columns), *self.rows, strict=True)]
        least = [_longest(column, str.split) for column in columns]
        full = [_longest(column, str.splitlines) for column in columns]

        def under(cap: int) -> list[int]:
            return [max(low, min(high, cap)) for low, high in zip(least, full, strict=True)]

        if sum(least) > room:
            return None
        cap = max((cap for cap in range(1, room + 1) if sum(under(cap)) <= room), default=1)
        widths = under(cap)
        for number, high in enumerate(full):
            if widths[number] == cap < high and sum(widths) < room:
                widths[number] += 1
        return widths

    def _table(self, widths: Sequence[int]) -> Table:
        made = Table(title=Text(self.title), title_justify="left", show_lines=self.lines)
        for column, width in zip(self.columns, widths, strict=True):
            made.add_column(column, width=width)
        for row in self.rows:
            made.add_row(*row)
        return made

    def _list(self) -> Iterable[Any]:
        """The first cell of each row, and below it each other cell with the name of its column."""
        yield Text(self.title, style="italic")
        for first, *others in self.rows:
            yield first
            for name, cell in zip(self.columns[1:], others, strict=True):
                if cell.plain not in ("", "-"):
                    yield Padding(Text.assemble((f"{name}: ", "dim"), cell, overflow="fold"), (0, 0, 0, 2))


def _longest(cells: Iterable[Text], parts: Callable[[str], list[str]]) -> int:
    """The characters of the longest part of the cells."""
    return max((cell_len(part) for cell in cells for part in parts(cell.plain)), default=1)


def table(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]], lines: bool = False) -> TableOfRows:
    """A table of plain text, with verdicts in the colour of their severity. A cell that is a ``Text`` is one that
    ``plain`` made.
    """
    return TableOfRows(printable(title), [*columns], [[_cell(cell) for cell in row] for row in rows], lines)


def _cell(value: object) -> Text:
    if isinstance(value, Text):
        return value
    return graded(value) if isinstance(value, str) and value in STYLES else literal(str(value))


def choose(names: Iterable[str], known: Iterable[str], what: str) -> list[str]:
    """The given names, or all known names if none is given; ``UsageError`` for a name that is not known, or is given
    twice.
    """
    known, names = list(known), list(names)
    for number, name in enumerate(names):
        if name not in known:
            raise UsageError(unknown(what, name, known))
        if name in names[:number]:
            raise UsageError(f"the {what} {name} is named twice")
    return names or known


def story(trace: Trace, told: Sequence[ToldOperation], test: str) -> None:
    """Prints each operation of the trace with the engine's functions that it called and with what it changed; and a
    test that reproduces the finding. ``told``: made by ``conformance.telling.tell``, ``test`` by
    ``conformance.telling.pasted``.
    """
    config = ", ".join(f"{name}={value}" for name, value in trace.config.items())
    functions = [frame for one in told for frame in one.functions]
    folded = any(frame.changed for frame in functions)
    rows = [(number, _operation(one, folded)) for number, one in enumerate(told, start=1)]
    columns = ("", "operation, the engine's functions that it called, and what it changed")
    if rows:
        show(table(f"{trace.stem}: {config}", columns, rows, lines=True))
    else:
        say(f"{trace.stem}: {config} (the time was over before the operations were told one by one)")
        for number, line in enumerate(trace.lines(), start=1):
            say(f"  {number}. {line}")
    if not folded and any(frame.changed is not None for frame in functions):
        say(UNCHANGED, style="dim")
    say("A pytest test that fails while the finding is there:", style="dim")
    say(test, wrap=False)


def _operation(told: ToldOperation, folded: bool) -> Text:
    """One operation. ``folded``: of the functions that it called only the changed ones are named."""
    lines = [literal(told.call, style="bold"), *(_changed(told) if folded else _called(told))]
    lines += [literal(line) for line in told.changed.split("; ")]
    lines += [literal(line, style="bold red") for line in told.wrong.splitlines()]
    for number, raised in enumerate(told.raised):
        lines.append(literal(f"{'caused by ' if number else ''}{raised.what}", style="red"))
        lines += [literal(f"  {frame}{' (changed)' if frame.changed else ''}", style="red") for frame in raised.frames]
    return Text("\n").join(lines)


def _called(told: ToldOperation) -> list[Text]:
    lines = [literal(f"  {frame}", style="dim") for frame in told.engine]
    return [*lines, *([literal("  … and functions that these called", style="dim")] if told.deeper else [])]


def _changed(told: ToldOperation) -> list[Text]:
    changed = [frame for frame in told.functions if frame.changed]
    others = len(told.functions) - len(changed)
    lines = [
        literal(f"  changed: {frame.file}:{frame.line} {frame.function}", style="bold yellow") for frame in changed
    ]
    more = f"  {'… and ' if changed else ''}{others} functions that did not change (--json lists them)"
    return [*lines, *([literal(more, style="dim")] if others else [])]

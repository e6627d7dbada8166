"""What is printed: no text of an engine is read as markup or steers the terminal, whatever it is."""

from __future__ import annotations

import ast
import io
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from rich.progress import ProgressColumn

from conformance.driver.printable import first_line, message_of, printable, without_addresses
from conformance.engines import registry
from conformance.engines.toy import ToyAllocator
from conformance.search import judge
from conformance.search.connection import Subject
from slotproof.checks import checking, emit
from slotproof.console import screen

ROOT = Path(__file__).parents[1]
NAME = "bold [/x]"  # a name that rich cannot read as markup: it closes what was not opened
HOSTILE = "[/x] [red] [int64] \x1b[31mred\x1b[0m \x07\x9b2J \u202eback\rover\nsecond [/] line\n" + "long " * 4_000
SHOWN = ("[/x] [red] [int64]", "\\x1b[31mred\\x1b[0m", "\\x07\\x9b2J", "\\u202eback")


class Hostile(ToyAllocator):
    """An allocator whose ``free`` raises an exception with a message of every kind."""

    def free(self, _slots: Any) -> None:
        raise ValueError(HOSTILE)


class Unsayable(Exception):
    """An exception of which no message can be made."""

    def __str__(self) -> str:
        raise RuntimeError("no message")


class Silent(ToyAllocator):
    """An allocator whose ``free`` raises an exception of which no message can be made."""

    def free(self, _slots: Any) -> None:
        raise Unsayable


def hostile(config: Any) -> Hostile:
    return Hostile(config["size"], config["page_size"])


def silent(config: Any) -> Silent:
    return Silent(config["size"], config["page_size"])


PLUGIN = registry.SimplePlugin(NAME, {"allocator": hostile})
SILENT = registry.SimplePlugin("silent", {"allocator": silent})


def checked(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> int:
    """The exit code of a check of an engine that is registered as ``value``. The engine runs in this process."""
    monkeypatch.setattr(registry, "entry_points", lambda group: [EntryPoint(name, f"{__name__}:{value}", group)])
    loaded = registry.load(name)
    asked = {"stem": "allocator", "engine": name, "listed": None, "examples": 20, "steps": 0}
    judged = judge.alone(loaded, {**asked, "seed": None, "seconds": None, "strict": False}, lambda *_: None)
    hello = {"label": loaded.label, "own": False, "roots": [], "isolation": {"network": "none", "home": "none"}}
    bench = SimpleNamespace(subject=SimpleNamespace(hello=hello), base=None, why="", own=False, repairs=())
    options = checking.CheckOptions(Subject(name))
    report = {**checking._report([judged], bench, options, 1.0), "over": 0.0}  # type: ignore[arg-type]
    emit.show(report, emit.TEXT)
    return int(report["exit"])


def unprintable(text: str) -> set[str]:
    return {character for character in text if character != "\n" and not character.isprintable()}


@pytest.mark.parametrize("terminal", [False, True])
def test_a_check_of_an_engine_that_says_anything(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = io.StringIO()
    page = Console(file=out, width=200, force_terminal=terminal, color_system=None, highlight=False)
    monkeypatch.setattr(screen, "console", page)
    assert checked(monkeypatch, NAME, "PLUGIN") == 1
    said = out.getvalue()
    assert NAME in said
    for part in SHOWN:
        assert part in said, part
    assert "second [/] line" in said
    assert unprintable(said) == set()
    assert len(said) < 30_000, "very long text is cut"
    assert "more characters)" in said
    assert capsys.readouterr().err == ""


def test_an_exception_without_a_message_is_said(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    assert checked(monkeypatch, "silent", "SILENT") == 1
    assert "Unsayable: (its message cannot be made: RuntimeError)" in capsys.readouterr().out


def test_a_progress_bar_reads_no_markup() -> None:
    bar = screen.progress()
    bar.add_task(f"{NAME} \x1b[31m\n[red]")
    column = bar.columns[1]
    assert isinstance(column, ProgressColumn)
    assert str(column.render(bar.tasks[0])) == f"{NAME} \\x1b[31m [red]"


def test_what_is_meant_to_be_copied_is_neither_wrapped_nor_cut(capsys: pytest.CaptureFixture[str]) -> None:
    line = "[red] " * 2_000
    screen.say(line, wrap=False)
    assert capsys.readouterr().out == line + "\n"


PRINTABLE = {
    "plain text → é 中": "plain text → é 中",
    "a\tb": "a    b",
    "a\r\nb": "a\nb",
    "\x00\x1b\x7f\x85": "\\x00\\x1b\\x7f\\x85",
    "\u2028\u200b\ufeff": "\\u2028\\u200b\\ufeff",
    "\ud800": "\\ud800",
}


@pytest.mark.parametrize(("text", "shown"), PRINTABLE.items(), ids=map(ascii, PRINTABLE))
def test_a_character_that_is_not_printed_is_an_escape(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(printable(text)) == shown


def test_long_text_is_cut_and_says_so() -> None:
    assert printable("ab" * 10, longest=3) == "aba… (17 more characters)"
    assert printable("abc", longest=3) == "abc"
    assert printable("a" * 9_999, longest=None) == "a" * 9_999


def test_the_first_line_is_the_first_that_says_something() -> None:
    assert first_line("\n  \nfirst\nsecond") == "first"
    assert first_line("") == first_line("\n") == ""
    assert message_of(ValueError("a")) == "a"


# Every command prints with ``say`` and ``show``.


def printing(folder: Path) -> Iterator[str]:
    """The places at which a console of rich is told to print, or makes its own columns of a progress bar."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in ("print", "print_json", "log", "rule", "out"):
                yield f"{path.name}:{node.lineno}"
            if isinstance(node, ast.Name) and node.id == "TextColumn":
                yield f"{path.name}:{node.lineno}"


def test_only_the_screen_prints() -> None:
    assert {place.split(":")[0] for place in printing(ROOT / "slotproof")} == {"screen.py"}


def test_a_print_with_markup_is_seen(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text('console.print("[red]")\nbar = TextColumn("x")\n')
    assert list(printing(tmp_path)) == ["one.py:1", "one.py:2"]


def test_two_equal_runs_say_one_thing_of_an_object() -> None:
    said = {without_addresses(str(KeyError(object()))) for _ in range(3)}
    assert said == {"<object object>"}
    assert without_addresses("page 0x10 at 12") == "page 0x10 at 12"

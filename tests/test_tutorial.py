"""How docs/your-engine.md is played. That its commands print what the page says, `slotproof docs --check` finds out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slotproof.pages.tutorial import changed, played, steady

PAGE = Path(__file__).resolve().parents[1] / "docs" / "your-engine.md"


def test_the_page_has_commands_that_are_run() -> None:
    assert PAGE.read_text(encoding="utf-8").count("<!-- run") == 5


@pytest.mark.soak
def test_the_laws_that_are_tried_print_what_the_page_shows() -> None:
    """A new law, one that follows from others and a false one, each proved on the small stem."""
    text = PAGE.with_name("adding-a-law.md").read_text(encoding="utf-8")
    assert text.count("<!-- run") == 6
    assert played(text) == text


def test_a_tutorial_whose_command_prints_something_else_is_made_anew() -> None:
    text = "<!-- file: a.txt -->\n```\nhello\n```\n\n<!-- run -->\n```\n$ cat a.txt; pwd\nfarewell\n```\n"
    assert played(text) == text.replace("farewell", "hello\n.")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<!-- run -->\n```\n$ exit 3\n```\n", "exit code 3, expected 0"),
        ("<!-- run, exit 1 -->\n```\n$ true\n```\n", "exit code 0, expected 1"),
        ("<!-- run -->\n```\necho\n```\n", "begins with `\\$ `"),
        ("<!-- run -->\n```\n$ echo\n```\n<!-- paste: test_a.py -->\n", "has printed 0 tests"),
    ],
)
def test_a_tutorial_that_goes_another_way_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        played(text)


def test_a_change_must_fit() -> None:
    assert changed("a\nb\nc\n", "-b\n+d\n+e\n") == "a\nd\ne\nc\n"
    for text in ("a\n", "b\nb\n"):
        with pytest.raises(ValueError, match="times in the file, expected once"):
            changed(text, "-b\n+d\n")


def test_times_and_folders_are_left_out(tmp_path: Path) -> None:
    waits = "slotproof: waits for a:make to be loaded (9 s so far)\n"
    tables = "│ pool │ 3.25 │ 12.5    │\n│ take │ 0.31 │ a_law, no_leak │\n"
    printed = f"{waits}{tmp_path}/a.py: holds (12.5 s)   \n{tables}1 passed in 0.31s\n"
    shown = "│ pool │ 3.25 │ …       │\n│ take │ …    │ a_law, no_leak │\n"
    assert steady(printed, tmp_path) == f"a.py: holds (… s)\n{shown}1 passed in …s\n"


DOCS = PAGE.parent
COMMAND = re.compile(r"^(?P<before>.*)\n```\w*\n\$ (?:slotproof|pytest)", re.MULTILINE)
READ = re.compile(r"^\d\. \[.*\]\((.*)\)", re.MULTILINE)


def test_every_command_that_a_page_shows_with_its_output_is_run() -> None:
    for path in DOCS.glob("*.md"):
        for shown in COMMAND.finditer(path.read_text(encoding="utf-8")):
            assert shown["before"].startswith(("<!-- run", "<!-- generated: ")), f"{path.name}: {shown[0]}"


def test_the_pages_that_read_in_order_are_there() -> None:
    pages = READ.findall((DOCS / "README.md").read_text(encoding="utf-8"))
    assert len(pages) == 7
    assert [name for name in pages if not (DOCS / name).is_file()] == []


def test_the_glossary_is_in_order_and_has_each_word_once() -> None:
    words = re.findall(r"^\| ([^|]+) \|", (DOCS / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE)[2:]
    assert words == sorted({*words}, key=str.lower)

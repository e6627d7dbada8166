"""The text that ``slotproof diff`` prints."""

from __future__ import annotations

from conformance.driver.protocol import Json
from slotproof.console.screen import say
from slotproof.review.diff_words import example, grouped, more, sides, summary, title


def show(report: Json) -> None:
    """Prints every change, the gravest first."""
    say(f"The law: {report['base']['why']} → {report['head']['why']}", style="bold")
    for heading, rows in grouped(report):
        say("")
        say(heading, style="bold")
        for row in rows:
            _row(row)
    say("")
    say(summary(report))


def _row(row: Json) -> None:
    say("")
    say(title(row), style="yellow")
    for word, sentence, formula in sides(row):
        _indented((f"{word}: {sentence}" if sentence else f"{word}:"), *_lines(formula))
    _indented(*more(row))
    for helper in row["helpers"]:
        _indented(f"made of {helper['name']}, which changed:", *_was(helper))
    for shown in row["examples"]:
        _indented(shown["shows"], *(f"  {line}" for line in example(shown["values"])))


def _was(helper: Json) -> list[str]:
    return [f"  {word} │ {line}" for word in ("old", "new") for line in helper[word].splitlines()]


def _lines(formula: str) -> list[str]:
    return [f"  │ {line}" for line in formula.splitlines()]


def _indented(*lines: str) -> None:
    for line in lines:
        say(f"  {line}", wrap=False)

"""The report of ``slotproof check`` for GitHub Actions: annotations, and the summary of a step in Markdown.

GitHub Actions reads lines of the output as commands, such as ``::error::message``. So every text that may come from an
engine is escaped here, and everything else is printed between ``stop`` and ``resume``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from conformance.driver.lockstep import VIOLATION
from conformance.driver.printable import printable
from conformance.driver.protocol import Json
from conformance.search.ran import in_words
from conformance.traces.trace_files import LISTS
from slotproof.checks import remarks, weigh
from slotproof.checks.junit import changed, told
from slotproof.console.screen import broken

ERROR, WARNING, NOTICE = "error", "warning", "notice"
LONGEST_SUMMARY = 500_000  # characters; GitHub refuses a summary of more than 1 MiB
LONGEST_FINDING = 8_000  # characters of one finding in the summary


def stop(token: str) -> str:
    """The line after which no line is read as a command, until ``resume(token)``."""
    return f"::stop-commands::{token}"


def resume(token: str) -> str:
    """The line after which lines are read as commands again."""
    return f"::{token}::"


def annotated(report: Json) -> Iterator[str]:
    """A line for each finding that is not known, and for each stem without a verdict; errors first.

    GitHub shows at most ten errors, ten warnings and ten notices of a step.
    """
    found = [(level(name, row, report), name, row) for name in LISTS for row in report[name]]
    for wanted in (ERROR, WARNING, NOTICE):
        for graded, name, row in found:
            if graded == wanted:
                title = f"{row['stem']}: {broken(row['law'], row['kind'])} ({name}, {row['severity']})"
                if hides := remarks.hides(name, row, report):
                    title = f"{hides}: {title}"
                yield _line(graded, title, "\n".join(told(row)), place(row, report))
        if wanted == WARNING:
            for result in report["results"]:
                if reason := weigh.undecided(result, report):
                    yield _line(WARNING, f"{result['stem']}: no verdict", reason, None)


def failed(message: str) -> str:
    """The annotation for a check that could not be done."""
    return _line(ERROR, "slotproof check", message, None)


def annotation(grade: str, title: str, message: str) -> str:
    """An annotation of a step that has no place in a file."""
    return _line(grade, title, message, None)


def level(name: str, row: Json, report: Json) -> str:
    """The level of a finding, empty for one that needs no annotation."""
    if weigh.fails(name, row, report):
        return ERROR
    if name in ("new", "worse") or (remarks.hides(name, row, report) and row["severity"] == VIOLATION):
        return WARNING
    return "" if name == "known" else NOTICE


def place(row: Json, report: Json) -> tuple[str, int] | None:
    """File and line in the engine for a finding. ``None`` where no such place is known, and for a release, which is no
    file of a checkout.

    The file is relative to the root of the git checkout; without a checkout, to the folder of the source.
    """
    source = report["subject"]["source"]
    if source is None and not report["subject"]["own"]:
        return None
    found = frame(row)
    file = found and file_of(found, report)
    return (_relative(file, source), int(found["line"])) if found and file else None


def frame(row: Json) -> Json | None:
    """The function of the engine that stands for a finding: where its exception was raised, else the last function that
    the run called and whose text differs from the base's, else the deepest function that its last operation called.
    ``None`` if none of them is known.
    """
    if not row["story"]:
        return None
    last = row["story"][-1]
    passed: list[Json] = next((raised["frames"] for raised in last["raised"] if raised["frames"]), [])
    deepest = max(last["engine"], key=lambda called: int(called["depth"]), default=None)
    return passed[-1] if passed else next(reversed(changed(row)), deepest)


def file_of(found: Json, report: Json) -> Path | None:
    """The file of a frame, which is named relative to one of the roots; a root can be a file."""
    roots, name = [Path(root) for root in report["subject"]["roots"]], found["file"]
    places = (root if root.name == name and root.is_file() else root / name for root in roots)
    return next((place for place in places if place.is_file()), None)


def in_checkout(file: Path, source: str | None) -> str | None:
    """The file relative to the root of the git checkout of ``source``, or of the current folder without one; without a
    checkout, to that folder. ``None`` if it is not below it.
    """
    folder = Path(source or ".").resolve()
    root = next((place for place in (folder, *folder.parents) if (place / ".git").exists()), folder)
    found = file.resolve()
    return found.relative_to(root).as_posix() if found.is_relative_to(root) else None


def _relative(file: Path, source: str | None) -> str:
    checkout = next((folder for folder in file.parents if (folder / ".git").exists()), None)
    root = checkout or (Path(source).resolve() if source else file.parent)
    return (file.relative_to(root) if file.is_relative_to(root) else file).as_posix()


def _line(grade: str, title: str, message: str, where: tuple[str, int] | None) -> str:
    properties = {} if where is None else {"file": where[0], "line": str(where[1])}
    said = ",".join(f"{key}={_property(value)}" for key, value in {**properties, "title": title}.items())
    return f"::{grade} {said}::{_data(message)}"


def _data(text: str) -> str:
    """A message as GitHub reads it back."""
    return printable(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """The value of a property as GitHub reads it back."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")


# The summary of a step.


def summary(report: Json) -> str:
    """The report in Markdown. Text that may come from an engine stands in code, where nothing is read as Markdown."""
    parts = list(_parts(report))
    made, left = "", 0
    for part in parts:
        if left or len(made) + len(part) > LONGEST_SUMMARY:
            left += 1
        else:
            made += part
    return made + (f"\n{left} more parts are left out: the report of `--json` has them.\n" if left else "")


def _parts(report: Json) -> Iterator[str]:
    subject, base = report["subject"], report["base"]
    beside = f", compared with {_code(base['why'])}" if base else ""
    yield f"## Slotproof: {_code(subject['label'])}{beside}\n\n{_code(report['reason'])}\n\n"
    yield "| stem | verdict | runs | operations | refused | new | worse | incomparable | known | gone |\n"
    yield "|---|---|---|---|---|---|---|---|---|---|\n"
    for r in report["results"]:
        verdict = weigh.undecided(r, report) or r["verdict"]
        cells = [r["stem"], verdict, *(r[key] for key in ("runs", "steps", "refused", *LISTS))]
        yield f"| {' | '.join(str(cell) for cell in cells)} |\n"
    for line in (*_ran(report), *subject["notes"]):
        yield f"\n{_code(line)}\n"
    for name in LISTS:
        for row in report[name]:
            if name == "known" and not weigh.fails(name, row, report):
                continue
            sign = ":x:" if row["severity"] == VIOLATION and weigh.fails(name, row, report) else ":warning:"
            hides = remarks.hides(name, row, report)
            title = (
                f"{sign} {hides or name}: {row['stem']}: {_code(broken(row['law'], row['kind']))} ({row['severity']})"
            )
            yield f"\n<details><summary>{title}</summary>\n\n{_fenced(told(row))}\n</details>\n"
    yield "\n"


def _ran(report: Json) -> Iterator[str]:
    """What of the engine ran, a line for all stems on which it was one and the same."""
    stems: dict[str, list[str]] = {}
    for result in report["results"]:
        if result["ran"]:
            stems.setdefault(in_words(result["ran"]), []).append(result["stem"])
    yield from (f"ran: {words} ({', '.join(names)})" for words, names in stems.items())


def _code(text: str) -> str:
    """Text on one line as HTML code, which GitHub shows as it is, in a table, a heading and a summary alike."""
    line = " ".join(printable(text).split())
    shown = "".join(
        character if character.isalnum() or character == " " else f"&#{ord(character)};" for character in line
    )
    return f"<code>{shown}</code>"


def _fenced(lines: list[str]) -> str:
    """Text in a fence that is longer than every run of backticks in it."""
    text = printable("\n".join(lines), LONGEST_FINDING)
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"

"""Where the report of ``slotproof check`` goes: first to files, then to the screen, so that printing loses nothing."""

from __future__ import annotations

import atexit
import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from conformance.driver.protocol import EngineError, Json
from slotproof.checks import github, junit, sarif, verdicts
from slotproof.console.output import write_json, write_text

TEXT, GITHUB = "text", "github"  # the values of --format
SUMMARY = "GITHUB_STEP_SUMMARY"  # the environment variable that names the file of the summary


@contextmanager
def muted(form: str) -> Iterator[None]:
    """For ``GITHUB``: GitHub Actions reads nothing that is printed in the block as a command, whatever the text of an
    engine holds. If an exception leaves the block, the rest of what the process prints is not read as commands either;
    and if an engine could not be loaded, an annotation says so.
    """
    if form != GITHUB:
        yield
        return
    token = secrets.token_hex(16)  # an engine cannot know it
    _print(github.stop(token))
    try:
        yield
    except BaseException as error:
        if isinstance(error, EngineError):
            for line in (github.resume(token), github.failed(str(error)), github.stop(token)):
                _print(line)
        atexit.register(_print, github.resume(token))
        raise
    _print(github.resume(token))


def summary_file() -> Path | None:
    """The file of the summary of the step, where GitHub Actions runs."""
    named = os.environ.get(SUMMARY)
    return Path(named) if named else None


def write(report: Json, json: Path | None, junit_file: Path | None, form: str, sarif_file: Path | None = None) -> None:
    """Writes the files that were asked for; for ``GITHUB`` also adds to the summary of the step, where there is one.

    Raises ``OSError`` or ``UsageError`` if a file cannot be written, after all others were tried.
    """
    with ExitStack() as tasks:  # the last one is done first, and each is done although another fails
        summary = summary_file()
        if form == GITHUB and summary is not None:
            tasks.callback(lambda: append(summary, github.summary(report)))
        if junit_file is not None:
            tasks.callback(lambda: write_text(junit_file, junit.text(report)))
        if sarif_file is not None:
            tasks.callback(lambda: write_json(sarif_file, sarif.document(report)))
        tasks.callback(lambda: write_json(json, report))


def show(report: Json, form: str) -> None:
    """Prints the report, for ``GITHUB`` after its annotations."""
    if form == GITHUB:
        for line in github.annotated(report):
            print(line, flush=True)
    with muted(form):
        verdicts.show_report(report)


def append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def _print(line: str) -> None:
    """Prints a line. A full or closed standard output must not stop the work before its files are written."""
    with suppress(OSError):
        print(line, flush=True)

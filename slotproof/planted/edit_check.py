"""Judges one edit of an engine as a user would: ``slotproof check ENGINE --source COPY --base RELEASE``.

The check runs with default options in a process of its own, whose engines can be killed with it. Runs that failed on
another edit are not replayed first, since the answer would depend on which edits came before.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conformance.driver.naming import UsageError
from conformance.driver.protocol import EngineError, Json
from conformance.planted.mutants import edits, outcomes
from conformance.planted.mutants.outcomes import HANGS, NO_VERDICT
from conformance.planted.mutants.places import CodeMutant
from conformance.search.connection import Subject
from slotproof.checks import checking

MEMORY = 8 << 30  # bytes of address space of each process of a check; an engine that is driven needs about 1 GiB
LONGEST = 10 * checking.DEFAULT_BUDGET  # seconds after which a check has no end


@contextmanager
def edited(root: Path, changed: dict[str, bytes]) -> Iterator[Path]:
    """A folder with a copy of the package ``root`` in which files are changed; see ``edits.copy``."""
    with tempfile.TemporaryDirectory(prefix="slotproof-edit-") as made:
        yield edits.copy(root, Path(made), changed)


def judged(engine: str, release: str, root: Path, mutant: CodeMutant, first: bool) -> Json:
    """What a check says of an edit of the release whose package is ``root``, as a row of ``slotproof mutate engine``.
    ``first``: the check ends with the first new violation.
    """
    begun, spot = time.monotonic(), mutant.spot
    with edited(root, {spot.file: mutant.text.encode()}) as source:
        said = report_of(engine, release, source, first)
    if "report" in said:
        outcome = outcomes.of_report(said["report"], spot.file, spot.function)
    else:
        outcome = outcomes.without_report(HANGS if said["hangs"] else NO_VERDICT, said["error"])
    return {
        **{"edit": edits.identity(spot), "file": spot.file, "line": spot.place[0][0], "function": spot.function},
        **{"operator": spot.operator, "words": edits.in_words(mutant), "was": mutant.was, "now": mutant.now},
        **{**outcome, "seconds": round(time.monotonic() - begun, 1)},
    }


def report_of(engine: str, release: str, source: Path, first: bool = False, limit: float = LONGEST) -> Json:
    """The report of a check of the folder ``source`` beside a release, as ``{"report": ...}``; where it ends without
    one ``{"error": why, "hangs": whether it took longer than ``limit`` seconds}``.
    """
    with tempfile.TemporaryDirectory(prefix="slotproof-check-") as scratch:
        answer, log = Path(scratch) / "answer.json", Path(scratch) / "log"
        wanted = [engine, release, str(source), str(int(first)), str(answer)]
        environment: dict[str, str] = {
            **os.environ,
            "TMPDIR": scratch,
        }  # what a killed check leaves behind is removed with it
        with log.open("w") as out:
            command, nothing = [sys.executable, "-m", __name__, *wanted], subprocess.DEVNULL
            process = subprocess.Popen(command, stdin=nothing, stdout=out, stderr=out, env=environment)
            try:
                process.wait(limit)
            except subprocess.TimeoutExpired:
                return {"error": f"no end within {limit:g} s", "hangs": True}
            finally:
                process.kill()  # the engines end when this process has gone
                process.wait()
        if answer.exists():
            said: Json = json.loads(answer.read_text(encoding="utf-8"))
            return said
        lines = log.read_text(errors="replace").strip().splitlines() or ["no message"]
        return {"error": f"the process of the check ended with {process.returncode}: {lines[-1]}", "hangs": False}


def main() -> None:
    """The process of a check: writes its report, or the error."""
    engine, release, source, first, answer = sys.argv[1:]
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, most))
    try:
        said: Json = {"report": checking.report_of(options(engine, release, Path(source), first == "1"))}
    except (EngineError, UsageError) as error:
        said = {"error": str(error), "hangs": False}
    except Exception as error:
        said = {"error": f"Slotproof itself failed: {type(error).__name__}: {error}", "hangs": False}
    Path(answer).write_text(json.dumps(said), encoding="utf-8")


def options(engine: str, release: str, source: Path, first: bool) -> checking.CheckOptions:
    """What ``slotproof check ENGINE --source COPY --base RELEASE`` asks for."""
    budget = checking.seconds(None, source)
    workers, subject = checking.workers(), Subject(engine, source=source)
    return checking.CheckOptions(subject, base=release, budget=budget, workers=workers, again=False, first=first)


if __name__ == "__main__":
    main()

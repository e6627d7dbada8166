"""Judges one edit of an engine as a user would: ``slotproof check ENGINE --source COPY --base RELEASE``.

The check runs with default options in a process of its own, whose engines can be killed with it. Runs that failed on
another edit are not replayed first, since the answer would depend on which edits came before.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from conformance.connection import Subject
from conformance.engines.protocol import EngineError, Json
from conformance.mutants import edits, outcomes
from conformance.mutants.outcomes import HANGS, NO_VERDICT
from conformance.mutants.places import Mutant
from conformance.naming import UsageError
from slotproof import checking

MEMORY = 8 << 30  # bytes of address space of each process of a check; an engine that is driven needs about 1 GiB
LONGEST = 10 * checking.DEFAULT_BUDGET  # seconds after which a check has no end


@contextmanager
def edited(root: Path, changed: dict[str, bytes]) -> Iterator[Path]:
    """A folder with a copy of the package ``root`` in which files are changed; see ``edits.copy``."""
    with tempfile.TemporaryDirectory(prefix="slotproof-edit-") as made:
        yield edits.copy(root, Path(made), changed)


def judged(engine: str, release: str, root: Path, mutant: Mutant, first: bool) -> Json:
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
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="slotproof-check-") as scratch:
        process = context.Process(target=_answer, args=(send, engine, release, source, first, scratch))
        process.start()
        send.close()
        try:
            if receive.poll(limit):
                said: Json = receive.recv()
            else:
                said = {"error": f"no end within {limit:g} s", "hangs": True}
        except EOFError:
            process.join()
            said = {"error": f"the process of the check ended with {process.exitcode}", "hangs": False}
        finally:
            process.kill()  # the engines end when this process has gone
            process.join()
            receive.close()
    return said


def _answer(to: Connection, engine: str, release: str, source: Path, first: bool, scratch: str) -> None:
    silent = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silent, stream)
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, most))
    os.environ["TMPDIR"] = tempfile.tempdir = scratch  # what a killed check leaves behind is removed with it
    try:
        to.send({"report": checking.report_of(options(engine, release, source, first))})
    except (EngineError, UsageError) as error:
        to.send({"error": str(error), "hangs": False})
    except Exception as error:
        to.send({"error": f"Slotproof itself failed: {type(error).__name__}: {error}", "hangs": False})


def options(engine: str, release: str, source: Path, first: bool) -> checking.Options:
    """What ``slotproof check ENGINE --source COPY --base RELEASE`` asks for."""
    budget = checking.seconds(None, source)
    workers, subject = checking.workers(), Subject(engine, source=source)
    return checking.Options(subject, base=release, budget=budget, workers=workers, again=False, first=first)

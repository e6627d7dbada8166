"""Which lines of an engine's release are executed while it is driven: by its kept traces, and by drawn runs.

They are measured with ``coverage``, in a process of its own, once the release has been imported and an engine of each
kept trace has been made. What is executed later because a module is imported late is not counted: of a file only the
statements in bodies of functions count (``edits.driven_lines``).
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from conformance import traces
from conformance.check import Search, draw
from conformance.collector import collect_rarely
from conformance.engines import registry
from conformance.engines.protocol import EngineError, Json
from conformance.isolation import isolate
from conformance.machine import Sink
from conformance.outcome import outcome

RUNS = 40  # drawn runs of each stem
SEED = 0


@dataclass(frozen=True)
class Driven:
    """``root``: the folder of the engine's package. ``lines``: by file below it, with ``/``, the numbers of the lines
    that were executed.
    """

    root: Path
    lines: Mapping[str, list[int]]


def driven(engine: str, release: str, runs: int = RUNS) -> Driven:
    """Drives a release with all kept traces of its stems and with so many drawn runs of each stem, and returns what was
    executed. Raises ``EngineError`` if the release cannot be loaded or driven.
    """
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="slotproof-driven-") as scratch:
        process = context.Process(target=_answer, args=(send, engine, release, runs, Path(scratch)))
        process.start()
        send.close()
        try:
            said: Json = receive.recv()
        except EOFError:
            process.join()
            said = {"error": f"{engine} {release}: its process ended with {process.exitcode} while it was driven"}
        finally:
            process.kill()
            process.join()
            receive.close()
    if "error" in said:
        raise EngineError(said["error"])
    return Driven(Path(said["root"]), said["lines"])


def _answer(to: Connection, engine: str, release: str, runs: int, scratch: Path) -> None:
    """Sends the folder of the package and the executed lines by file, or the error."""
    silent = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # what an engine prints is for nobody
        os.dup2(silent, stream)
    collect_rarely()
    registry.fetch(engine, release)
    isolate(scratch)
    try:
        loaded = registry.load(engine, release)
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)
        to.send({"root": str(loaded.roots[0].resolve()), "lines": executed(loaded, runs)})
    except EngineError as error:
        to.send({"error": str(error)})


def executed(loaded: registry.Loaded, runs: int) -> dict[str, list[int]]:
    """The lines below the first of ``Loaded.roots`` that are executed in this process by kept traces and drawn runs.

    A run goes on past what breaks a law, as it does in ``slotproof check --base``. Of a kept trace for which the
    release can have no verdict, the part before is counted.
    """
    from coverage import Coverage

    kept = [one.trace for one in traces.every() if one.trace.stem in loaded.makers]
    for trace in kept:
        with suppress(Exception):  # a configuration that the release does not have; only imports are wanted here
            loaded.makers[trace.stem](trace.config)
    root = loaded.roots[0].resolve()
    measured = Coverage(data_file=None, config_file=False, source=[str(root)])
    measured.start()
    try:
        for trace in kept:
            with suppress(EngineError):
                outcome(trace, loaded.makers[trace.stem])
        for stem, make in loaded.makers.items():
            _draw(stem, make, runs)
    finally:
        measured.stop()
    data = measured.get_data()
    found = {Path(file).relative_to(root).as_posix(): data.lines(file) for file in data.measured_files()}
    return {file: sorted(lines) for file, lines in sorted(found.items()) if lines}


def _draw(stem: str, make: Callable[[Json], Any], runs: int) -> None:
    draw(stem, make, Sink(passes=lambda *_: True), Search(runs, SEED, strict=False))

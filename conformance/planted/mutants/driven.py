"""Which lines of an engine's release are executed while it is driven: by its kept traces, and by drawn runs.

They are measured with ``coverage``, in a process of its own for each stem, once the release has been imported and an
engine of each kept trace has been made. What is executed later because a module is imported late is not counted: of a
file only the statements in bodies of functions count (``edits.driven_lines``).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance.driver.collector import collect_rarely
from conformance.driver.protocol import EngineError, Json
from conformance.engines import registry
from conformance.search.check import Search, draw
from conformance.search.jail import isolate
from conformance.stems.found import servers
from conformance.stems.machine import Sink
from conformance.stems.stem_registry import ROOMS
from conformance.traces import trace_files
from conformance.traces.outcome import outcome

if TYPE_CHECKING:
    from coverage import Coverage

RUNS, RUNS_OF_SERVERS = 40, 10  # drawn runs of each stem, and at most of whole servers, which take seconds each
SEED = 0
ANSWER = "answer.json"


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
    registry.fetch(engine, release)
    lines: dict[str, set[int]] = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # its threads wait for processes
        stems = getattr(registry.plugin(engine), "stems", tuple(ROOMS))
        each = pool.map(partial(_driven_on, engine, release, runs), stems)
        roots, found = zip(*each, strict=True)
    for file, numbers in (one for of_stem in found for one in of_stem.items()):
        lines.setdefault(file, set()).update(numbers)
    return Driven(roots[0], {file: sorted(numbers) for file, numbers in sorted(lines.items())})


def _driven_on(engine: str, release: str, runs: int, stem: str) -> tuple[Path, dict[str, list[int]]]:
    """The folder of the package, and the lines that are executed where the release is driven on one stem."""
    with tempfile.TemporaryDirectory(prefix="slotproof-driven-") as scratch:
        answer = Path(scratch) / ANSWER
        command = [sys.executable, "-m", __name__, engine, release, str(runs), scratch, stem]
        with (Path(scratch) / "log").open("w") as log:  # what an engine prints is for nobody
            ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False)
        if not answer.exists():
            raise EngineError(f"{engine} {release}: its process ended with {ended.returncode} while it was driven")
        said: Json = json.loads(answer.read_text(encoding="utf-8"))
    if "error" in said:
        raise EngineError(said["error"])
    return Path(said["root"]), said["lines"]


def main() -> None:
    """The process that drives: writes the folder of the package and the executed lines by file, or the error."""
    engine, release, runs, scratch, stem = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5]
    collect_rarely()
    try:
        isolate(scratch)
        loaded = registry.load(engine, release)
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)
        said: Json = {"root": str(loaded.roots[0].resolve()), "lines": executed(loaded, runs, stem)}
    except EngineError as error:
        said = {"error": str(error)}
    (scratch / ANSWER).write_text(json.dumps(said), encoding="utf-8")


def executed(loaded: registry.Loaded, runs: int, stem: str) -> dict[str, list[int]]:
    """The lines below the first of ``Loaded.roots`` that kept traces and drawn runs of a stem execute in this process.
    Empty where the release has nothing for the stem.

    A run goes on past what breaks a law, as it does in ``slotproof check --base``. Of a kept trace for which the
    release can have no verdict, the part before is counted.
    """
    make = loaded.makers.get(stem)
    if make is None:
        return {}
    kept = [one.trace for one in trace_files.every() if one.trace.stem == stem]
    for trace in kept:
        with suppress(Exception):  # a configuration that the release does not have; only imports are wanted here
            make(trace.config)
    root = loaded.roots[0].resolve()
    measured = measuring(root)
    measured.start()
    try:
        for trace in kept:
            with suppress(EngineError):
                outcome(trace, make)
        _draw(stem, make, min(runs, RUNS_OF_SERVERS) if stem in servers() else runs)
    finally:
        measured.stop()
    data = measured.get_data()
    found = {Path(file).relative_to(root).as_posix(): data.lines(file) for file in data.measured_files()}
    return {file: sorted(lines) for file, lines in sorted(found.items()) if lines}


def measuring(root: Path) -> Coverage:
    """What measures the executed lines of files below ``root``. A server's loop waits in a greenlet, and coverage must
    know of it: else it counts lines of one file as those of another. The switches are in files of Slotproof, since
    coverage sees them at the next call or return.
    """
    from coverage import Coverage

    waiting = ["greenlet"] if find_spec("greenlet") else []
    return Coverage(data_file=None, config_file=False, source=[str(root)], concurrency=["thread", *waiting])


def _draw(stem: str, make: Callable[[Json], Any], runs: int) -> None:
    draw(stem, make, Sink(passes=lambda *_: True), Search(runs, SEED, strict=False))


if __name__ == "__main__":
    main()

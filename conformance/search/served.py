"""An engine in a process of its own, which answers requests on a Unix socket.

A process can hold one release of an engine, and an engine may kill its process. So ``slotproof check`` loads each
engine in a process of its own. The process forks a child for each connection; the engine is imported already, so a
child costs milliseconds, and what kills it leaves the others alive. Requests and answers are lines of JSON. A child
of a process that has used CUDA cannot use it, so with the device ``cuda`` this process builds no engine.

``python -m conformance.search.served SOCKET SCRATCH`` reads what to load from standard input, and answers with one line
on standard output: what was loaded, or why it could not be loaded. It ends when its standard input is closed.
"""

from __future__ import annotations

import json
import os
import signal
import socketserver
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from conformance.driver.collector import collect_rarely
from conformance.driver.naming import UsageError
from conformance.driver.protocol import EngineError, Json
from conformance.driver.trace import Trace
from conformance.driver.watchdog import Making, Watch
from conformance.engines import registry
from conformance.search.connection import LOADING, TO_LOAD
from conformance.search.jail import isolate


def main() -> None:
    """Loads an engine and serves it until the process that started this one ends."""
    collect_rarely()
    path, scratch = sys.argv[1], Path(sys.argv[2])
    wanted = json.loads(sys.stdin.readline())
    answers = os.fdopen(os.dup(1), "w")
    log = os.open(scratch / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):  # what an engine prints is no answer
        os.dup2(log, stream)
    try:
        hello, loaded = _load(wanted, scratch)
    except (EngineError, UsageError) as error:
        hello, loaded = {"error": str(error)}, None
    except Exception as error:
        hello, loaded = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}, None
    if loaded is not None:
        _Handler.loaded, _Handler.scratch = loaded, scratch
        server = _Server(path, _Handler)
    print(json.dumps(hello), file=answers, flush=True)
    answers.close()
    if loaded is not None:
        threading.Thread(target=_ends_with_the_caller, daemon=True).start()
        server.serve_forever(poll_interval=0.2)


def _load(wanted: Json, scratch: Path) -> tuple[Json, registry.Loaded]:
    source = None if wanted["source"] is None else Path(wanted["source"])
    registry.fetch(wanted["engine"], wanted["release"])  # downloads before the network is closed
    closed = isolate(scratch)
    options = tuple((name, value) for name, value in wanted["options"])
    with _watched(scratch, wanted.get("limit"), TO_LOAD):
        loaded = registry.load(wanted["engine"], wanted["release"], source, wanted["device"], wanted["stems"], options)
    stems = {*(wanted["stems"] or loaded.makers)}
    _warm_up(loaded, stems, lambda: _watched(scratch, wanted.get("limit")), wanted.get("limit"))
    hello: Json = {"name": loaded.name, "release": loaded.release, "label": loaded.label, "own": loaded.own}
    hello["notes"] = list(loaded.notes)
    hello["unbuilt"] = [str(folder) for folder in loaded.unbuilt]
    hello["roots"] = [str(root) for root in loaded.roots]
    says = None if source is None else registry.release_of(wanted["engine"], source)
    return {**hello, "says": says, "stems": list(loaded.makers), "isolation": closed}, loaded


@contextmanager
def _watched(scratch: Path, limit: float | None, times: int = 1) -> Iterator[None]:
    """Ends this process if a maker takes longer than ``limit`` seconds, or the whole block ``times`` as long."""
    watch = None if limit is None else Watch(scratch / LOADING, limit * times)
    try:
        yield
    finally:
        if watch is not None:
            watch.end()


def _warm_up(
    loaded: registry.Loaded, stems: set[str], watched: Callable[[], AbstractContextManager[None]], limit: float | None
) -> None:
    """Imports here what every child needs: modules of our own, and those that the engine imports when it is built for
    one of ``stems``. ``watched``: entered around each maker. ``limit``: after half of so many seconds a maker is given
    up. An engine on CUDA is built by the children alone.

    If the engine uses torch, it is kept to one thread, since several children work side by side.
    """
    from conformance.search.campaign import trial  # noqa: F401
    from conformance.traces import trace_files

    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    if loaded.device == "cuda":
        return
    # One configuration of each shape: a scheduler with transfers imports more than one without.
    told = {(kept.trace.stem, *sorted(kept.trace.config)): kept.trace for kept in trace_files.every()}
    for trace in (trace for trace in told.values() if trace.stem in stems & {*loaded.makers}):
        # The child that drives the engine meets what fails or hangs again, and reports it.
        with watched(), suppress(Exception, GivesUp), given_up_after(limit):
            loaded.makers[trace.stem](trace.config)


class GivesUp(BaseException):
    """A maker takes too long. It is no ``Exception``, so that an engine does not catch it."""


@contextmanager
def given_up_after(limit: float | None) -> Iterator[None]:
    """Raises ``GivesUp`` in the block after half of ``limit`` seconds, as far as Python code runs then."""

    def gives_up(*_: Any) -> None:
        raise GivesUp

    before = signal.signal(signal.SIGALRM, gives_up)
    signal.setitimer(signal.ITIMER_REAL, 0.0 if limit is None else limit / 2)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _ends_with_the_caller() -> None:
    """Ends this process and its children when the process that started it has closed the standard input."""
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)


class _Server(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    request_queue_size = 64
    max_children = 64


class _Handler(socketserver.StreamRequestHandler):
    """One connection: requests are answered in their order."""

    loaded: registry.Loaded
    scratch: Path

    def handle(self) -> None:
        """Answers every line until the caller closes the connection."""
        for line in self.rfile:
            try:
                self._say({"answer": self._answer(json.loads(line))})
            except BrokenPipeError:
                return
            except EngineError as error:
                self._say({"error": str(error), "kind": "engine"})
            except Exception as error:
                what = f"{type(error).__name__}: {error}"
                self._say({"error": what, "kind": "tool", "traceback": traceback.format_exc()})

    def _say(self, data: Json) -> None:
        self.wfile.write(json.dumps(data).encode() + b"\n")
        self.wfile.flush()

    def _answer(self, asked: Json) -> Any:
        from conformance.search import judge
        from conformance.search.campaign import trial

        if asked["do"] == "repair":
            return _repair(self.loaded, asked["causes"])
        does: dict[str, Callable[..., Any]] = {
            "outcome": judge.outcome_of,
            "followed": judge.followed_of,
            "row": judge.row_of,
            "alone": judge.alone,
            "beside": judge.beside,
            "trial": trial.trial,
        }
        name = asked.get("run", asked["stem"])
        watch = None if asked.get("limit") is None else Watch(self.scratch / f"death-{name}", asked["limit"])
        progress = Progress(self._say, self.scratch / f"run-{name}", watch)
        loaded = self.loaded
        if watch is not None:
            file = self.scratch / f"making-{name}"
            loaded = replace(loaded, makers={stem: Making(make, file) for stem, make in loaded.makers.items()})
        if asked["stem"] not in self.loaded.makers and asked["do"] not in ("outcome", "row"):
            raise EngineError(f"{self.loaded.label} has no {asked['stem']} to drive")
        try:
            return does[asked["do"]](loaded, asked, progress)
        finally:
            if watch is not None:
                watch.end()


def _repair(loaded: registry.Loaded, causes: Sequence[str]) -> None:
    """Repairs the engine of this process. Raises ``EngineError`` if what one of these causes repairs is not in its
    source.
    """
    from conformance.traces import cause_files

    for cause in map(cause_files.load, causes):
        try:
            cause.place(loaded.roots)
        except UsageError as error:
            raise EngineError(str(error)) from error
        cause.apply()


class Progress:
    """Tells the caller what is being done, and keeps the run that is being sent in a file, so that it is not lost when
    the engine kills the process.
    """

    def __init__(self, say: Callable[[Json], None], file: Path, watch: Watch | None = None) -> None:
        self.say, self.watch, self.number, self.last = say, watch, 0, ""
        self.file = file.open("wb", buffering=0)
        self.trace: Trace | None = None
        self.written = 0  # operations of the trace that are in the file

    def __call__(self, what: str, trace: Trace | None, step: Json | None, steps: int) -> None:
        """``what`` is being done; ``step`` comes after the operations of ``trace``; ``steps``: how many were sent."""
        if self.watch is not None:
            self.watch.again()
        if trace is not None:
            self._write(trace, [*trace.steps[self._in_file(trace) :], *([] if step is None else [step])])
        self.number += 1
        if what != self.last or self.number % 50 == 0:
            self.last = what
            self.say({"progress": what, "steps": steps})

    def _in_file(self, trace: Trace) -> int:
        """How many operations of the trace are in the file. The file begins again with another trace, and where the
        last operation in it was not sent.
        """
        if trace is not self.trace or self.written > len(trace.steps):
            self.trace, self.written = trace, 0
            self.file.seek(0)
            self.file.truncate()
            self._write(trace, [{"stem": trace.stem, "config": trace.config}])
            self.written = 0
        return self.written

    def _write(self, trace: Trace, lines: list[Json]) -> None:
        self.trace, self.written = trace, self.written + len(lines)
        self.file.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))


def run_in(file: Path) -> Trace | None:
    """The run in the file of ``Progress``; ``None`` if there is none. A last line that was not written whole, since its
    process was killed, is left out.
    """
    try:
        first, *steps = (json.loads(line) for line in file.read_bytes().splitlines(keepends=True) if line[-1:] == b"\n")
    except (OSError, ValueError):
        return None
    return Trace(first["stem"], first["config"], steps)


if __name__ == "__main__":
    main()

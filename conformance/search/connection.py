"""The caller's side of ``conformance.search.served``: starts an engine in a process of its own, and asks it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from conformance.driver import waiting, watchdog
from conformance.driver.lockstep import ANSWERED, ANSWERED_SENTENCE, Finding
from conformance.driver.options import Given
from conformance.driver.protocol import EngineError, Json
from conformance.driver.trace import Trace
from conformance.traces.outcome import Break, Followed, Outcome

TO_LOAD = 3  # times the limit of a call: how long it may take to import an engine and to ask its makers for their stems
DIED = "the process died"
LOADING = "death-loading"  # the file of the watch while an engine is loaded


class EngineDied(Exception):
    """The process that had the engine ended without an answer."""


class ToolError(Exception):
    """Slotproof itself failed in another process. ``report``: the traceback there."""

    def __init__(self, message: str, report: str) -> None:
        super().__init__(message)
        self.report = report


class Connection:
    """One connection to a served engine. Requests on it are answered one after another by one process. ``limit``: a
    call to the engine that takes more seconds ends that process; ``None`` without a limit. ``repairs``: the names of
    causes (``conformance.traces.cause_files``) whose repairs the engine has in that process alone. ``waits``: says what
    is waited for where an answer takes long (``conformance.driver.waiting``); ``None`` where nobody is told. Raises
    ``EngineError`` if what one of the causes repairs is not in the engine's source.
    """

    def __init__(
        self,
        path: str,
        limit: float | None = None,
        repairs: Sequence[str] = (),
        waits: Callable[[], str] | None = None,
    ) -> None:
        self.path, self.limit, self.repairs, self.waits = path, limit, repairs, waits
        self._open()

    def _open(self) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(self.path)
        self.file = self.socket.makefile("rwb")
        if self.repairs:
            try:
                self.ask({"do": "repair", "stem": "", "causes": list(self.repairs)})
            except EngineError:
                self.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection; the process that answered it ends too."""
        with suppress(OSError):
            self.file.close()
        self.socket.close()

    def ask(self, request: Json, progress: Callable[[Json], None] = lambda _: None) -> Any:
        """The answer to a request. ``progress`` is called with what the process says before it answers.

        Raises ``EngineError`` if the engine cannot do this, ``EngineDied`` if it killed the process, and ``ToolError``
        if Slotproof failed.
        """
        try:
            with watchdog.paused(), nullcontext() if self.waits is None else waiting.watched(self.waits):
                self.file.write(json.dumps({"limit": self.limit, **request}).encode() + b"\n")
                self.file.flush()
                for line in self.file:
                    said = json.loads(line)
                    if "progress" in said:
                        progress(said)
                        continue
                    return _answer(said)
        except OSError as error:
            raise EngineDied(str(error)) from error
        raise EngineDied("the process ended without an answer")

    def outcome(self, trace: Trace) -> Outcome:
        """What the trace shows on the engine. An engine that kills its process breaks a law with the last operation."""
        try:
            return Outcome.from_json(self.ask({"do": "outcome", "stem": trace.stem, "trace": trace.as_json()}))
        except EngineDied:
            self.close()
            self._open()
            return died(trace)

    def followed(self, trace: Trace) -> Followed:
        """What the trace shows where it is sent as far as a client may send it, and the engine is brought to rest."""
        return Followed(**self.ask({"do": "followed", "stem": trace.stem, "trace": trace.as_json()}))


def died(trace: Trace) -> Outcome:
    """The outcome of a trace whose last operation killed the process of the engine."""
    return Outcome((Break.of(Finding(ANSWERED, ANSWERED_SENTENCE, DIED), len(trace.steps)),))


def _answer(said: Json) -> Any:
    if "answer" in said:
        return said["answer"]
    if said["kind"] == "engine":
        raise EngineError(said["error"])
    raise ToolError(said["error"], said["traceback"])


@dataclass(frozen=True)
class Subject:
    """An engine to be judged: its name, and the release or the folder of its source. ``stems``: those that the user has
    named, for an engine whose stem is not clear. ``options``: the engine's options that the user has set.
    """

    engine: str
    release: str | None = None
    source: Path | None = None
    device: str = "cpu"
    stems: tuple[str, ...] = ()
    options: Given = ()


class Served:
    """A process that serves one engine. Use it with ``with``: at the end the process and its children are killed.

    ``hello``: what was loaded, namely ``label``, ``stems``, ``own``, ``notes`` and ``isolation``. ``limit``: seconds
    after which a call to the engine, or a maker, hangs, and three times as many until it is loaded; ``None`` without a
    limit.
    """

    def __init__(self, subject: Subject, limit: float | None = None) -> None:
        self.subject, self.limit = subject, limit
        self.scratch = Path(tempfile.mkdtemp(prefix="slotproof-"))
        self.path = str(self.scratch / "socket")
        command = [sys.executable, "-m", f"{__package__}.served", self.path, str(self.scratch)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, text=True
        )
        source = None if subject.source is None else str(subject.source.resolve())
        wanted = {
            **{"engine": subject.engine, "release": subject.release, "source": source},
            **{"device": subject.device, "stems": subject.stems, "options": subject.options},
            "limit": limit,
        }
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            print(json.dumps(wanted), file=self.process.stdin, flush=True)
        self.hello: Json = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def alive(self) -> bool:
        """The process that forks has not ended."""
        return self.process.poll() is None

    def kill(self) -> None:
        """Ends the process and its children at once."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def ready(self) -> Json:
        """Waits until the engine is loaded. Raises ``EngineError`` with one line that says why it is not."""
        assert self.process.stdout is not None
        with waiting.watched(waiting.since_now(f"{self.subject.engine} to be loaded", self._given_up(TO_LOAD))):
            line = self.process.stdout.readline()
        if not line:
            dump = watchdog.written_in(self.scratch / LOADING)
            if watchdog.hung(dump):
                hangs = f"it was not loaded in time: its module or its maker hangs{watchdog.where(dump)}"
                raise EngineError(f"{self.subject.engine}: {hangs}; --call-limit gives it more time")
            raise EngineError(
                f"{self.subject.engine}: the process ended while the engine was loaded: {self.last_line()}"
            )
        self.hello = json.loads(line)
        if "traceback" in self.hello:
            raise ToolError(self.hello["error"], self.hello["traceback"])
        if "error" in self.hello:
            raise EngineError(self.hello["error"])
        return self.hello

    def last_line(self) -> str:
        """The last line that the process has printed."""
        with suppress(OSError):
            lines = (self.scratch / "log").read_text(errors="replace").strip().splitlines()
            return lines[-1] if lines else "no message"
        return "no message"

    def _given_up(self, times: int = 1) -> str:
        """When a wait for the engine ends, in words; empty without a limit."""
        return "" if self.limit is None else f"given up after {self.limit * times:g} s, see --call-limit"

    def _maker_that_takes_long(self) -> str:
        """The maker that a process of the engine called a while ago, and that has not ended; empty if there is none."""
        for file in self.scratch.glob("making-*"):
            with suppress(OSError):
                config, seconds = file.read_text(encoding="utf-8"), time.time() - file.stat().st_mtime
                what = f"the maker of {file.name.removeprefix('making-')}, called with {config}"
                if said := waiting.after(what, seconds, self._given_up()):
                    return said
        return ""

    def connect(self, repairs: Sequence[str] = ()) -> Connection:
        """A new connection, with a process of its own behind it, whose engine has these repairs."""
        return Connection(self.path, self.limit, repairs, self._maker_that_takes_long)

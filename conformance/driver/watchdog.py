"""Ends a process in which a call to an engine hangs, and says where it was.

A process has one ``Watch``. Who waits for another process meanwhile, such as for the base's answer, pauses it. A
process that is forked has none: ``faulthandler`` waits for a thread, which stays behind in the parent.
"""

from __future__ import annotations

import faulthandler
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from conformance.driver.protocol import Json

_running: list[Watch] = []  # the watch of this process, if there is one
os.register_at_fork(after_in_child=_running.clear)


class Watch:
    """Ends this process where ``again`` is not called for ``limit`` seconds, also while C code runs. The file then says
    in which functions the process was, and so it does where a signal such as SIGSEGV ends it.
    """

    def __init__(self, file: Path, limit: float) -> None:
        self.path, self.file, self.limit, self.since = file, file.open("w"), limit, -limit
        faulthandler.enable(self.file)
        _running.append(self)
        self.again()

    def again(self) -> None:
        """Begins to wait again, but not more often than ten times in ``limit`` seconds: each time costs a thread."""
        now = time.monotonic()
        if self in _running and now - self.since > self.limit / 10:
            self.since = now
            faulthandler.dump_traceback_later(self.limit, exit=True, file=self.file)

    def end(self) -> None:
        """The process has not died: there is nothing to tell."""
        if self not in _running:
            return
        faulthandler.cancel_dump_traceback_later()
        faulthandler.disable()
        _running.remove(self)
        self.file.close()
        self.path.unlink(missing_ok=True)


def again() -> None:
    """The watch of this process, if there is one, begins to wait again: a call to an engine begins."""
    for watch in _running:
        watch.again()


@contextmanager
def paused() -> Iterator[None]:
    """The watch of this process does not count the time of the block, in which another process works."""
    if not _running:
        yield
        return
    faulthandler.cancel_dump_traceback_later()
    try:
        yield
    finally:
        for watch in _running:
            watch.since = -watch.limit
            watch.again()


class Making:
    """A maker of engines that is watched. While it runs, ``file`` has the configuration: where the process ends there,
    the maker is the reason.
    """

    def __init__(self, make: Callable[[Json], Any], file: Path) -> None:
        self.make, self.file, self.process = make, file, os.getpid()

    def __call__(self, config: Json) -> Any:
        """A fresh engine of this configuration."""
        again()
        if os.getpid() != self.process:  # a forked process, for which its parent waits
            return self.make(config)
        self.file.write_text(json.dumps(config), encoding="utf-8")
        try:
            return self.make(config)
        finally:
            self.file.unlink(missing_ok=True)


def written_in(file: Path) -> str:
    """What the file of a watch says; empty if there is none."""
    with suppress(OSError):
        return file.read_text(encoding="utf-8", errors="replace")
    return ""


def hung(dump: str) -> bool:
    """The process was ended because it took too long."""
    return dump.lstrip().startswith("Timeout")


def where(dump: str) -> str:
    """The innermost function in which the process was, such as ``, in "x.py", line 3 in f``."""
    frames = [line.strip() for line in dump.splitlines() if line.strip().startswith("File ")]
    return f", in {frames[0].removeprefix('File ')}" if frames else ""


def reason(dump: str, limit: float) -> str:
    """Why a process died, from what ``faulthandler`` has written: the signal or the hang, and where it was."""
    if not dump.strip():
        return ""
    if hung(dump):
        return f"the call did not end within {limit:g} s{where(dump)}"
    return f"the process died: {dump.strip().splitlines()[0].removeprefix('Fatal Python error: ')}{where(dump)}"

"""What one mutant is put to, in a process of its own: random runs beside the law, then the tests of ``impl/``.

The process is forked from one that has imported everything but ``impl``; it imports ``impl`` from the folder with the
mutant, which it never changes. ``slotproof check ours --source FOLDER --examples N`` does what ``runs`` does; here a
run that breaks a law is not shrunk.
"""

from __future__ import annotations

import contextlib
import io
import os
import resource
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from conformance.driver.collector import collect_rarely
from conformance.driver.lockstep import Finding
from conformance.driver.protocol import EngineError, Json
from conformance.engines import registry
from conformance.search.check import Search, draw
from conformance.stems.machine import Sink

MEMORY = 8 << 30  # bytes of address space that a mutant may take beyond what it starts with


def answer(to: Connection, kind: str, folder: Path, names: Sequence[str], examples: int, limit_s: int) -> None:
    """Sends what noticed the mutant, empty where nothing did, and the processor time in seconds. ``limit_s``: the
    system ends the process after so many seconds of processor time.
    """
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (_address_space() + MEMORY, most))
    sys.dont_write_bytecode = True
    collect_rarely()
    torch.set_num_threads(1)
    silent = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silent, stream)
    noticed = runs(folder, names, examples) if kind == "runs" else tests(folder, names)
    used = resource.getrusage(resource.RUSAGE_SELF)
    to.send({"noticed": noticed, "seconds": used.ru_utime + used.ru_stime})


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize()


def runs(folder: Path, stems: Sequence[str], examples: int) -> Json | None:
    """What breaks in drawn runs of ``impl`` of this folder: the stem and the law, or why there can be no verdict."""
    try:
        loaded = registry.load(registry.own().name, source=folder)
    except EngineError as error:
        return {"stem": "", "by": f"cannot be loaded: {error.__cause__ or error}"}
    for stem in stems:
        sink = Sink()
        try:
            draw(stem, loaded.makers[stem], sink, Search(examples))
        except Finding as finding:
            return {"stem": stem, "by": finding.law}
        except Exception as error:  # the command fails too, whatever it is
            return {"stem": stem, "by": f"no verdict: {type(error).__name__}"}
        if not sink.runs:
            return {"stem": stem, "by": "no run could be started"}
    return None


class _Failures:
    """A plug-in of pytest that keeps the names of tests that fail."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test has ended."""
        if report.failed:
            self.names.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file has been imported."""
        if report.failed:
            self.names.append(report.nodeid)


def tests(folder: Path, files: Sequence[str]) -> Json | None:
    """The first test that fails of these files below ``folder``, on its ``impl``."""
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    failures = _Failures()
    with contextlib.redirect_stdout(io.StringIO()):
        code = pytest.main(["-x", "-m", "not cuda and not engine", *files], plugins=[failures])
    if code == pytest.ExitCode.OK:
        return None
    return {"stem": "", "by": failures.names[0] if failures.names else f"pytest: {pytest.ExitCode(code).name}"}

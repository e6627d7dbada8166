"""Runs a command in a child process, so that Ctrl-C ends it at once, also while a solver or an engine is at work.

A signal handler in Python waits until the running C function returns, which takes many seconds in a solver. The
process that waits here does nothing else, so it can always end the command and every process that the command
started.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

from slotproof.console.codes import FAILED, SIGNALLED

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if hasattr(signal, "SIGHUP") else (signal.SIGINT, signal.SIGTERM)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>
GRACE_S, LIMIT_S = 1.0, 5.0
SHOWS_CURSOR = "\r\x1b[2K\x1b[?25h"  # clears the line of a progress bar


def watched(work: Callable[[], int]) -> int:
    """The exit code of ``work``, which runs in a child process.

    After SIGINT, SIGTERM or SIGHUP every process that ``work`` started is killed, and the code is 128 and the number of
    the signal. A child that a signal ended has the code ``FAILED``. Call it before any thread is started. Where there
    is no ``os.fork``, ``work`` runs in this process.
    """
    if not hasattr(os, "fork"):
        return work()
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    with _scratch():
        return _forked(work)


@contextlib.contextmanager
def _scratch() -> Iterator[None]:
    """A folder for all temporary files of the command, so that none stays behind when its processes are killed."""
    given = os.environ.get("TMPDIR")
    folder = tempfile.mkdtemp(prefix="slotproof-")
    os.environ["TMPDIR"] = folder
    tempfile.tempdir = None  # else Python goes on with the folder that it has found
    owner = os.getpid()
    try:
        yield
    finally:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)
            os.environ.pop("TMPDIR") if given is None else os.environ.update(TMPDIR=given)
            tempfile.tempdir = None


def _forked(work: Callable[[], int]) -> int:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*STOPS, signal.SIGCHLD})
    parent, child = os.getpid(), os.fork()
    if child:
        return _wait(child)
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before it could be watched
        os._exit(FAILED)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to every process; the parent acts on it
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return work()


def _wait(child: int) -> int:
    """Waits for a signal or for the end of the child; the exit code."""
    while True:
        stop = signal.sigwait({*STOPS, signal.SIGCHLD})
        if stop in STOPS:
            _end_all(0)
            _say("interrupted" if stop == signal.SIGINT else f"ended by {signal.Signals(stop).name}")
            return SIGNALLED + stop
        for pid, status in _reaped():
            if pid == child:
                return _code(os.waitstatus_to_exitcode(status))


def _code(ended: int) -> int:
    """The exit code for how the child ended; what it has left behind ends too."""
    _end_all(GRACE_S)
    if ended >= 0:
        return ended
    if -ended in STOPS:
        _say(f"ended by {signal.Signals(-ended).name}")
        return SIGNALLED - ended
    _say(f"Slotproof itself failed: its process was ended by {signal.Signals(-ended).name}")
    return FAILED


def _reaped() -> list[tuple[int, int]]:
    """The children that have ended, with their states."""
    found = []
    with contextlib.suppress(ChildProcessError):
        while (one := os.waitpid(-1, os.WNOHANG))[0]:
            found.append(one)
    return found


def _end_all(grace: float) -> None:
    """Kills every process that was started, also by processes that have ended; first they have ``grace`` seconds to
    end by themselves.
    """
    start = time.monotonic()
    while _has_children() and time.monotonic() - start < grace:
        time.sleep(0.01)
    while _has_children() and time.monotonic() - start < LIMIT_S:
        _kill_all()
        time.sleep(0.01)


def _has_children() -> bool:
    """Whether a process is left; those that have ended are taken off the list of processes."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _kill_all() -> None:
    import psutil

    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _say(message: str) -> None:
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print((SHOWS_CURSOR if sys.stderr.isatty() else "") + f"slotproof: {message}", file=sys.stderr, flush=True)


def _prctl(option: int, value: int) -> None:
    """Sets an attribute of this process; only Linux has these."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)

"""Ctrl-C and other signals: the command ends at once, says so in one line, and no process is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import psutil
import pytest
from driven import sampled

from slotproof.console.codes import FAILED, INTERRUPTED

LONG = (
    "prove",
    "check ours cache",
    "campaign ours cache -o kept",
    "faults",
    "engines",
    "replay insert_under_reader",
    "report -o page",
    "docs --check",
)
LIMIT_S = 10  # generous, since other tests run at the same time; measured: 0.2 to 0.4 s
MARK = "SLOTPROOF_TEST"  # an environment variable by which every process that a command started is found


@contextmanager
def started(command: list[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The command in a session of its own, once it has begun to work."""
    root = str(Path(__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": root, "SLOTPROOF_CACHE": str(folder / "cache"), MARK: str(folder)}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=folder, env=env, text=True, start_new_session=True, stdout=pipe, stderr=pipe
    ) as process:
        try:
            while not psutil.Process(process.pid).children() and process.poll() is None:
                time.sleep(0.005)
            yield process
        finally:
            for left in of(folder):
                left.kill()


def of(folder: Path) -> list[psutil.Process]:
    """The processes that a command which was started in ``folder`` has left, the command itself too."""
    return [process for process in psutil.process_iter() if mark(process) == str(folder)]


def mark(process: psutil.Process) -> str | None:
    try:
        return None if process.status() == psutil.STATUS_ZOMBIE else process.environ().get(MARK)
    except psutil.Error:
        return None


@pytest.mark.soak(but=3)
@pytest.mark.parametrize("whole_group", [False, True], ids=["the process", "the group, as a terminal does"])
@pytest.mark.parametrize("words", sampled(LONG, 2))
def test_ctrl_c_ends_every_command(words: str, whole_group: bool, tmp_path: Path) -> None:
    with started([sys.executable, "-m", "slotproof", *words.split()], tmp_path) as process:
        time.sleep(Random(words + str(whole_group)).uniform(0, 4))
        assert process.poll() is None, "it ended before it was interrupted"
        (os.killpg if whole_group else os.kill)(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, err) == (INTERRUPTED, "slotproof: interrupted\n"), out
        assert of(tmp_path) == []


@pytest.mark.soak
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGHUP])
def test_another_signal_ends_it_too(stop: signal.Signals, tmp_path: Path) -> None:
    with started([sys.executable, "-m", "slotproof", "prove"], tmp_path) as process:
        while len(of(tmp_path)) < 3:  # until a solver's process has been started too
            time.sleep(0.02)
        process.send_signal(stop)
        _, err = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, err) == (128 + stop, f"slotproof: ended by {stop.name}\n")
        assert of(tmp_path) == []


WORKS = "import sys, time, subprocess; from slotproof.console.watch import watched\n"


def ended(work: str, folder: Path) -> tuple[int, str]:
    """The exit code and the messages of a work."""
    with started([sys.executable, "-c", f"{WORKS}def work():\n    {work}\nsys.exit(watched(work))"], folder) as process:
        _, err = process.communicate(timeout=60)
        left = of(folder)
    assert left == []
    return process.returncode, err


def test_the_exit_code_is_that_of_the_work(tmp_path: Path) -> None:
    assert ended("return 2", tmp_path) == (2, "")


def test_a_crash_of_the_process_is_no_verdict(tmp_path: Path) -> None:
    code, err = ended("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", tmp_path)
    assert (code, err) == (FAILED, "slotproof: Slotproof itself failed: its process was ended by SIGSEGV\n")


def test_a_process_that_outlives_the_work_is_ended(tmp_path: Path) -> None:
    sleeper = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)"
    assert ended(f"{sleeper}; return 0", tmp_path) == (0, "")


def test_the_work_ends_with_its_watcher(tmp_path: Path) -> None:
    with started([sys.executable, "-c", f"{WORKS}watched(lambda: time.sleep(600))"], tmp_path) as process:
        time.sleep(0.2)
        process.kill()
        process.wait()
        deadline = time.monotonic() + LIMIT_S
        while (left := of(tmp_path)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert left == []

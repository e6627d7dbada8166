"""Plays a tutorial: writes its files, makes its changes and runs its commands in an empty folder, as a reader does.

A tutorial is a Markdown file. A comment before a block of code says what is done with the block:

- ``<!-- file: NAME -->``: the block is written to this file.
- ``<!-- change: NAME -->``: the block is a diff; its lines with ``-`` stand once in the file, those with ``+`` take
  their place.
- ``<!-- run -->`` or ``<!-- run, exit CODE -->``: the first line is ``$`` and a command. The other lines are what it
  prints, and are made anew.

Two comments stand alone. ``<!-- paste: NAME -->``: the test that the last command has printed is written to this file.
``<!-- checkout -->``: the folder becomes a copy of this checkout, whose law the reader changes. Blocks without such a
comment are only shown.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PARTS = re.compile(
    r"^<!-- (?P<what>file|change|run|paste|checkout)(?:: (?P<name>\S+))?(?:, exit (?P<code>\d+))? -->\n"
    r"(?:(?P<fence>```\w*\n)(?P<body>.*?)^```$)?",
    re.DOTALL | re.MULTILINE,
)
TEST = re.compile(r"^def test_.*?(?=^\S|\Z)", re.DOTALL | re.MULTILINE)
COPIED = ("spec", "proofs", "impl", "conformance", "slotproof", "tests/tiny_stem")  # of a checkout
COMMANDS = {"slotproof": "slotproof", "pytest": "pytest"}  # how a command is run by this Python
# What differs between two machines or two runs, and what the tutorial shows in its place.
VARIES = (
    (re.compile(r"^slotproof: waits for .*\n", re.MULTILINE), ""),  # where the machine is busy
    (re.compile(r"network [^,]*, home"), "network none, home"),
    (re.compile(r"\(\d+\.\d s\)"), "(… s)"),
    (re.compile(r"\bin \d+\.\d+s\b"), "in …s"),
    (re.compile(r"; \d+ s$", re.MULTILINE), "; … s"),
)
# A time in the last column of a table, or in the last but one, where names follow.
CELL = re.compile(r"(?<=│ )(?:\d+\.\d(?= +│$)|\d+\.\d\d(?= +│ [\w, ]+│$))", re.MULTILINE)


class Printed(NamedTuple):
    """What a command has printed, on both channels, and its exit code."""

    text: str
    code: int


def played(text: str) -> str:
    """The tutorial with what its commands print made anew.

    Raises ``ValueError`` where a command ends with another exit code than the tutorial says, or where a change does not
    fit its file.
    """
    with tempfile.TemporaryDirectory(prefix="slotproof-tutorial-") as scratch:
        folder, commands = Path(scratch, "reader"), Path(scratch, "bin")
        folder.mkdir()
        commands.mkdir()
        for name, module in COMMANDS.items():
            _command(commands / name, module)
        reader = _Reader(folder, _environment(Path(scratch), commands))
        return PARTS.sub(reader.does, text)


class _Reader:
    """Does what the tutorial says in ``folder``. ``last``: what the last command has printed."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder, self.environment, self.last = folder, environment, ""

    def does(self, part: re.Match[str]) -> str:
        """Does one part, and returns it as it is to be shown."""
        what, name, body = part["what"], part["name"], part["body"] or ""
        if what == "run":
            return part[0].replace(body, self._runs(body, int(part["code"] or 0)))
        if what == "checkout":
            copied(self.folder)
            return part[0]
        path = self.folder / name
        if what == "file":
            path.write_text(body, encoding="utf-8")
        elif what == "change":
            path.write_text(changed(path.read_text(encoding="utf-8"), body), encoding="utf-8")
        else:
            path.write_text(self._test(), encoding="utf-8")
        return part[0]

    def _runs(self, body: str, code: int) -> str:
        line = body.splitlines()[0]
        if not line.startswith("$ "):
            raise ValueError(f"a block that is run begins with `$ ` and a command, not with {line!r}")
        printed = self._printed(line.removeprefix("$ "))
        if printed.code != code:
            raise ValueError(f"{line}: exit code {printed.code}, expected {code}\n{printed.text}")
        self.last = printed.text
        return f"{line}\n{steady(printed.text, self.folder)}"

    def _printed(self, command: str) -> Printed:
        words = ["bash", "-c", command]
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            check=False,
            preexec_fn=_on_one_processor if command.startswith("slotproof prove") else None,
        )
        return Printed(done.stdout, done.returncode)

    def _test(self) -> str:
        found = TEST.findall(self.last)
        if len(found) != 1:
            raise ValueError(f"the last command has printed {len(found)} tests, expected one to paste:\n{self.last}")
        return "\n".join(line.rstrip() for line in found[0].splitlines()) + "\n"


def _on_one_processor() -> None:
    """What fails is printed when it is found: on several processors in an order that differs between two runs."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def copied(folder: Path) -> None:
    """Copies this checkout to the folder: what a command needs, and a small stem to try laws on."""
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)


def changed(text: str, diff: str) -> str:
    """The text with a diff applied. Raises ``ValueError`` unless the lines with ``-`` stand in it once, as a block."""
    old = "".join(line[1:] for line in diff.splitlines(keepends=True) if line[0] in " -")
    new = "".join(line[1:] for line in diff.splitlines(keepends=True) if line[0] in " +")
    if text.count(old) != 1:
        raise ValueError(f"the lines to be changed stand {text.count(old)} times in the file, expected once:\n{old}")
    return text.replace(old, new)


def steady(text: str, folder: Path) -> str:
    """What a command has printed, without what differs between two runs: times, and where the folder is."""
    text = text.replace(f"{folder}{os.sep}", "").replace(str(folder), ".")
    for pattern, shown in VARIES:
        text = pattern.sub(shown, text)
    text = CELL.sub(lambda found: "…".ljust(len(found[0])), text)
    return "".join(f"{line.rstrip()}\n" for line in text.strip().splitlines())


def _command(path: Path, module: str) -> None:
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {module} "$@"\n', encoding="utf-8")
    path.chmod(0o755)


def _environment(scratch: Path, commands: Path) -> dict[str, str]:
    """The reader's environment: this checkout is installed, and nothing was kept from earlier checks. In CI pytest
    prints more, so the environment does not say that it is CI.
    """
    others = ("PYTEST", "COV_", "GIT_", "CI", "BUILD_NUMBER", "GITHUB_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    return {
        **kept,
        "PATH": f"{commands}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": str(ROOT),
        "SLOTPROOF_CACHE": str(scratch / "cache"),
        "NO_COLOR": "1",
        "COLUMNS": "80",
        "PYTEST_ADDOPTS": "-p no:cacheprovider",
    }

"""The pytest plugin: ``pytest --slotproof ENGINE`` adds a test for each stem, beside the tests that pytest finds.

Each test runs ``slotproof check`` in a process of its own, so nothing of an engine, and no torch, is loaded into
pytest's. Without the option the plugin does nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

STEMS = (
    *("allocator", "swa_mapping", "lock_ref", "session_trim", "mamba_slots", "cache"),
    *("block_pool", "block_cache", "host_tier"),
)
OPTIONS = {
    "source": "Folder with the engine's source code. Its code is executed.",
    "base": "Only what breaks here and holds there fails: a folder, a git revision or a release.",
    "release": "Release of the engine.",
    "examples": "Random runs for each stem; by default 200, 25 of servers, or what the budget allows.",
    "budget": "Time for each stem, for example 20s.",
}
HOLDS, BROKEN, USAGE = 0, 1, 3
NOT_OF_THE_ENGINE = "no stem of this engine"  # how the command says that the engine does not have this stem


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options. Each is that of ``slotproof check``, with ``slotproof-`` before its name."""
    group = parser.getgroup("slotproof", "the law of a KV cache's bookkeeping")
    group.addoption("--slotproof", metavar="ENGINE", help="Check this engine: a name, or package.module:maker.")
    for name, text in OPTIONS.items():
        group.addoption(f"--slotproof-{name}", metavar=name.upper(), help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Adds the tests where an engine is named."""
    if config.getoption("--slotproof"):
        config.pluginmanager.register(Stems(config), "slotproof-stems")
        config.addinivalue_line("markers", "slotproof: a check of an engine by Slotproof")
        return
    given = [name for name in OPTIONS if config.getoption(f"--slotproof-{name}")]
    if given:
        raise pytest.UsageError(f"--slotproof-{given[0]} is given without --slotproof ENGINE")


class Stems:
    """Adds a test for each stem to what pytest has found."""

    def __init__(self, config: pytest.Config) -> None:
        self.engine: str = config.getoption("--slotproof")
        self.given: dict[str, str] = {name: config.getoption(f"--slotproof-{name}") for name in OPTIONS}

    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Puts the tests of the stems before all others: ``slotproof::ENGINE::STEM``."""
        parent = Group.from_parent(session, name=self.engine, nodeid=f"slotproof::{self.engine}")
        parent.stems = self
        items[:0] = parent.collect()


class Group(pytest.Collector):
    """The engine, to which the tests of its stems belong."""

    stems: Stems

    def collect(self) -> list[pytest.Item]:
        """A test for each stem."""
        return [Check.from_parent(self, name=stem, stems=self.stems) for stem in STEMS]


class Failed(Exception):
    """The check did not pass. The message is what the test shows."""


class Check(pytest.Item):
    """``slotproof check`` of one engine on one stem."""

    def __init__(self, *, stems: Stems, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.stems = stems
        self.add_marker("slotproof")

    def runtest(self) -> None:
        """Runs the check. Fails with the finding; a stem that the engine does not have is skipped."""
        options = [word for name, given in self.stems.given.items() if given for word in (f"--{name}", given)]
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.json"
            command = ["check", self.stems.engine, self.name, *options, "--json", str(report)]
            done = subprocess.run(
                [sys.executable, "-m", "slotproof", *command],
                cwd=self.config.invocation_params.dir,
                env={**os.environ, "COLUMNS": "100"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                check=False,
            )
            found = json.loads(report.read_text("utf-8")) if report.is_file() else None
        if done.returncode == USAGE and NOT_OF_THE_ENGINE in done.stderr:
            pytest.skip(f"{self.stems.engine} has no {self.name}")
        if done.returncode != HOLDS:
            what = f"{found['reason']}\n\n" if found else ""
            raise Failed(f"{what}{done.stdout if done.returncode == BROKEN else ''}{done.stderr}".rstrip())

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *_: Any) -> str:
        """What the command has printed, without pytest's own lines."""
        return str(excinfo.value) if isinstance(excinfo.value, Failed) else str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """The name under which the test is listed."""
        return Path("slotproof"), None, f"slotproof check {self.stems.engine} {self.name}"

"""An engine's own tests, run on its own classes and on ours: what passes where, and why ours differ.

Each run is a process of its own, since a process holds one release. It imports the release as a check does, with stubs
for what is not installed, and gives the tests to pytest. A test that needs more than is installed fails on both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from conformance.driver.printable import first_line, message_of
from conformance.driver.protocol import EngineError, Json

OWN, STOOD_IN = "own", "slotproof"  # whose classes are tested
VERDICTS = ("defect", "deliberate", "internals")
_TIMEOUT_S = 1200
_SHOWN = 160  # letters of the reason why a test fails


@dataclass(frozen=True)
class Named:
    """A test that passes on the engine's own classes and fails on ours, and why.

    ``verdict``: ``defect`` for one of ours, ``deliberate`` where ours refuse what the test does, ``internals`` where
    the test reads or writes private parts of the engine's class.
    """

    verdict: str
    reason: str


# In the child process.


class Reporter:
    """A plugin of pytest that keeps of each test why it failed, ``""`` if it passed. Tests that are skipped are left
    out.
    """

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Each phase of a test."""
        if report.failed:
            self.found[report.nodeid] = _why(report)
        elif report.when == "call" and report.passed:
            self.found.setdefault(report.nodeid, "")

    def pytest_collectreport(self, report: Any) -> None:
        """A file that cannot be imported counts as one test that fails."""
        if report.failed:
            self.found[report.nodeid] = _why(report)


def _why(report: Any) -> str:
    crash = getattr(getattr(report, "longrepr", None), "reprcrash", None)
    text = str(crash.message if crash is not None else report.longrepr).strip().splitlines()
    return (text[0] if crash is not None else text[-1])[:_SHOWN] if text else "no reason is given"


def child(arguments: Sequence[str], load: Callable[[Path, str, bool], object]) -> int:
    """The run of one process: ``SOURCE LABEL CLASSES TESTS OUT FILE...``. ``load``: imports the release of the folder
    SOURCE, with our classes where CLASSES is ``slotproof``.
    """
    import pytest

    source, label, classes, tests, out, *files = arguments
    sys.path.insert(0, tests)
    try:
        load(Path(source), label, classes == STOOD_IN)
    except EngineError as error:
        print(first_line(message_of(error)), file=sys.stderr)
        return 3
    reporter = Reporter()
    words = ["--noconftest", "-c", os.devnull, "--rootdir", tests, "-p", "no:cacheprovider", "-q", "--tb=line"]
    pytest.main([*words, "--disable-warnings", *(str(Path(tests, file)) for file in files)], plugins=[reporter])
    Path(out).write_text(json.dumps(reporter.found), encoding="utf-8")
    return 0


# In the parent process.


@dataclass(frozen=True)
class Peer:
    """The tests of one release. ``module``: its child process. ``source``, ``label``: the release. ``tests``: the
    folder below which ``files`` are.
    """

    module: str
    source: Path
    label: str
    tests: Path
    files: tuple[str, ...]

    def ran(self, classes: str) -> dict[str, str]:
        """Of each test why it fails on these classes, ``""`` where it passes."""
        if find_spec("pytest") is None:
            raise EngineError("compat --tests runs tests with pytest, which is not installed: pip install pytest")
        with tempfile.TemporaryDirectory() as scratch:
            out = Path(scratch, "found.json")
            words = (str(self.source), self.label, classes, str(self.tests), str(out), *self.files)
            self._child(words, scratch)
            found: dict[str, str] = json.loads(out.read_text(encoding="utf-8"))
        return found

    def _child(self, words: Sequence[str], scratch: str) -> None:
        root = Path(__file__).resolve().parents[2]
        path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": path}
        environment.pop("PYTEST_ADDOPTS", None)
        try:
            ended = subprocess.run(
                [sys.executable, "-m", self.module, *words],
                cwd=scratch,
                env=environment,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise EngineError(f"{self.label}: its tests did not end within {_TIMEOUT_S} s") from error
        if ended.returncode:
            lines = ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"]
            raise EngineError(f"{self.label}: its tests cannot run: {lines[-1]}")

    def compared(self, named: Mapping[str, Named]) -> Json:
        """What ``slotproof compat --tests`` shows. ``named``: by the name of a test why it fails on ours alone."""
        return judged(self.files, self.ran(OWN), self.ran(STOOD_IN), named)


def judged(
    files: Sequence[str], own: Mapping[str, str], stood_in: Mapping[str, str], named: Mapping[str, Named]
) -> Json:
    """Two runs of the same tests, compared: ``files``, ``differences``, ``unnamed``, ``stale`` and ``both``, as
    docs/json.md says.
    """
    names = [*dict.fromkeys([*own, *stood_in])]
    missing = "the test is not there with these classes"
    alone = [name for name in names if not own.get(name, missing) and stood_in.get(name, missing)]
    rows = [_difference(name, stood_in.get(name, missing), named.get(_short(name))) for name in alone]
    passing = {_short(name) for name in names if name not in alone}
    known = {_short(name) for name in alone}
    return {
        "files": [_of_file(file, own, stood_in) for file in files],
        "differences": rows,
        "unnamed": [row["test"] for row in rows if not row["verdict"]],
        "stale": sorted(name for name in named if name in passing and name not in known),
        "both": dict(Counter(own[name] for name in own if own[name] and stood_in.get(name)).most_common()),
    }


def _short(name: str) -> str:
    """``FILE::TEST`` without folders and parameters: one entry of the table is for all parameters of a test."""
    return name.partition("[")[0].rpartition("/")[2]


def _difference(name: str, error: str, why: Named | None) -> Json:
    return {
        "test": name,
        "error": error,
        "verdict": why.verdict if why else "",
        "reason": why.reason if why else "",
    }


def _of_file(file: str, own: Mapping[str, str], stood_in: Mapping[str, str]) -> Json:
    mine = [name for name in own if name.partition("::")[0] == file]
    return {
        "file": file,
        "tests": len(mine),
        "own": sum(not own[name] for name in mine),
        "slotproof": sum(stood_in.get(name) == "" for name in mine),
    }

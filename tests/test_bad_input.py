"""Bad input, by the list in ``tests/bad_input.py``: exit code 3, one line that names what is wrong, no file changed,
and nobody waits ten seconds without a word.
"""

from __future__ import annotations

import io
import json
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bad_input import EVERY, FILES, BadInput

from slotproof import cli
from slotproof.console import codes, screen

SILENT = 10.0  # seconds
STOP = 45  # seconds after which a command that took the bad input, and works, is ended
LONGEST = 450  # characters of a message
LEAST = 119  # kinds of bad input
KEPT = Path(__file__).parents[1] / "conformance" / "engines" / "sglang" / "traces" / "insert_under_reader.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the list."""
    made = tmp_path_factory.mktemp("bad")
    (made / "folder").mkdir()
    for name, text in FILES.items():
        (made / name).write_bytes(text)
    trace = json.loads(KEPT.read_text(encoding="utf-8"))
    row = {"trace": {key: trace[key] for key in ("stem", "config", "steps")}}
    lists: dict[str, Any] = {"schema": 1, "results": [], "worse": [], "incomparable": [], "known": [], "gone": []}
    (made / "nofindings.json").write_text(json.dumps({**lists, "new": []}))
    (made / "findings.json").write_text(json.dumps({**lists, "new": [row], "known": [row]}))
    return made


@pytest.fixture(autouse=True)
def _place(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SLOTPROOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    known = {*sys.modules}
    yield
    screen.console.stderr = False
    for name in {*sys.modules} - known:
        if name.startswith("bi_"):
            del sys.modules[name]


def marked(one: BadInput) -> Any:
    return pytest.param(one, marks=[pytest.mark.soak] if one.slow else [], id=one.words[:80])


def _works(*_: object) -> None:
    raise TimeoutError("it took the bad input, and works")


@pytest.mark.parametrize("one", [marked(one) for one in EVERY])
def test_bad_input_is_one_clear_line(
    one: BadInput, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    monkeypatch.setattr(sys, "argv", ["slotproof", *one.words.split()])
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(one.stdin), isatty=lambda: False))
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # each run of the command wraps it
    begun = time.monotonic()
    signal.signal(signal.SIGALRM, _works)
    signal.alarm(STOP)
    try:
        code = cli.run()
    finally:
        signal.alarm(0)
    seconds, (out, said) = time.monotonic() - begun, capfd.readouterr()
    *waits, line = said.splitlines()
    assert code == codes.USAGE, said
    assert re.search(one.says, line, re.IGNORECASE), line
    assert line.startswith("slotproof: ")
    assert len(line) <= LONGEST + len(str(folder)) * line.count(str(folder)), line
    assert "Traceback" not in said + out
    assert waits == [] or (one.slow and all("waits for" in wait for wait in waits)), waits
    assert seconds < SILENT or waits, "nobody waits without a word"
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_the_list_is_long_and_has_nothing_twice() -> None:
    assert len({(one.words, one.stdin) for one in EVERY}) == len(EVERY) >= LEAST

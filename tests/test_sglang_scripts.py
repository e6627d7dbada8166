"""Each script that shows a finding on SGLang alone shows it on the newest release, and belongs to a kept trace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import known
from conformance.engines.sglang import PLUGIN, RELEASES, alone

FILES = sorted(alone.SCRIPTS.glob("*.py"))
ROOT = Path(__file__).resolve().parents[1]


def test_each_script_belongs_to_a_known_difference_of_the_newest_release() -> None:
    listed = {difference.trace for difference in known.of_release(PLUGIN.folder, RELEASES[-1])}
    assert {file.stem for file in FILES} <= listed
    assert FILES


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_script_imports_nothing_of_ours(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert not [name for name in ("slotproof", "conformance", "spec.", "impl.") if name in text]


@pytest.mark.engine
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_script_shows_its_finding(file: Path) -> None:
    command = [sys.executable, "-m", alone.__name__, RELEASES[-1], str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ})
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.startswith(f"{file.stem}: ")

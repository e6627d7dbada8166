"""Runs a script on one real release of SGLang, in a process of its own: a process can hold one release."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from conformance.engines.protocol import EngineError
from conformance.engines.sglang import download


def have(release: str) -> Path:
    """The sources of the release; skips the test where they cannot be had."""
    pytest.importorskip("triton")
    try:
        return download.release(release)
    except EngineError as error:
        pytest.skip(str(error))


def driven(release: str, script: str, *arguments: str) -> list[dict[str, Any]]:
    """The last line that the script printed, as JSON. The first argument of the script is the release."""
    have(release)
    command = [sys.executable, "-c", textwrap.dedent(script), release, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    answer: list[dict[str, Any]] = json.loads(ran.stdout.splitlines()[-1])
    return answer

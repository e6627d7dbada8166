"""A script about one real release, run in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from conformance.subjects import releases
from conformance.subjects.errors import SubjectError


def have(release: str) -> Path:
    """The sources of the release; skips the test where they cannot be had."""
    pytest.importorskip("triton")
    try:
        return releases.release(release)
    except SubjectError as error:
        pytest.skip(str(error))


def driven(release: str, script: str, *arguments: str) -> list[dict[str, Any]]:
    """What the script printed last, as JSON; its arguments begin with the release."""
    have(release)
    command = [sys.executable, "-c", textwrap.dedent(script), release, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    answer: list[dict[str, Any]] = json.loads(ran.stdout.splitlines()[-1])
    return answer

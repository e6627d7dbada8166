"""The files of a git revision, read without touching the checkout."""

from __future__ import annotations

import subprocess
import tarfile
import tempfile
from pathlib import Path

from conformance.driver.protocol import EngineError


def unpack(top: Path, commit: str, target: Path, *folders: str) -> None:
    """Writes the files of a commit to ``target``, without touching the checkout or its list of work trees.

    ``folders``: only these folders of it. Nothing is done where ``target`` is there. Raises ``EngineError``.
    """
    if target.is_dir():
        return
    with tempfile.TemporaryFile() as archive:
        command = ["git", "-C", str(top), "archive", "--format=tar", commit, *folders]
        done = subprocess.run(command, stdout=archive, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise EngineError(f"git archive {commit[:12]} failed: {_last(done.stderr)}")
        archive.seek(0)
        target.mkdir(parents=True)
        with tarfile.open(fileobj=archive) as packed:
            packed.extractall(target, filter="data")


def commit_of(folder: Path, revision: str) -> str | None:
    """The full name of a commit of the checkout in which the folder lies, ``None`` if there is none."""
    return git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")


def git(folder: Path, *words: str) -> str | None:
    """What git prints, ``None`` if it fails or is not installed."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]

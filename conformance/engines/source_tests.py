"""An engine's own tests, from the source archive of a release on the package index, or from a checkout.

They are unpacked to the ignored cache beside the releases, and are never part of this repository. pip downloads the
archive, and is kept from building it: no code of the archive is executed here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from conformance.driver.cache_folder import cache_folder
from conformance.driver.protocol import EngineError
from conformance.engines.wheels import reason_of

# pip stops before it builds, since what the build needs is not installed; ``--no-clean`` keeps what it unpacked.
_DOWNLOAD = ("download", "--quiet", "--no-deps", "--no-binary=:all:", "--no-build-isolation")
_UNBUILT = ("--check-build-dependencies", "--no-clean")
_TIMEOUT_S = 900


def released(package: str, version: str, needed: str) -> Path:
    """The folder below which the tests of a release are, with their folder ``tests``; downloaded the first time.

    ``needed``: a folder that the tests must have. Raises ``EngineError`` if the release has no source archive on the
    package index, if this has no such folder, or if the index cannot be reached.
    """
    target = cache_folder() / "tests" / package / version
    if not (target / needed).is_dir():
        with tempfile.TemporaryDirectory(prefix="tests-") as scratch:
            _keep(_unpacked(package, version, Path(scratch), needed), target)
    return target


def of_checkout(folder: Path, title: str, needed: str) -> Path:
    """The checkout, if it has the folder ``needed``; else ``EngineError``."""
    if not (folder / needed).is_dir():
        raise EngineError(f"{folder} has no tests of {title}: expected {needed} below it")
    return folder.resolve()


def _unpacked(package: str, version: str, scratch: Path, needed: str) -> Path:
    """Where pip has unpacked the archive, below ``scratch``."""
    words = (*_DOWNLOAD, *_UNBUILT, f"{package}=={version}", "-d", str(scratch / "built"))
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--no-color")
    environment = {**os.environ, "TMPDIR": str(scratch)}
    try:
        ended = subprocess.run(
            [*pip, *words], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, env=environment
        )
        said = reason_of(ended.stderr)
    except subprocess.TimeoutExpired:
        said = f"nothing for {_TIMEOUT_S} s; is the package index reachable?"
    roots = [place.parent for place in scratch.glob("pip-*/*/PKG-INFO")]
    for root in roots:
        if (root / needed).is_dir():
            return root
    if roots:
        raise EngineError(f"{package} {version}: its source archive on the package index has no {needed}")
    raise EngineError(f"{package} {version}: no source archive with tests can be downloaded (pip said: {said})")


def _keep(root: Path, target: Path) -> None:
    """Keep the folder ``tests`` of an unpacked archive; another process may do so at the same time."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".tests-") as scratch:
        shutil.copytree(root / "tests", Path(scratch, "kept", "tests"))
        if not target.exists():
            Path(scratch, "kept").rename(target)

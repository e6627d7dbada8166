"""``slotproof --version``."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from conformance.driver.cache_folder import checkout


def line() -> str:
    """Name, version, Python, and where the code is: a checkout or an installed package."""
    root = checkout()
    where = f"checkout {root}" if root else f"package {Path(__file__).resolve().parents[1]}"
    return f"slotproof {of('slotproof')}, Python {platform.python_version()}, {where}"


def of(package: str) -> str:
    """The version of an installed package, or "(not installed)"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)"

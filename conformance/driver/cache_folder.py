"""Where files are kept between runs: downloaded releases, and the reports of runs in which the tool itself failed."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def checkout() -> Path | None:
    """The root of the checkout that this code runs from; ``None`` where it is installed as a package."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "pyproject.toml").is_file() else None


def cache_folder() -> Path:
    """The folder ``SLOTPROOF_CACHE`` if it is set; else ``.cache`` of the checkout; else the user's cache folder, for
    example ``~/.cache/slotproof``. The folder may not exist yet.
    """
    if named := os.environ.get("SLOTPROOF_CACHE"):
        return Path(named)
    root = checkout()
    return root / ".cache" if root else Path(platformdirs.user_cache_dir("slotproof", appauthor=False))

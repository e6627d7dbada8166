"""Where downloaded releases and runs that failed are kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder SLOTPROOF_CACHE if it is set, else `.cache` in this repository or the working directory."""
    if named := os.environ.get("SLOTPROOF_CACHE"):
        return Path(named)
    repository = Path(__file__).resolve().parents[1]
    return (repository if (repository / "pyproject.toml").is_file() else Path.cwd()) / ".cache"

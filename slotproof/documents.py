"""Generated documents."""

from __future__ import annotations

from pathlib import Path


def engines(json: Path | None) -> int:
    """Placeholder until written."""
    raise ValueError("not yet")


def write(check_only: bool) -> int:
    """Placeholder until written."""
    raise ValueError("not yet")

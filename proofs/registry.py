"""The stems that can be proved, by name."""

from __future__ import annotations

from importlib import import_module

from proofs.hints import Hints

STEMS = ("allocator", "swa_mapping", "lock_ref", "session_trim", "mamba_slots", "cache")


def hints_of(stem: str) -> Hints:
    """The hints of a stem; ``KeyError`` where there is no such stem."""
    if stem not in STEMS:
        raise KeyError(f"no stem {stem!r}; there are: {', '.join(STEMS)}")
    hints: Hints = import_module(f"{__package__}.{stem}").HINTS
    return hints

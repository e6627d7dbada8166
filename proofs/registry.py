"""The stems that can be proved, by name."""

from __future__ import annotations

from importlib import import_module

from proofs.hints import Hints

DRIVEN = (  # engines run beside these
    *("allocator", "swa_mapping", "lock_ref", "session_trim", "mamba_slots", "cache"),
    *("block_pool", "block_cache"),
)
STREAMS = ("kv_events",)  # what an engine says, in a run of any stem or in a recorded stream, is judged by these
STEMS = (*DRIVEN, *STREAMS)


def hints_of(stem: str) -> Hints:
    """The hints of a stem; ``KeyError`` where there is no such stem."""
    if stem not in STEMS:
        raise KeyError(f"no stem {stem!r}; there are: {', '.join(STEMS)}")
    hints: Hints = import_module(f"{__package__}.{stem}").HINTS
    return hints

"""What an allocator of a release is made of: the calls that allocate, and the allocators of its pools.

``driving`` finds out from here which of its calls an allocator has, whichever release made it.
"""

from __future__ import annotations

from typing import Any

CALLS = ("alloc", "alloc_extend", "alloc_decode")
SIDES = ("full_attn_allocator", "swa_attn_allocator")


def calls(allocator: Any) -> list[str]:
    """The names of the calls by which an allocator hands slots out."""
    return [name for name in CALLS if hasattr(allocator, name)]


def sides(allocator: Any) -> list[Any]:
    """The allocators of the full and of the SWA pool, or the one allocator where there is one pool."""
    found = [getattr(allocator, name, None) for name in SIDES]
    return [side for side in found if side is not None] or [allocator]

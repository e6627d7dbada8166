"""The machine that draws runs of ``allocator``: the rules of ``conformance.stems.pools.rules`` on one pool."""

from __future__ import annotations

from conformance.stems.pools.rules import PoolRules


class AllocatorMachine(PoolRules):
    """Rows of slots over one pool."""

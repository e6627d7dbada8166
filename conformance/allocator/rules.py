"""The machine that draws runs of ``allocator``: the rules of ``conformance.pool_rules`` on one pool."""

from __future__ import annotations

from conformance.pool_rules import PoolRules


class AllocatorMachine(PoolRules):
    """Rows of slots over one pool."""

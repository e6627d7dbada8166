"""The runs of ``allocator`` that Hypothesis draws: the rules of ``pool_rules`` on one pool."""

from __future__ import annotations

from conformance.pool_rules import PoolRules


class AllocatorMachine(PoolRules):
    """Rows of slots over one pool."""

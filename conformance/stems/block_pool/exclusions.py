"""What drawn runs of ``block_pool`` avoid, so that they find other bugs than those that are known."""

from __future__ import annotations

from enum import StrEnum


class BlockPoolExclusion(StrEnum):
    """What runs of ``block_pool`` avoid."""

    NULL_HASH = "block_pool.null_hash"  # that places with the null block are offered to the prefix cache


EXCLUSIONS = BlockPoolExclusion

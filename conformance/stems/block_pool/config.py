"""The configuration of a run of ``block_pool``."""

from __future__ import annotations

from typing_extensions import TypedDict

from conformance.stems.configs import FewPages, Groups, Pages, Rows, exact


@exact
class BlockPoolConfig(TypedDict):
    """A pool of blocks.

    ``blocks``: usable blocks, without the null block. ``rows``: how many rows the caller has, numbered from 1.
    ``indices``: the most blocks of a row. ``groups``: groups of layers; row ``r`` belongs to group ``r % groups``.
    ``caching``: there is a prefix cache.
    """

    blocks: Pages
    rows: Rows
    indices: FewPages
    groups: Groups
    caching: bool


CONFIG = BlockPoolConfig

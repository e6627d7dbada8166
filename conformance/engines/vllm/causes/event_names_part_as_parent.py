"""The event for a part of a block names the whole block before it as its parent, and has all tokens from there on."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces two methods of the release, for the rest of this process."""
    from vllm.v1.core.block_pool import BlockPool

    real = BlockPool.cache_partial_block

    def cache_partial_block(self: Any, *more: Any, **named: Any) -> Any:
        self.size_of_block = named["block_size"] if "block_size" in named else more[4]
        return real(self, *more, **named)

    def get_partial_block_parent_hash_and_start(self: Any, request: Any, num_tokens: int) -> tuple[Any, int]:
        start = (num_tokens - 1) // self.size_of_block * self.size_of_block
        return (request.block_hashes[start // self.hash_block_size - 1] if start else None), start

    BlockPool.cache_partial_block = cache_partial_block
    BlockPool._get_partial_block_parent_hash_and_start = get_partial_block_parent_hash_and_start

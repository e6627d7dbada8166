"""The event for a part of a block names the whole block before it as its parent, and has all tokens from there on."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from vllm.v1.core.block_pool import BlockPool, BlockStored
    from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

    real = BlockPool.cache_partial_block

    def cache_partial_block(self: Any, *, request: Any, num_tokens: int, block_size: int, **named: Any) -> Any:
        told = len(self.kv_event_queue)
        hashed = real(self, request=request, num_tokens=num_tokens, block_size=block_size, **named)
        start = (num_tokens - 1) // block_size * block_size
        for event in self.kv_event_queue[told:]:
            if isinstance(event, BlockStored):
                before = request.block_hashes[start // self.hash_block_size - 1] if start else None
                event.parent_block_hash = maybe_convert_block_hash(before) if start else None
                event.token_ids = request.all_token_ids[start:num_tokens]
                event.block_size = num_tokens - start
        return hashed

    BlockPool.cache_partial_block = cache_partial_block

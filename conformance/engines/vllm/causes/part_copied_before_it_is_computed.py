"""A request that goes on in a copy of a block waits for the next step, where the block is computed in this one."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager, MambaManager

    real = KVCacheManager.allocate_slots

    def allocate_slots(self: Any, request: Any, new: int, num_new_computed_tokens: int = 0, **named: Any) -> Any:
        singles, found = self.coordinator.single_type_managers, named.get("new_computed_blocks")
        of_step = [one.cached_blocks_this_step for one in singles if isinstance(one, MambaManager)]
        ends_inside = bool(num_new_computed_tokens % singles[0].block_size)
        tails = [blocks[-1] for blocks in found.blocks if blocks] if ends_inside and found is not None else []
        if any(tail.block_hash in hashes for hashes in of_step for tail in tails):
            return None  # as where there are too few blocks
        tables = [one.req_to_blocks for one in singles if isinstance(one, FullAttentionManager)]
        before = {block.block_hash for table in tables for block in table.get(request.request_id, ())}
        given = real(self, request, new, num_new_computed_tokens, **named)
        now = {block.block_hash for table in tables for block in table.get(request.request_id, ())}
        for hashes in of_step:
            hashes.update(now - before - {None})
        return given

    KVCacheManager.allocate_slots = allocate_slots

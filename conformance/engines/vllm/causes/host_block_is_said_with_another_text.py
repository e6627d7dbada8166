"""A block is copied to host memory where it still has the hash of its place; else the cache is asked for that hash."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id, resolve_block_hashes
    from vllm.v1.simple_kv_offload.manager import SimpleCPUOffloadScheduler

    real = SimpleCPUOffloadScheduler._select_eager_blocks_to_store

    def select_eager_blocks_to_store(self: Any, state: Any, block_ids_by_group: tuple[list[int], ...]) -> Any:
        pool, own = self._gpu_block_pool, []
        for group, (blocks, size) in enumerate(zip(block_ids_by_group, self.group_block_sizes, strict=True)):
            hashes = resolve_block_hashes(state.request.block_hashes, self.hash_block_size, size)
            wanted = [make_block_hash_with_group_id(one, group) for one in hashes][: len(blocks)]
            pairs = zip(blocks, wanted, strict=False)
            own.append([one if pool.blocks[one].block_hash == key else pool.null_block.block_id for one, key in pairs])
        return real(self, state, tuple(own))

    SimpleCPUOffloadScheduler._select_eager_blocks_to_store = select_eager_blocks_to_store

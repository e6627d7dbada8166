"""A request that goes on in a copy of a block waits for the next step, where the block is computed in this one."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces three methods of the release, for the rest of this process."""
    from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager as Manager

    real_cache, real_need, real_begin = (
        Manager.cache_blocks,
        Manager.get_num_blocks_to_allocate,
        Manager.new_step_starts,
    )

    def cache_blocks(self: Any, request: Any, *more: Any, **named: Any) -> None:
        before = {block.block_id for block in self.req_to_blocks[request.request_id] if block.block_hash is not None}
        real_cache(self, request, *more, **named)
        now = {block.block_id for block in self.req_to_blocks[request.request_id] if block.block_hash is not None}
        vars(self).setdefault("computed_in_this_step", set()).update(now - before)

    def get_num_blocks_to_allocate(self: Any, request_id: str, *more: Any, **named: Any) -> int:
        found = named["new_computed_blocks"] if "new_computed_blocks" in named else more[1]
        tokens = named["num_local_computed_tokens"] if "num_local_computed_tokens" in named else more[3]
        fresh = vars(self).get("computed_in_this_step", ())
        if self._has_partial_local_hit(found, tokens) and found[-1].block_id in fresh:
            return int(self.block_pool.num_gpu_blocks) + 1  # more than there are: not in this step
        return int(real_need(self, request_id, *more, **named))

    def new_step_starts(self: Any) -> None:
        vars(self).pop("computed_in_this_step", None)
        real_begin(self)

    Manager.cache_blocks = cache_blocks
    Manager.get_num_blocks_to_allocate = get_num_blocks_to_allocate
    Manager.new_step_starts = new_step_starts

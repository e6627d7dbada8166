"""A reset that meets blocks of a step in flight, and no others, lets the prefix cache forget every hash."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from vllm.v1.core.sched.scheduler import Scheduler

    real = Scheduler.reset_prefix_cache

    def reset_prefix_cache(self: Any, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        try:
            return bool(real(self, reset_running_requests, reset_connector))
        except RuntimeError:
            pool = self.kv_cache_manager.block_pool
            kept = sum(not block.is_null for _, blocks in self.deferred_frees for block in blocks)
            if kept != sum(block.ref_cnt for block in pool.blocks if not block.is_null):
                raise  # a transfer or a copy has blocks, too
            pool.evict_blocks({block.block_id for block in pool.blocks if block.block_hash is not None})
            return False

    Scheduler.reset_prefix_cache = reset_prefix_cache

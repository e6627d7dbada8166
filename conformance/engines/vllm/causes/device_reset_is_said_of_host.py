"""A reset of the device alone says of each block of the device that it is gone there."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from vllm.v1.core.sched.scheduler import Scheduler

    real = Scheduler.reset_prefix_cache

    def reset_prefix_cache(self: Any, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        pool = self.kv_cache_manager.block_pool
        found = pool.cached_block_hash_to_block._cache.items()  # several blocks of one hash are said one by one
        gone = [key for key, blocks in found for _ in (blocks if isinstance(blocks, dict) else [blocks])]
        done = bool(real(self, reset_running_requests, reset_connector))
        if done and not reset_connector and pool.enable_kv_cache_events:
            pool.kv_event_queue.pop()  # AllBlocksCleared
            pool._emit_block_removed_events(gone)
        return done

    Scheduler.reset_prefix_cache = reset_prefix_cache

"""A reset of the device alone says of each block of the device that it is gone there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from vllm.v1.core.sched.scheduler import Scheduler

    real = Scheduler.reset_prefix_cache

    def reset_prefix_cache(self: Any, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        pool = self.kv_cache_manager.block_pool
        if reset_connector or not pool.enable_kv_cache_events:
            return bool(real(self, reset_running_requests, reset_connector))
        pool.reset_prefix_cache = partial(_clear_the_device, pool, pool.reset_prefix_cache)
        try:
            return bool(real(self, reset_running_requests, reset_connector))
        finally:
            del pool.reset_prefix_cache

    Scheduler.reset_prefix_cache = reset_prefix_cache


def _clear_the_device(pool: Any, clear: Callable[[], bool]) -> bool:
    """The pool is reset, and says which blocks are gone. Requests have been preempted by now."""
    found = pool.cached_block_hash_to_block._cache.items()  # several blocks of one hash are said one by one
    gone = [key for key, blocks in found for _ in (blocks if isinstance(blocks, dict) else [blocks])]
    done = bool(clear())
    if done:
        pool.kv_event_queue.pop()  # AllBlocksCleared
        pool._emit_block_removed_events(gone)
    return done

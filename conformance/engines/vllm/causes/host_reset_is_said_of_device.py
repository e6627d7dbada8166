"""A reset of host memory says of each of its blocks that it is gone, unless the device has said it of all blocks."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from vllm.distributed.kv_events import AllBlocksCleared
    from vllm.v1.simple_kv_offload.manager import SimpleCPUOffloadScheduler

    real = SimpleCPUOffloadScheduler.reset

    def reset(self: Any) -> bool:
        pool, device = self.cpu_block_pool, self._gpu_block_pool.kv_event_queue
        gone = list(pool.cached_block_hash_to_block._cache)
        done = bool(real(self))
        if done and pool.enable_kv_cache_events:
            pool.kv_event_queue.pop()  # AllBlocksCleared
            if not (device and isinstance(device[-1], AllBlocksCleared)):
                pool._emit_block_removed_events(gone)
        return done

    SimpleCPUOffloadScheduler.reset = reset

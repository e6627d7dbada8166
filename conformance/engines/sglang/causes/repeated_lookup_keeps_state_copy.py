"""A request that waits for a second look at the storage gives back its copy of a mamba state."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from sglang.srt.managers.scheduler import Scheduler

    real = Scheduler._prefetch_after_device_hit_loss

    def prefetch_after_device_hit_loss(self: Any, req: Any) -> Any:
        waits = real(self, req)
        if waits:
            req.kv.mamba_cow_src_index = None
            req.kv.mamba_needs_clear = False
            if req.kv.holds_mamba and req.session is None:
                self.tree_cache.req_to_token_pool.mamba_allocator.free(req.kv.mamba_pool_idx.unsqueeze(-1))
                req.kv.mamba_pool_idx = None
        return waits

    Scheduler._prefetch_after_device_hit_loss = prefetch_after_device_hit_loss

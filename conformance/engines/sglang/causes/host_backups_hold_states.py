"""Where no state can be evicted, the server waits for its copies to host memory, which hold the states."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    real = UnifiedRadixCache.evict_for_alloc

    def evict_for_alloc(self: Any, params: Any, **given: Any) -> Any:
        found = real(self, params, **given)
        if params.mamba_num and params.mamba_num > self.req_to_token_pool.mamba_allocator.available_size():
            self.writing_check(write_back=True)
            found = real(self, params, **given)
        return found

    UnifiedRadixCache.evict_for_alloc = evict_for_alloc

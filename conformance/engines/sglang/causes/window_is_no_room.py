"""Where pages have one token, a prompt waits until the SWA pool has room for all of it; what can be evicted is."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from sglang.srt.disaggregation.decode import DecodePreallocQueue
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams

    real = DecodePreallocQueue._prealloc_reservation_fits

    def _prealloc_reservation_fits(self: Any, full_tokens: int, *more: Any, **given: Any) -> bool:
        if self.scheduler.tp_worker.is_hybrid_swa and not self._uses_swa_tail_prealloc():
            short = full_tokens - self.token_to_kv_pool_allocator.swa_available_size()
            if short > self.tree_cache.swa_evictable_size():
                return False
            if short > 0:
                self.tree_cache.evict_for_alloc(EvictParams(num_tokens=0, swa_num_tokens=short))
        return bool(real(self, full_tokens, *more, **given))

    DecodePreallocQueue._prealloc_reservation_fits = _prealloc_reservation_fits

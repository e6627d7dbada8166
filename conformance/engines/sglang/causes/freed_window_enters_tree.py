"""A request gives the tree no token behind the first slot that left its window."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from sglang.srt.mem_cache.radix_cache import RadixCache

    real = RadixCache.checkpoint

    def checkpoint(self: Any, request: Any, *, up_to: int) -> Any:
        left = request.kv.max_evicted_seqlen > request.kv.cache_protected_len
        floor = request.kv.swa_evict_floor or request.kv.cache_protected_len
        return real(self, request, up_to=min(up_to, floor) if left else up_to)

    RadixCache.checkpoint = checkpoint

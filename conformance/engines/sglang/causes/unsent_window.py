"""A prompt that has SWA slots which the prefill server does not write stays out of the tree."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from sglang.srt.disaggregation.decode import DecodePreallocQueue

    real = DecodePreallocQueue._pre_alloc

    def _pre_alloc(self: Any, req: Any, prefix_indices: Any = None, prefix_len: Any = None, *more: Any) -> Any:
        slots = real(self, req, prefix_indices, prefix_len, *more)
        page, window = self.token_to_kv_pool_allocator.page_size, self.scheduler.sliding_window_size
        length = req.kv.kv_committed_len
        first = max(prefix_len or 0, length - self._swa_tail_len(length))
        if window and first < (length - window) // page * page:
            req.skip_radix_cache_insert = True
        return slots

    DecodePreallocQueue._pre_alloc = _pre_alloc

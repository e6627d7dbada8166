"""A state that a prefill tracks inside a page of the radix tree does not go to the tree."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from sglang.srt.managers.schedule_batch import ScheduleBatch

    real = ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend

    def prepare_for_extend(self: Any, req: Any) -> Any:
        tracked = real(self, req)
        if tracked.track_mask and req.kv.mamba_last_track_seqlen % self.tree_cache.page_size:
            req.kv.mamba_last_track_seqlen = None
        return tracked

    ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend = prepare_for_extend

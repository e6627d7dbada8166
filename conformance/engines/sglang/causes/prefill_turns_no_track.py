"""The result of a prefill turns the track buffer where the decode step in flight crosses a tracking boundary."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from sglang.srt.managers.scheduler_components import batch_result_processor as results
    from sglang.srt.runtime_context import get_exec

    owner = results.SchedulerBatchResultProcessor
    real = owner.process_batch_result_prefill

    def process_batch_result_prefill(self: Any, batch: Any, result: Any) -> None:
        real(self, batch, result)
        if get_exec().mamba.enable_mamba_extra_buffer_lazy:
            return
        running = batch.decoding_reqs or []
        pool, grid = batch.req_to_token_pool, results.mamba_track_grid(self.tree_cache.page_size)
        for req in batch.reqs:
            crosses = req.kv.kv_committed_len == req.seqlen and req.seqlen % grid == 0 and req not in running
            if crosses and not req.finished() and req.kv.mamba_ping_pong_track_buffer is not None:
                req.kv.mamba_next_track_idx = pool.get_mamba_ping_pong_other_idx(req.kv.mamba_next_track_idx)

    owner.process_batch_result_prefill = process_batch_result_prefill

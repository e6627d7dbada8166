"""A decode step that has crossed a tracking boundary turns the track buffer, where the result before did not."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from sglang.srt.managers.scheduler_components import batch_result_processor as results
    from sglang.srt.runtime_context import get_exec

    owner = results.SchedulerBatchResultProcessor
    real = owner._handle_finish_state_updated_req

    def _handle_finish_state_updated_req(self: Any, req: Any, batch: Any, result: Any, i: int, logits: Any) -> None:
        real(self, req, batch, result, i, logits)
        kv, crossed, crosses = req.kv, batch.mamba_track_mask_cpu, batch.mamba_track_mask_next_cpu
        if req.finished() or get_exec().mamba.enable_mamba_extra_buffer_lazy or not crossed or not crossed[i]:
            return
        in_flight = req.decode_batch_idx > batch.mamba_decode_batch_idx_cpu[i]
        if not (in_flight and crosses[i]) and kv.mamba_next_track_idx == kv.mamba_last_track_idx:
            kv.mamba_next_track_idx = batch.req_to_token_pool.get_mamba_ping_pong_other_idx(kv.mamba_last_track_idx)

    owner._handle_finish_state_updated_req = _handle_finish_state_updated_req

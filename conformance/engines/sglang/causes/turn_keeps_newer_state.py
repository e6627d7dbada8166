"""A session whose state is newer than the text that its next match keeps gives its memory back."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from sglang.srt.session.streaming_session import StreamingSession

    real = StreamingSession.try_cache_finished_req

    def try_cache_finished_req(self: Any, req: Any) -> Any:
        stateful, computed = req.kv.mamba_pool_idx is not None, req.kv.kv_committed_len
        session = req.session and req.session.session_id
        kept = real(self, req)
        known = len(req.origin_input_ids) + len(req.output_ids)
        if kept and stateful and computed > known - (not req.finished()):
            self.release_session(session)
        return kept

    StreamingSession.try_cache_finished_req = try_cache_finished_req

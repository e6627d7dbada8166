"""A session counts no more than was committed when its turn ends."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from sglang.srt.session.streaming_session import StreamingSession

    real = StreamingSession.try_cache_finished_req

    def try_cache_finished_req(self: Any, req: Any) -> Any:
        kv, committed = req.kv, req.kv.kv_committed_len
        kept = real(self, req)
        if kept:  # the session has the record now
            kv.kv_committed_len = min(kv.kv_committed_len, committed)
        return kept

    StreamingSession.try_cache_finished_req = try_cache_finished_req

"""A turn that would cut its session's row to nothing, or below its mamba state, is computed from its beginning."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from sglang.srt.session.streaming_session import StreamingSession

    real = StreamingSession.try_match_prefix

    def try_match_prefix(self: Any, params: Any) -> Any:
        slot = self.find_active_slot(params.req)
        if slot is not None:
            committed = slot.kv.kv_committed_len
            prefix = min(committed, len(params.key))
            if not prefix or (slot.kv.holds_mamba and prefix < committed):
                self.release_session(params.req.session.session_id)
        return real(self, params)

    StreamingSession.try_match_prefix = try_match_prefix

"""A turn that is retracted gives its row back like any other request, and its session waits for it."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from sglang.srt.session.streaming_session import StreamingSession

    real = StreamingSession.try_cache_finished_req

    def try_cache_finished_req(self: Any, req: Any) -> Any:
        slot = self.borrowed_slot(req)
        if slot is None or req.finished_reason is not None:
            return real(self, req)
        del self.slots[req.session.session_id]
        req.lock, slot.lock = slot.lock, None
        return False

    StreamingSession.try_cache_finished_req = try_cache_finished_req

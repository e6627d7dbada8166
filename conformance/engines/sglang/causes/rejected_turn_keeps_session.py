"""A turn that is rejected leaves its session."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from sglang.srt.session.session_controller import Session

    real = Session.create_req

    def create_req(self: Any, *given: Any, **named: Any) -> Any:
        request = real(self, *given, **named)
        if self.streaming and request.to_finish is not None:
            request.session = None
        return request

    Session.create_req = create_req

"""A turn that its session rejects is served as a request without a session."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from sglang.srt.session.session_controller import Session

    real = Session.create_req

    def create_req(self: Any, *arguments: Any, **more: Any) -> Any:
        request = real(self, *arguments, **more)
        if self.streaming and request.to_finish is not None:
            request.session = None
        return request

    Session.create_req = create_req

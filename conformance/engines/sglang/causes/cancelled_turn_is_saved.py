"""A turn that is aborted while it waits gives its session's record back unchanged."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from sglang.srt.managers.scheduler import Scheduler

    real = Scheduler.abort_request

    def abort_request(self: Any, recv_req: Any) -> None:
        for req in self.waiting_queue:
            named = recv_req.abort_all or req.rid.startswith(recv_req.rid)
            turn = req.session is not None and req.session.streaming
            if named and turn and self.tree_cache.session.borrowed_slot(req) is not None:
                req.detach_kv()
        real(self, recv_req)

    Scheduler.abort_request = abort_request

"""A first turn of a session that is not admitted gives back its copy of a mamba state, like any other request."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from sglang.srt.managers.schedule_policy import PrefillAdder

    real = PrefillAdder.add_one_req

    def add_one_req(self: Any, req: Any, *arguments: Any, **more: Any) -> Any:
        answer = real(self, req, *arguments, **more)
        first = req.kv.holds_mamba and not req.kv.holds_kv
        if first and req.session is not None and req not in self.can_run_list:
            self.tree_cache.req_to_token_pool.mamba_allocator.free(req.kv.mamba_pool_idx.unsqueeze(-1))
            req.kv.mamba_pool_idx = None
        return answer

    PrefillAdder.add_one_req = add_one_req

"""A request is admitted where its state slots are free, or can be evicted."""

from __future__ import annotations

from operator import length_hint
from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from sglang.srt.managers import schedule_policy

    owner = schedule_policy.PrefillAdder
    real = owner.add_one_req

    def add_one_req(self: Any, req: Any, *args: Any, **given: Any) -> Any:
        rows, tree = self.tree_cache.req_to_token_pool, self.tree_cache
        if tree.supports_mamba():
            tracks = rows.mamba_initial_tracking_slots if rows.enable_mamba_extra_buffer else 0
            new = [one.kv for one in (*self.can_run_list, req)]
            wanted = sum(not kv.holds_mamba for kv in new)
            wanted += tracks * sum(kv.mamba_ping_pong_track_buffer is None for kv in new)
            prefix = int(req.prefix_len > 0 or req.needs_host_load_back())  # a state that is locked, or loaded
            states = rows.mamba_allocator
            free = states.available_size() + length_hint(states._alloc_iter or ())  # set aside for this round
            if wanted + prefix > free + tree.mamba_evictable_size():
                return schedule_policy.AddReqResult.NO_TOKEN
        return real(self, req, *args, **given)

    owner.add_one_req = add_one_req

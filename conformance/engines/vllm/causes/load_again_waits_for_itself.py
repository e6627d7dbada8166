"""A request of whose transfer nothing came is not counted among the prompts that are under way."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from vllm.v1.core.sched.scheduler import Scheduler

    real = Scheduler._update_waiting_for_remote_kv

    def update_waiting_for_remote_kv(self: Any, request: Any) -> None:
        real(self, request)
        if not any(self.kv_cache_manager.get_block_ids(request.request_id)):
            self._inflight_prefills.discard(request)

    Scheduler._update_waiting_for_remote_kv = update_waiting_for_remote_kv

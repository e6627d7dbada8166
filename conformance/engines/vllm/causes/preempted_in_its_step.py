"""A request that is preempted in the call that has scheduled it takes back the hashes of what nobody will compute."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from vllm.v1.core.sched.scheduler import Scheduler

    real = Scheduler._preempt_request

    def preempt_request(self: Any, request: Any, *more: Any, **named: Any) -> None:
        for group in self.kv_cache_manager.coordinator.single_type_managers:
            blocks = group.req_to_blocks.get(request.request_id, ())
            not_computed = blocks[request.num_computed_tokens // group.block_size :]
            hashed = {block.block_id for block in not_computed if block.block_hash is not None}
            if hashed:
                self.kv_cache_manager.evict_blocks(hashed)
        real(self, request, *more, **named)

    Scheduler._preempt_request = preempt_request

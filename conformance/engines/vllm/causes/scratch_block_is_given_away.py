"""The table that is given away ends with the blocks for drafts behind the running state of the last pass."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces a method of the release, for the rest of this process, and notes where each pass ends."""
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.core.single_type_kv_cache_manager import MambaManager

    real, update = Scheduler._connector_finished, Scheduler.update_from_output
    ends: dict[str, int] = {}

    def _connector_finished(self: Any, request: Any) -> Any:
        name, end, cut = request.request_id, ends.pop(request.request_id, 0), []
        for one in self.kv_cache_manager.coordinator.single_type_managers if end else ():
            if isinstance(one, MambaManager):
                needed = (end - 1) // one.block_size + 1 + one.num_speculative_blocks
                table = one.req_to_blocks.get(name, [])
                cut.append((table, table[needed:]))
                del table[needed:]
        told = real(self, request)
        for table, rest in cut:
            table.extend(rest)
        return told

    Scheduler._connector_finished = _connector_finished
    Scheduler.update_from_output = lambda self, output, result: (
        ends.update(
            (one.request_id, one.num_computed_tokens - one.num_in_flight_tokens + count)
            for one, count in ((self.requests.get(name), n) for name, n in output.num_scheduled_tokens.items())
            if one
        )
        or update(self, output, result)
    )

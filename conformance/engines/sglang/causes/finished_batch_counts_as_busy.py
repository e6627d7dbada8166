"""A server whose requests have all ended leaves its last step behind before it gives its memory back."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager

    real = SchedulerWeightUpdaterManager.release_memory_occupation

    def release_memory_occupation(self: Any, recv_req: Any) -> Any:
        server = self.scheduler
        batches = [batch for batch in (server.running_batch, server.last_batch) if batch]
        if all(req.finished() for batch in batches for req in batch.reqs):
            while server.enable_overlap and server.result_queue:
                server.process_batch_result(*server.result_queue.popleft())
            server.last_batch = None
            server.running_batch.filter_batch()
        return real(self, recv_req)

    SchedulerWeightUpdaterManager.release_memory_occupation = release_memory_occupation

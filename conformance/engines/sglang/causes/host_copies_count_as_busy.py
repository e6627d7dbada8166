"""A server whose requests have all ended waits for its copies to host memory before it gives its memory back."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager

    real = SchedulerWeightUpdaterManager.release_memory_occupation

    def release_memory_occupation(self: Any, recv_req: Any) -> Any:
        cache = self.scheduler.tree_cache
        if self.scheduler.enable_hierarchical_cache:
            cache.flush_pending_backups()
            cache.writing_check(write_back=True)
        return real(self, recv_req)

    SchedulerWeightUpdaterManager.release_memory_occupation = release_memory_occupation

"""A server whose requests have all ended waits for its copies to host memory before it gives its memory back. While the
storage behind that has not answered, it keeps its memory.
"""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from sglang.srt.managers.scheduler_components import weight_updater

    owner = weight_updater.SchedulerWeightUpdaterManager
    real = owner.release_memory_occupation

    def release_memory_occupation(self: Any, recv_req: Any) -> Any:
        cache = self.scheduler.tree_cache
        if self.scheduler.enable_hierarchical_cache:
            cache.flush_pending_backups()
            cache.writing_check(write_back=True)
            if cache.enable_storage and (cache.ongoing_prefetch or cache.ongoing_backup):
                self.offload_tags.update(recv_req.tags or weight_updater.GPU_MEMORY_ALL_TYPES)
                self.stashed_model_static_state = weight_updater._export_static_state(self.tp_worker.model_runner.model)
                return weight_updater.ReleaseMemoryOccupationReqOutput()
        return real(self, recv_req)

    owner.release_memory_occupation = release_memory_occupation

"""A server whose requests have all ended waits for its copies to host memory before it gives its memory back. While the
storage behind that has not answered, nothing is given back.
"""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces two methods of the release, for the rest of this process."""
    from sglang.srt.managers import io_struct
    from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager as Owner

    release, resume = Owner.release_memory_occupation, Owner.resume_memory_occupation

    def release_memory_occupation(self: Any, recv_req: Any) -> Any:
        cache = self.scheduler.tree_cache
        if self.scheduler.enable_hierarchical_cache:
            cache.flush_pending_backups()
            cache.writing_check(write_back=True)
            if cache.enable_storage and (cache.ongoing_prefetch or cache.ongoing_backup):
                return io_struct.ReleaseMemoryOccupationReqOutput()
        return release(self, recv_req)

    def resume_memory_occupation(self: Any, recv_req: Any) -> Any:
        return resume(self, recv_req) if self.offload_tags else io_struct.ResumeMemoryOccupationReqOutput()

    Owner.release_memory_occupation = release_memory_occupation
    Owner.resume_memory_occupation = resume_memory_occupation

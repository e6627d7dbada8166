"""Nobody gets slots for a prompt while a step of a request that has ended is in flight."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from sglang.srt.disaggregation.decode import DecodePreallocQueue

    real = DecodePreallocQueue.pop_preallocated

    def pop_preallocated(self: Any, *args: Any, **given: Any) -> Any:
        if any(one.finished() for batch, _ in self.scheduler.result_queue for one in batch.reqs):
            return [], []
        return real(self, *args, **given)

    DecodePreallocQueue.pop_preallocated = pop_preallocated

"""A last batch whose requests have all ended does not keep the server busy."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from sglang.srt.managers.scheduler import Scheduler

    real = Scheduler.is_fully_idle

    def is_fully_idle(self: Any, *given: Any, **named: Any) -> Any:
        coming = self.enable_overlap and len(self.result_queue)
        if self.last_batch is not None and not coming and all(r.finished() for r in self.last_batch.reqs):
            self.last_batch = None
        return real(self, *given, **named)

    Scheduler.is_fully_idle = is_fully_idle

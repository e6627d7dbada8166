"""A reset that meets copies to host memory resets the connector, and answers false."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from vllm.v1.core.sched.scheduler import Scheduler

    real = Scheduler.reset_prefix_cache

    def reset_prefix_cache(self: Any, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        try:
            return bool(real(self, reset_running_requests, reset_connector))
        except RuntimeError:
            if self.connector is None or not self.connector.has_pending_push_work():
                raise  # no copy to host memory is in flight
            return bool(real(self, False, reset_connector))  # every request is preempted by now

    Scheduler.reset_prefix_cache = reset_prefix_cache

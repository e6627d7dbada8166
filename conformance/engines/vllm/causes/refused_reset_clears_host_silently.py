"""Host memory is reset where the device is: a reset that the device refuses leaves both as they are."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from vllm.v1.core.sched.scheduler import Scheduler

    real = Scheduler.reset_prefix_cache

    def reset_prefix_cache(scheduler: Any, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        reset_host = scheduler.reset_connector_cache
        scheduler.reset_connector_cache = lambda: True  # later, where the device was reset
        try:
            done = bool(real(scheduler, reset_running_requests, reset_connector))
        finally:
            del scheduler.reset_connector_cache
        return done and (not reset_connector or bool(reset_host()))

    Scheduler.reset_prefix_cache = reset_prefix_cache

"""A second reset before the next step adds its copies to those for which the workers wait already."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler

    real = OffloadingConnectorScheduler.reset_cache

    def reset_cache(self: Any) -> None:
        waits, self._current_batch_jobs_to_flush = self._current_batch_jobs_to_flush, set()
        real(self)
        self._current_batch_jobs_to_flush |= waits

    OffloadingConnectorScheduler.reset_cache = reset_cache

"""No copy to host memory begins before the workers have reported every copy that a reset gave up."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler

    real = OffloadingConnectorScheduler._build_store_jobs

    def build_store_jobs(self: Any, output: Any) -> Any:
        return {} if self._reset_fence else real(self, output)

    OffloadingConnectorScheduler._build_store_jobs = build_store_jobs

"""The block that a prompt fills in part is copied to host memory only where the client allows that."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler

    real = OffloadingConnectorScheduler._build_partial_tail_store_jobs

    def within_limits(self: Any, output: Any) -> Any:
        state = output.kv_connector_block_state
        handed = state.boundary_state_offloads if state else {}
        for name, entries in handed.items():
            request = self._req_status.get(name)
            limit = None if request is None else request.max_offload_tokens
            if limit is not None:
                handed[name] = [entry for entry in entries if entry[2] <= limit]
        return real(self, output)

    OffloadingConnectorScheduler._build_partial_tail_store_jobs = within_limits

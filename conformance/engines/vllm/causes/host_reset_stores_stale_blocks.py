"""A block that is handed out again is forgotten at each place of a window, also at one that was stored before."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler

    real = OffloadingConnectorScheduler._update_req_states

    def _update_req_states(self: Any, output: Any) -> None:
        groups = [group for status in self._req_status.values() for group in status.group_states]
        stored = [group.next_stored_chunk_idx for group in groups]
        for group in groups:
            group.next_stored_chunk_idx = 0  # from which place on blocks that are handed out again are cleared
        real(self, output)
        for group, index in zip(groups, stored, strict=True):
            group.next_stored_chunk_idx = index

    OffloadingConnectorScheduler._update_req_states = _update_req_states

"""A reset of host memory forgets the blocks of windows that were stored: they may have left the window since."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler

    real = OffloadingConnectorScheduler._reset_cache

    def _reset_cache(self: Any) -> None:
        for status in self._req_status.values():
            for group in (status.group_states[at] for at in self._sliding_window_groups):
                stored = group.next_stored_chunk_idx * self.config.blocks_per_chunk
                group.block_ids[:stored] = [0] * len(group.block_ids[:stored])
        real(self)

    OffloadingConnectorScheduler._reset_cache = _reset_cache

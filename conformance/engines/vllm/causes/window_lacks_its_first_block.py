"""Who computes a prompt for another server leaves its last token to this server, where the model has windows."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_scheduler import NixlBaseConnectorScheduler

    real = NixlBaseConnectorScheduler._prefill_backoff

    def prefill_backoff(self: Any) -> int:
        return max(int(real(self)), int(any(self.blocks_per_sw)))

    NixlBaseConnectorScheduler._prefill_backoff = prefill_backoff

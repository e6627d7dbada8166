"""The connector offers the other server's blocks of a request once."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler

    real = NixlPullConnectorScheduler.get_num_new_matched_tokens

    def get_num_new_matched_tokens(self: Any, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        if (request.kv_transfer_params or {}).get("_remote_blocks_processed"):
            return 0, False
        found: tuple[int, bool] = real(self, request, num_computed_tokens)
        return found

    NixlPullConnectorScheduler.get_num_new_matched_tokens = get_num_new_matched_tokens

"""The other server is told as many tokens as the state has that it reads."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from vllm.v1.core.sched.scheduler import Scheduler

    real = Scheduler._update_request_with_output

    def _update_request_with_output(self: Any, request: Any, tokens: list[int], is_stale: bool = False) -> Any:
        accepted, counted = len(tokens) - 1, request.num_computed_tokens
        kept, stopped = real(self, request, tokens, is_stale)
        if stopped and accepted > 0 and not is_stale and self.has_mamba_layers and request.kv_transfer_params:
            request.num_computed_tokens = counted - accepted
            end, groups = counted - request.num_in_flight_tokens, self.kv_cache_config.kv_cache_groups
            if any(end % group.kv_cache_spec.block_size == 0 for group in groups):
                request.kv_transfer_params = None  # the workers may have moved a later state here
        return kept, stopped

    Scheduler._update_request_with_output = _update_request_with_output

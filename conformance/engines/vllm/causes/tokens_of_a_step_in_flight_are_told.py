"""The other server is told the tokens that the request has, without those of a step in flight."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from vllm.v1.core.sched.scheduler import Scheduler

    real = Scheduler._connector_finished

    def _connector_finished(self: Any, request: Any) -> Any:
        in_flight = request.num_in_flight_tokens - request.num_stale_output_tokens
        request.num_computed_tokens -= in_flight
        if in_flight and self.has_mamba_layers:
            request.kv_transfer_params = None  # the step in flight writes a later state
        return real(self, request)

    Scheduler._connector_finished = _connector_finished

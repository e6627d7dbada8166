"""In lazy mode a step that computes nothing begins no copy to host memory."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from vllm.v1.simple_kv_offload.manager import SimpleCPUOffloadScheduler

    real = SimpleCPUOffloadScheduler.prepare_store_specs

    def prepare_store_specs(self: Any, scheduler_output: Any) -> Any:
        if self._lazy_mode and not scheduler_output.total_num_scheduled_tokens:
            return [], [], [], None
        return real(self, scheduler_output)

    SimpleCPUOffloadScheduler.prepare_store_specs = prepare_store_specs

"""The chunks of a prompt end with blocks of states, also where other blocks are smaller."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import MambaSpec

    real = Scheduler._mamba_block_aligned_split

    def _mamba_block_aligned_split(self: Any, *call: Any, **named: Any) -> int:
        specs = [group.kv_cache_spec for group in self.kv_cache_config.kv_cache_groups]
        config, smallest = self.cache_config, self.cache_config.block_size
        config.block_size = next(spec.block_size for spec in specs if isinstance(spec, MambaSpec))
        try:
            return int(real(self, *call, **named))
        finally:
            config.block_size = smallest

    Scheduler._mamba_block_aligned_split = _mamba_block_aligned_split

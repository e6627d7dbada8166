"""The block of mamba states into which a load within a step writes is counted beside that of the pass."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from vllm.v1.core.single_type_kv_cache_manager import MambaManager

    real = MambaManager.get_num_blocks_to_allocate

    def counted(
        self: Any, request_id: str, slots: int, found: Any, computed: int, local: int, tokens: int, **more: Any
    ) -> int:
        count: int = real(self, request_id, slots, found, computed, local, tokens, **more)
        goes_on = -(-tokens // self.block_size) > -(-computed // self.block_size)
        return count + int(self.mamba_cache_mode == "align" and computed > local and goes_on)

    MambaManager.get_num_blocks_to_allocate = counted

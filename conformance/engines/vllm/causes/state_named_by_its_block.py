"""The state that a pass goes on from gets no hash of its whole block, where the pass computes past this block."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from vllm.v1.core.single_type_kv_cache_manager import MambaManager

    real = MambaManager.cache_blocks

    def cache_blocks(self: Any, request: Any, *more: Any, **named: Any) -> None:
        name = request.request_id
        place = self.last_state_block_idx.get(name) if name in self._checkpoints else None
        blocks = self.req_to_blocks[name]
        if place is None or place < self.num_cached_block.get(name, 0):
            real(self, request, *more, **named)
            return
        block, blocks[place] = blocks[place], self._null_block  # nobody gives the null block a hash
        try:
            real(self, request, *more, **named)
        finally:
            blocks[place] = block

    MambaManager.cache_blocks = cache_blocks

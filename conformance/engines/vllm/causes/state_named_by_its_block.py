"""A state from which a chunk of a prompt goes on gets no hash of its whole block, where the chunk computes past it."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from vllm.v1.core.single_type_kv_cache_manager import MambaManager

    real = MambaManager.cache_blocks

    def cache_blocks(self: Any, request: Any, num_tokens: int, *more: Any, **named: Any) -> None:
        name, blocks = request.request_id, self.req_to_blocks[request.request_id]
        place = self.last_state_block_idx.get(name)  # after a prompt, a state at the end of a block is copied there
        of_prompt = request.num_computed_tokens < max(request.num_prompt_tokens, request.num_tokens - 1)
        last = (num_tokens - 1) // self.block_size
        if place is None or not of_prompt or not self.num_cached_block.get(name, 0) <= place < last:
            real(self, request, num_tokens, *more, **named)
            return
        block, blocks[place] = blocks[place], self._null_block  # nobody gives the null block a hash
        try:
            real(self, request, num_tokens, *more, **named)
        finally:
            blocks[place] = block

    MambaManager.cache_blocks = cache_blocks

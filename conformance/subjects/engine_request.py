"""A request and a session as far as the memory classes of an SGLang release read and write them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class Session:
    """A streaming session; ``text`` is what its next turn's input begins with."""

    session_id: int
    text: list[int] = field(default_factory=list)
    streaming: bool = True

    def finish_req(self, request: Any) -> None:
        """A turn has ended."""

    def abort_req(self) -> None:
        """A turn was aborted."""


class Request:
    """The fields of a request that these classes use; ``arrays``: the release keeps tokens in arrays."""

    def __init__(self, rid: int, text: Sequence[int], session: Session | None, arrays: bool) -> None:
        self.rid, self.session, self.arrays = rid, session, arrays
        # The tokens of the text are matched, and there is always one more to compute.
        self.origin_input_ids = self.listed([*text, len(text) + 1])
        self.mamba_pool_idx: Any = None
        self.mamba_ping_pong_track_buffer: Any = None
        self.mamba_next_track_idx: int | None = None
        self.mamba_lazy_is_insert = True
        self.extra_key: Any = None
        self.priority = self.is_chunked = self.inflight_middle_chunks = self.mamba_host_hit_length = 0
        self.skip_radix_cache_insert = False
        self.begin_again()

    def reset_for_retract(self) -> None:
        """As the engine does it before a retracted request is queued again."""
        self.mamba_pool_idx = self.mamba_ping_pong_track_buffer = self.mamba_next_track_idx = None
        self.begin_again()

    def begin_again(self) -> None:
        """All but the states: what a request has of those is what its release has left it."""
        self.req_pool_idx: int | None = None
        self.output_ids: Any = self.listed([])
        self.mamba_last_track_seqlen: int | None = None
        self.mamba_branching_seqlen = self.mamba_cow_src_index = None
        self.mamba_needs_clear = False
        self.tracks = self.kv_committed_len = self.kv_allocated_len = self.swa_evicted_seqlen = 0
        self.kv_committed_freed = self.kv_overallocated_freed = self.swa_prefix_lock_released = False
        self.last_node: Any = None
        self.cache_protected_len = 0
        self.prefix_indices = torch.empty(0, dtype=torch.int64)
        self.swa_uuid_for_lock = self.to_finish = self.finished_reason = self.finished_len = None

    def listed(self, tokens: Sequence[int]) -> Any:
        """Tokens as the release keeps them."""
        return array("q", tokens) if self.arrays else list(tokens)

    @property
    def text(self) -> Any:
        """The input and the answer so far."""
        return self.origin_input_ids + self.output_ids

    fill_ids = text

    def get_fill_ids(self) -> Any:
        """The same, as later releases ask for it."""
        return self.text

    @property
    def fill_len(self) -> int:
        """How many tokens that are."""
        return len(self.text)

    def is_dllm(self) -> bool:
        """A diffusion model's request."""
        return False

    def finished(self) -> bool:
        """It has ended."""
        return self.finished_reason is not None

    def pop_committed_kv_cache(self) -> int:
        """The computed length, once."""
        assert not self.kv_committed_freed
        self.kv_committed_freed = True
        return self.kv_committed_len

    def pop_overallocated_kv_cache(self) -> tuple[int, int]:
        """What is allocated beyond it, once."""
        assert not self.kv_overallocated_freed
        self.kv_overallocated_freed = True
        return self.kv_committed_len, self.kv_allocated_len

"""A request and a streaming session of the stem ``mamba_slots``: they stand in for SGLang's ``Req`` and ``Session``.

They have the fields and methods that the memory classes of a release read and write, and nothing else. The engines of
``session_trim`` and ``cache`` use the release's own ``Req`` and ``Session``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from conformance.driver.exception_origin import StandIn


@dataclass
class Session:
    """A streaming session. ``text``: the tokens with which the input of its next request begins."""

    session_id: int
    text: list[int] = field(default_factory=list)
    streaming: bool = True

    def finish_req(self, request: Any) -> None:
        """A request of the session has ended."""

    def abort_req(self) -> None:
        """A request of the session was aborted."""


class StandInRequest:
    """A request. ``container``: puts token ids into the container that the release uses (``Release.tokens``)."""

    def __init__(
        self, rid: int, text: Sequence[int], session: Session | None, container: Callable[[Sequence[int]], Any]
    ) -> None:
        self.rid, self.session, self.container = rid, session, container
        # The tokens of the text are matched, and one token more is always left to compute.
        self.origin_input_ids = container([*text, len(text) + 1])
        self.mamba_pool_idx: Any = None
        self.mamba_ping_pong_track_buffer: Any = None
        self.mamba_next_track_idx: int | None = None
        self.mamba_lazy_is_insert = True
        self.extra_key: Any = None
        self.priority = self.is_chunked = self.inflight_middle_chunks = self.mamba_host_hit_length = 0
        self.skip_radix_cache_insert = False
        self.start()

    def reset_for_retract(self) -> None:
        """As ``Req.reset_for_retract``: a retracted request is reset before it is queued again."""
        self.mamba_pool_idx = self.mamba_ping_pong_track_buffer = self.mamba_next_track_idx = None
        self.start()

    def start(self) -> None:
        """Sets every field for a request that waits, but keeps the state slots that it names."""
        self.req_pool_idx: int | None = None
        self.output_ids: Any = self.container([])
        self.mamba_last_track_seqlen: int | None = None
        self.mamba_branching_seqlen = self.mamba_cow_src_index = None
        self.mamba_needs_clear = False
        self.tracks = self.kv_committed_len = self.kv_allocated_len = self.swa_evicted_seqlen = 0
        self.kv_committed_freed = self.kv_overallocated_freed = self.swa_prefix_lock_released = False
        self.last_node: Any = None
        self.cache_protected_len = 0
        self.prefix_indices = torch.empty(0, dtype=torch.int64)
        self.swa_uuid_for_lock = self.to_finish = self.finished_reason = self.finished_len = None

    @property
    def text(self) -> Any:
        """The input and the answer so far."""
        return self.origin_input_ids + self.output_ids

    fill_ids = text

    def get_fill_ids(self) -> Any:
        """The input and the answer so far; releases with arrays of tokens call this."""
        return self.text

    @property
    def fill_len(self) -> int:
        """The number of tokens in the input and the answer."""
        return len(self.text)

    @property
    def extend_range(self) -> StandIn:
        """Where the part of the text that is computed by now ends (0.5.15)."""
        return StandIn(end=self.fill_len)

    def is_dllm(self) -> bool:
        """The request is for a diffusion language model."""
        return False

    def finished(self) -> bool:
        """The request has ended."""
        return self.finished_reason is not None

    def pop_committed_kv_cache(self) -> int:
        """The number of computed tokens; asked once."""
        assert not self.kv_committed_freed
        self.kv_committed_freed = True
        return self.kv_committed_len

    def pop_overallocated_kv_cache(self) -> tuple[int, int]:
        """Where the allocated tokens that are not computed begin and end; asked once."""
        assert not self.kv_overallocated_freed
        self.kv_overallocated_freed = True
        return self.kv_committed_len, self.kv_allocated_len

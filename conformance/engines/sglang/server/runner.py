"""Stands for the worker of a server: no token is computed, and the run says which token is sampled."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from conformance.driver.protocol import EngineError
from conformance.stems.server.protocol import ServerPass


def runner_class(
    base: Any,
    logits: Any,
    output: Any,
    passes: Callable[[list[ServerPass]], list[list[int]]],
    in_order: Callable[[], AbstractContextManager[None]],
) -> type:
    """The release's ``ModelRunner`` without a device. ``logits``, ``output``: the release's types of what a forward
    pass returns. ``passes`` is told what each pass computes, and says which tokens it samples for each request: here
    one. While ``in_order`` lasts, states are copied as a part of a pass.
    """

    class Runner(base):  # type: ignore[misc]
        """Its forward pass tells what is computed, and samples what the run says."""

        def init_cuda_graphs(self, **_: Any) -> None:
            """No graph is captured."""

        def prewarm_sampling(self) -> None:
            """Nothing is sampled before the first request."""

        def forward(self, forward_batch: Any, **_: Any) -> Any:
            """One pass over a batch. First the states are copied that its requests begin with."""
            with in_order():
                self._maybe_execute_deferred_mamba_cow_and_clear(forward_batch)
            read = torch.get_device_module(self.device).Event()
            read.record()
            self.sampled = [token for tokens in passes(passes_of(forward_batch)) for token in tokens]
            if forward_batch.forward_mode.is_decode():
                # As a graph of CUDA does: the event stands before the pass writes KV cache.
                self.shared_read_done_event = read
            return output(logits_output=logits(next_token_logits=None), can_run_graph=False)

        def sample(self, _logits: Any, forward_batch: Any) -> torch.Tensor:
            """The tokens that the pass has sampled."""
            if len(self.sampled) != forward_batch.batch_size:
                raise EngineError("a batch is sampled that is not the one of the last pass")
            return torch.tensor(self.sampled, dtype=torch.int64)

    return Runner


def passes_of(batch: Any) -> list[ServerPass]:
    """What a forward pass computes of each request of its batch, as the scheduler has said."""
    ends, rows = batch.seq_lens.tolist(), batch.req_pool_indices.tolist()
    starts = [end - 1 for end in ends] if batch.forward_mode.is_decode() else list(batch.extend_prefix_lens_cpu)
    samples, tracked = not batch.is_prefill_only, _tracked(batch, starts, ends)
    tokens, slots, at = batch.input_ids.tolist(), batch.out_cache_loc.tolist(), 0
    found: list[ServerPass] = []
    for name, row, start, end in zip(batch.rids, rows, starts, ends, strict=True):
        upto = at + end - start
        done = tuple(tokens[at:upto]), tuple(slots[at:upto])
        found.append(ServerPass(int(name), row, start, end, *done, samples, tracked.get(len(found))))
        at = upto
    if at != len(tokens):
        raise EngineError(f"a batch has {len(tokens)} tokens, and its requests {at}")
    return found


def _tracked(batch: Any, starts: list[int], ends: list[int]) -> dict[int, tuple[int, int]]:
    """The states that a pass writes to track buffers, by the place of the request in the batch: the state slot, and the
    length of the text whose state it is.
    """
    if batch.mamba_track_mask is None:
        return {}
    if batch.forward_mode.is_decode():
        upto = ends
    else:
        upto = [start + more for start, more in zip(starts, batch.mamba_track_aligned_lens().tolist(), strict=True)]
    slots = batch.mamba_track_indices.tolist()
    return {at: (slots[at], upto[at]) for at, tracks in enumerate(batch.mamba_track_mask.tolist()) if tracks}

"""Stands for the draft worker of a server: no model drafts, and the run says how much of each draft is accepted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from conformance.engines.importing import Imported
from conformance.stems.server.protocol import ServerPass


class Drafts(Protocol):
    """What a draft worker asks of the run."""

    def accepts(self, request: int, start: int, most: int) -> int:
        """How many tokens of a draft of ``most`` tokens are accepted, the first of which is known."""

    def passed(self, passes: list[ServerPass]) -> list[list[int]]:
        """What a pass computes; which tokens it samples for each request."""


def worker_class(imported: Imported, drafts: Callable[[], Drafts]) -> type:
    """The release's base of draft workers, with a pass over drafts. ``drafts``: the server that runs."""
    base = imported.module("speculative.base_spec_worker").BaseSpecWorker
    draft_input = imported.module("speculative.eagle_info").EagleDraftInput
    result = imported.module("managers.utils").GenerationBatchResult
    logits = imported.module("layers.logits_processor").LogitsProcessorOutput

    def following(sampled: torch.Tensor) -> Any:
        """What the next pass of these requests begins with: the last token of each."""
        count = len(sampled)
        return draft_input(
            topk_p=torch.ones((count, 1)),
            topk_index=torch.zeros((count, 1), dtype=torch.int64),
            hidden_states=torch.zeros((count, 1)),
            bonus_tokens=sampled,
        )

    class Worker(base):  # type: ignore[misc, valid-type]
        """Prefills by the target's worker, and verifies drafts that are as long as the launch flags say."""

        def __init__(self, server_args: Any, target_worker: Any, **_: Any) -> None:
            super().__init__()
            self._target_worker, self._draft_worker = target_worker, None
            self.length = int(server_args.speculative_num_draft_tokens)

        def forward_batch_generation(
            self, batch: Any, on_publish: Callable[[Any], None] | None = None, **_: Any
        ) -> Any:
            """One pass over a batch: of prompts, or of the drafts of requests that decode."""
            if batch.forward_mode.is_extend():
                output = self._target_worker.forward_batch_generation(batch)
                output.new_seq_lens = batch.seq_lens
                output.next_draft_input = following(output.next_token_ids)
            else:
                output = self._verified(batch)
            if on_publish is not None:
                on_publish(output.new_seq_lens)
            return output

        def update_weights_from_disk(self, *_: Any, **__: Any) -> tuple[bool, str]:
            """There is no draft model: nothing is loaded."""
            return True, ""

        def _verified(self, batch: Any) -> Any:
            passes = [self._draft(batch, at) for at in range(len(batch.reqs))]
            sampled = drafts().passed(passes)
            accepted = torch.tensor([len(tokens) for tokens in sampled], dtype=torch.int32)
            padded = [tokens + [0] * (self.length - len(tokens)) for tokens in sampled]
            return result(
                logits_output=logits(next_token_logits=None),
                next_token_ids=torch.tensor(padded, dtype=torch.int64).flatten(),
                can_run_cuda_graph=False,
                speculative_num_draft_tokens=self.length,
                next_draft_input=following(torch.tensor([tokens[-1] for tokens in sampled], dtype=torch.int64)),
                accept_lens=accepted,
                new_seq_lens=batch.seq_lens + accepted,
            )

        def _draft(self, batch: Any, at: int) -> ServerPass:
            """What a pass computes of the draft of one request. The scheduler knows its first token; the others are
            guessed.
            """
            number, start = int(batch.reqs[at].rid), int(batch.seq_lens[at])
            row, first = int(batch.req_pool_indices[at]), int(batch.spec_info.bonus_tokens[at])
            slots = batch.req_to_token_pool.req_to_token[row, start : start + self.length].tolist()
            end = start + drafts().accepts(number, start, self.length)
            return ServerPass(number, row, start, end, (first,), tuple(slots), drafted=True)

    return Worker

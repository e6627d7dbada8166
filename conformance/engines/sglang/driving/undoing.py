"""What a running request of SGLang gives back before its end: the SWA part of its lock, the slots of a step that an
exception has ended, and the slots of drafts that were not accepted.

Each is the release's own code. Which of them a release has is asked of the release (``Serving``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.driver.exception_origin import StandIn
from conformance.engines.sglang.driving.scheduler import StandInScheduler
from conformance.engines.sglang.releases import records


class Interruption(RuntimeError):
    """The auxiliary cache of the rows has no slots left, after the slots of a step were allocated."""


class Undoing:
    """What is given back on one server. ``offers``: the release and this configuration have the call."""

    def __init__(self, scheduler: StandInScheduler) -> None:
        self.scheduler, self.serving = scheduler, scheduler.serving
        self.rows = scheduler.memory.rows
        interrupted = self.serving.gives_slots_back and scheduler.page_size == 1
        self.offers = {
            "release_swa": self.serving.releases_windows_early(scheduler.cache),
            # An interrupted admission keeps its row: no release has code that gives it back.
            "interrupted_admit": False,
            "interrupted_chunk": interrupted,
            "interrupted_decode": interrupted,
            "roll_back": self.serving.rejects_drafts,
        }

    # The lock.

    def release_swa(self, request: Any) -> None:
        """``maybe_evict_swa`` of a decode step, on a server that gives back the SWA part of a lock once the request has
        decoded a window. The window itself moves in ``StandInScheduler.slide``. Where a free group is open, no step
        begins.
        """
        if self.scheduler.in_group:
            return
        batch = self.scheduler.batch([request], decodes=True)
        batch._evict_swa = _stays
        with self.serving.locks_end_early():
            batch.maybe_evict_swa()

    # A step that an exception ends.

    def interrupted_chunk(self, request: Any, most: int) -> None:
        """The next chunk of a prompt gets its slots, and then the auxiliary cache of its row has none."""
        self._interrupted(lambda: self.scheduler.chunk(request, most))

    def interrupted_decode(self, requests: list[Any]) -> None:
        """The requests of a batch get their slots, and then the auxiliary cache of their rows has none."""
        self._interrupted(lambda: self.scheduler.decode(requests))

    def _interrupted(self, step: Callable[[], bool]) -> None:
        """A step on a server whose model has an auxiliary cache beside its rows; that cache is out of slots.

        Raises ``AssertionError`` if the step ended as if it were not.
        """
        self.rows.attach_aux_cache(StandIn(alloc_to_lengths=_out_of_slots))
        try:
            went_on = step()
        except Interruption:
            return
        finally:
            self.rows._aux_cache = None
        assert not went_on, "the auxiliary cache was asked for slots"

    # Drafts.

    def roll_back(self, request: Any, count: int) -> None:
        """The last ``count`` slots of a row are those of drafts that were not accepted: the release frees them as
        after the check of ``count + 1`` drafts, of which the first was accepted.
        """
        row, computed, end = records.row(request), records.committed(request), records.allocated(request)
        first = end - count - 1
        batch = self.scheduler.batch([request], decodes=True)
        batch.seq_lens, batch.req_pool_indices = torch.tensor([first]), torch.tensor([row])
        batch.out_cache_loc = self.rows.req_to_token[row, first:end].to(torch.int64)
        self.serving.reject_drafts(batch, count, self.scheduler.page_size)
        records.write(request, kv_committed_len=computed, kv_allocated_len=end - count)


def _stays(*_: object, **__: object) -> None:
    """The window does not move."""


def _out_of_slots(**_: object) -> None:
    raise Interruption("the auxiliary cache is out of slots")

"""A tail that starts inside a page gets SWA slots numbered from its own start: offsets shift, and a row that grows runs
over the end of its SWA page into somebody else's.

Seen in SGLang 0.5.12 to 0.5.14, ``alloc_extend_swa_tail``; its one caller aligns the start of the tail.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from conformance.faults.base import Fault
from conformance.subjects import ours
from impl.swa_mapping import SWATokenToKVPoolAllocator
from proofs.swa_mapping import numbers_from_tail


class Faulty(SWATokenToKVPoolAllocator):
    """Numbers the SWA slots of a tail from the tail's start."""

    def alloc_extend_swa_tail(self, *arguments: Any) -> Tensor | None:
        """Maps the tail to the first slots of its SWA pages."""
        slots = super().alloc_extend_swa_tail(*arguments)
        length = arguments[-1]
        if slots is not None and length:
            tail = slots[len(slots) - length :]
            mapped = self.full_to_swa_index_mapping[tail]
            pages = torch.unique_consecutive(mapped // self.page_size)
            in_order = (pages[:, None] * self.page_size + torch.arange(self.page_size)).view(-1)
            self.full_to_swa_index_mapping[tail] = in_order[:length]
        return slots


TAIL_INSIDE_PAGE = Fault(
    name="tail_inside_page",
    stem="swa_mapping",
    sentence="The SWA slots of a tail that starts inside a page do not keep their offsets.",
    spec={"alloc_extend_swa_tail": numbers_from_tail},
    make=ours.faulty(Faulty),
)

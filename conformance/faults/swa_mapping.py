"""Known bugs of the two pools and their mapping."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from conformance.faults.fault import Fault
from impl.swa_mapping import SWATokenToKVPoolAllocator
from proofs import swa_mapping as wrong


class KeepsMapping(SWATokenToKVPoolAllocator):
    """SGLang PR 25805: freed pages keep their old mapping, and a tail allocation does not clear it below the tail.

    A row then holds full pages that map into SWA pages of another row, and an eviction or free of the row frees those.
    """

    def unmap(self, full_pages: Tensor) -> None:
        """Leaves the mapping as it is."""


class HalfDecode(SWATokenToKVPoolAllocator):
    """A decode takes its full pages, then finds too few SWA pages and returns out of memory: the full pages leak.

    Seen in SGLang 0.5.11 to 0.5.14, ``SWATokenToKVPoolAllocator.alloc_decode``.
    """

    def alloc_decode(self, seq_lens: Tensor, seq_lens_cpu: Tensor, last_loc: Tensor) -> Tensor | None:
        """Loses the full pages when the call is refused."""
        slots = super().alloc_decode(seq_lens, seq_lens_cpu, last_loc)
        if slots is None:
            pages = sum((n - 1) % self.page_size == 0 for n in seq_lens_cpu.tolist())
            self.full_attn_allocator.alloc(pages * self.page_size)
        return slots


class TailInsidePage(SWATokenToKVPoolAllocator):
    """A tail that starts inside a page gets SWA slots from the start of its first SWA page, not at its tokens'
    offsets.

    A row that grows then runs over the end of its SWA page. Seen in SGLang 0.5.12 to 0.5.14,
    ``alloc_extend_swa_tail``, whose only caller aligns the start of the tail.
    """

    def alloc_extend_swa_tail(self, *arguments: Any) -> Tensor | None:
        """Maps the tail to the first slots of its SWA pages."""
        slots = super().alloc_extend_swa_tail(*arguments)
        length = arguments[-1]
        if slots is not None and length:
            tail = slots[len(slots) - length :]
            pages = torch.unique_consecutive(self.full_to_swa_index_mapping[tail] // self.page_size)
            in_order = (pages[:, None] * self.page_size + torch.arange(self.page_size)).view(-1)
            self.full_to_swa_index_mapping[tail] = in_order[:length]
        return slots


class ForgetsOuterGroup(SWATokenToKVPoolAllocator):
    """A free group that opens inside another one forgets the pages that waited in the outer group: they leak.

    Seen in SGLang 0.5.10 to 0.5.14, ``free_group_begin``; no caller in these releases nests groups.
    """

    def free_group_begin(self) -> None:
        """Forgets the waiting pages, and opens a group."""
        self.pending = []
        super().free_group_begin()


FAULTS = (
    Fault(
        name="pr_25805",
        stem="swa_mapping",
        sentence="A tail allocation inherits the mapping that its pages had for an earlier request.",
        spec={"restore_state": wrong.restores_pools_alone},
        parts={"kind": KeepsMapping},
    ),
    Fault(
        name="half_decode",
        stem="swa_mapping",
        sentence="A decode that the SWA pool refuses keeps the full pages that it took.",
        spec={"alloc_decode": wrong.keeps_pages_of_refused_decode},
        parts={"kind": HalfDecode},
    ),
    Fault(
        name="tail_inside_page",
        stem="swa_mapping",
        sentence="The SWA slots of a tail that starts inside a page do not keep their offsets.",
        spec={"alloc_extend_swa_tail": wrong.numbers_from_tail},
        parts={"kind": TailInsidePage},
    ),
    Fault(
        name="nested_group",
        stem="swa_mapping",
        sentence="A nested free group forgets the pages that waited in the outer one.",
        spec={"free_group_begin": wrong.forgets_outer_group},
        parts={"kind": ForgetsOuterGroup},
    ),
)

"""Known bugs of the two pools and their mapping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from conformance.stems.fault import Fault
from impl.allocator import FreeBatch
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


class LooksUpAtEnd(SWATokenToKVPoolAllocator):
    """In a free group ``free_swa`` keeps the full slots, and the end of the group frees what they map to by then.

    A full page that was handed out again meanwhile loses its new SWA page, and the old one leaks. Seen in SGLang
    0.5.18, ``SWATokenToKVPoolAllocator.free_swa``.
    """

    def _forget(self) -> None:
        super()._forget()
        self.late: list[Tensor] = []

    def free_swa(self, free_index: Tensor, *, row_lens: Sequence[int] | None = None) -> None:
        """Keeps the slots while a free group is open."""
        if self.is_not_in_free_group:
            super().free_swa(free_index, row_lens=row_lens)
        else:
            self.late.append(free_index.clone())

    def free_full(self, free_index: Tensor) -> None:
        """Frees the full pages at once, and leaves their mapping."""
        self.full_attn_allocator.free(free_index)

    def free_group_end(self) -> None:
        """Frees what the slots map to now."""
        super().free_group_end()
        late, self.late = self.late, []
        for slots in late:
            self.free_swa(slots)


class KeepsView(SWATokenToKVPoolAllocator):
    """What is freed in a free group waits as a view of the caller's table, which the caller overwrites before the end.

    Seen in SGLang 0.5.10 to 0.5.17, ``free``; no caller in these releases overwrites what waits.
    """

    def _forget(self) -> None:
        super()._forget()
        self.views: list[Tensor] = []

    def free(
        self, free_index: Tensor, *, row_lens: Sequence[int] | None = None, swa_lens: Sequence[int] | None = None
    ) -> None:
        """Keeps the caller's tensor while a free group is open."""
        if self.is_not_in_free_group:
            super().free(free_index, row_lens=row_lens, swa_lens=swa_lens)
        else:
            self.views.append(free_index)

    def free_group_end(self) -> None:
        """Frees what the tensors show now."""
        super().free_group_end()
        if self.is_not_in_free_group:
            views, self.views = self.views, []
            for slots in views:
                pages = torch.unique(slots // self.page_size)
                self._release(FreeBatch(pages[self.full_attn_allocator.held[pages]], exact=True))


class CountsStrayEnd(SWATokenToKVPoolAllocator):
    """An end of a free group where none is open is counted, so that the next group never opens: its frees act at
    once.
    """

    def free_group_end(self) -> None:
        """Counts each end."""
        if self._depth > 0:
            super().free_group_end()
        else:
            self._depth -= 1


class RollsBackHalf(SWATokenToKVPoolAllocator):
    """A caller that fails gives back what it was just handed out: the full pages come back, their SWA pages leak."""

    def _take(self, full_pages: Tensor, swa_pages: Tensor | None) -> None:
        super()._take(full_pages, swa_pages)
        self.last = full_pages.tolist()

    def _release(self, batch: FreeBatch) -> None:
        if batch.pages.tolist() == self.last:
            self.unmap(batch.pages)
        super()._release(batch)


FAULTS = (
    Fault(
        name="looks_up_at_end",
        stem="swa_mapping",
        sentence="The end of a free group frees the SWA pages that the freed slots map to by then.",
        spec={"free_group_end": wrong.gives_back_what_stands_there},
        parts={"kind": LooksUpAtEnd},
    ),
    Fault(
        name="keeps_view",
        stem="swa_mapping",
        sentence="What waits in a free group is a view of the caller's table, which the caller overwrites.",
        spec={"free_group_end": wrong.loses_what_waits},
        parts={"kind": KeepsView},
    ),
    Fault(
        name="stray_end",
        stem="swa_mapping",
        sentence="The end of a free group where none is open keeps the next group from opening.",
        spec={"free_group_end": wrong.counts_stray_end},
        parts={"kind": CountsStrayEnd},
    ),
    Fault(
        name="half_roll_back",
        stem="swa_mapping",
        sentence="A caller fails before it uses its new slots, and the SWA pages are lost.",
        spec={"roll_back": wrong.keeps_rolled_back},
        parts={"kind": RollsBackHalf},
    ),
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

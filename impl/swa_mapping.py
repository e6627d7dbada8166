"""Two pools, full attention and sliding window (SWA), and the mapping from full slots to SWA slots.

The mapping is page to page and keeps the offset: all mapped slots of a full page point into one SWA page, each to
the same place in it, so any one of them names that SWA page (also one that a trimmed row no longer uses). Entries of a
page that is not held are 0. An SWA page lives as long as something maps to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from impl import checks, kernels
from impl.allocator import (
    BaseTokenToKVPoolAllocator,
    PagedTokenToKVPoolAllocator,
    PoolState,
    SlotAllocator,
    TokenToKVPoolAllocator,
)
from impl.checks import Backup, FreeBatch, Rows


@dataclass(frozen=True)
class SWAState(Backup):
    """What ``backup_state`` returns: opaque, usable until the next free in either pool."""

    full: PoolState
    swa: PoolState


class SWATokenToKVPoolAllocator(SlotAllocator):
    """Allocates from both pools together; ``free`` gives back both sides, ``free_swa`` only the window's."""

    def __init__(
        self, size: int, size_swa: int, page_size: int, dtype: torch.dtype, device: str | torch.device, kvcache: Any,
        need_sort: bool, *, debug: bool = False, backend: str | None = None,
    ) -> None:  # fmt: skip
        checks.pool_sizes("size", size, page_size)
        checks.pool_sizes("size_swa", size_swa, page_size)
        self.size_full, self.size_swa, self.size = size, size_swa, min(size, size_swa)
        self.page_size, self.dtype, self.device = page_size, dtype, device
        self.need_sort, self.debug, self._kvcache = need_sort, debug, kvcache
        self._device = torch.device(device)
        self._looks = debug or self._device.type == "cpu"
        self._ops = kernels.backend(self._device, backend)
        self.full_attn_allocator = self._pool("full_kv_pool", size, backend)
        self.swa_attn_allocator = self._pool("swa_kv_pool", size_swa, backend)
        # The last entry makes the last_loc of a row without prefix, -1, map to -1.
        self.full_to_swa_index_mapping: Tensor = torch.zeros(
            size + page_size + 1, dtype=torch.int64, device=self._device
        )
        self.full_to_swa_index_mapping[-1:] = -1
        self._forget()
        if hasattr(kvcache, "register_mapping"):
            kvcache.register_mapping(self.full_to_swa_index_mapping)

    def _pool(self, name: str, tokens: int, backend: str | None) -> BaseTokenToKVPoolAllocator:
        common = (self.dtype, self.device, getattr(self._kvcache, name, None), self.need_sort)
        options: dict[str, Any] = {"debug": self.debug, "backend": backend}
        if self.page_size == 1:
            return TokenToKVPoolAllocator(tokens, *common, **options)
        return PagedTokenToKVPoolAllocator(tokens, self.page_size, *common, **options)

    @property
    def free_pages(self) -> Tensor:
        return self.full_attn_allocator.free_pages

    @property
    def release_pages(self) -> Tensor:
        return self.full_attn_allocator.release_pages

    def available_size(self) -> int:
        """Tokens that can be had in both pools."""
        return min(self.full_available_size(), self.swa_available_size())

    def full_available_size(self) -> int:
        return self.full_attn_allocator.available_size()

    def swa_available_size(self) -> int:
        return self.swa_attn_allocator.available_size()

    def new_pages_available(self, num_full_pages: int, num_swa_pages: int) -> bool:
        full, swa = self.full_attn_allocator, self.swa_attn_allocator
        return num_full_pages <= full.free_count() and num_swa_pages <= swa.free_count()

    def debug_print(self) -> str:
        full, swa = self.full_available_size(), self.swa_available_size()
        return f"#swa-available-size: {swa}, #full-attn-available-size: {full}, "

    def translate_loc_from_full_to_swa(self, kv_indices: Tensor) -> Tensor:
        """SWA slots of full slots, any shape: 0 where there is none, -1 for -1."""
        slots: Tensor = self.full_to_swa_index_mapping[kv_indices]
        return slots

    def merge_and_sort_free(self) -> None:
        self.full_attn_allocator.merge_and_sort_free()
        self.swa_attn_allocator.merge_and_sort_free()

    def clear(self) -> None:
        """Both pools free, nothing mapped, every group and backup forgotten."""
        self.full_attn_allocator.clear()
        self.swa_attn_allocator.clear()
        self.full_to_swa_index_mapping[:-1].zero_()
        self._forget()

    def _peek(self, full_pages: int, swa_pages: int) -> tuple[Tensor, Tensor] | None:
        """Pages from both pools or, changing nothing, from none."""
        if not self.new_pages_available(full_pages, swa_pages):
            return None
        full, swa = self.full_attn_allocator.peek(full_pages), self.swa_attn_allocator.peek(swa_pages)
        return None if full is None or swa is None else (full, swa)

    def _take(self, full_pages: Tensor, swa_pages: Tensor | None) -> None:
        self.full_attn_allocator.take(full_pages)
        if swa_pages is not None:
            self.swa_attn_allocator.take(swa_pages)

    def alloc(self, need_size: int) -> Tensor | None:
        """``[need_size]`` int64 slots of whole pages, all mapped, or None if either pool has too few pages."""
        need = checks.page_multiple("need_size", need_size, self.page_size)
        pages = self._peek(need, need)
        if pages is None:
            return None
        slots = self.full_attn_allocator.slots(pages[0])
        self.full_to_swa_index_mapping[slots] = self.swa_attn_allocator.slots(pages[1])
        self._take(*pages)
        return slots

    def alloc_extend_swa_tail(
        self, prefix_lens: Tensor, prefix_lens_cpu: Tensor, seq_lens: Tensor, seq_lens_cpu: Tensor, last_loc: Tensor,
        extend_num_tokens: int, swa_tail_len: int,
    ) -> Tensor | None:  # fmt: skip
        """One new row, of which only the last ``swa_tail_len`` tokens (any number of them) are mapped.

        Takes the SWA pages that the tail touches; the tokens before it map to nothing, also those in its first page.
        ValueError for more than one row, a prefix, or a tail outside ``0..extend_num_tokens``.
        """
        rows = Rows(seq_lens, seq_lens_cpu, last_loc, prefix_lens, prefix_lens_cpu)
        plan = checks.extend_plan(rows, extend_num_tokens, None, self.page_size)
        start = checks.tail_start(rows, extend_num_tokens, swa_tail_len)
        swa_pages = plan.pages - start // self.page_size if swa_tail_len else 0
        return self._grow(rows, plan, swa_pages, start)

    def _check_rows(self, rows: Rows) -> None:
        super()._check_rows(rows)
        if self.debug:
            filling = rows.last_loc[rows.fills(self.page_size)] // self.page_size
            if not bool((self._swa_pages(filling) > 0).all()):
                raise ValueError("last_loc: a page that is still being filled has lost its SWA page")

    def set_full_to_swa_mapping(self, full_indices: Tensor, swa_indices: Tensor) -> None:
        """Map ``full_indices[i]`` to ``swa_indices[i]`` (``[n]`` each), as after loading both sides back.

        What was backed up before can no longer be restored. ValueError (on CPU, or with ``debug``) for slots out of
        range or pairs with different places in their pages.
        """
        checks.index("full_indices", full_indices, self._device)
        checks.index("swa_indices", swa_indices, self._device, full_indices.numel())
        if full_indices.numel() == 0:
            return
        if self._looks:
            full, swa = self.full_attn_allocator, self.swa_attn_allocator
            checks.sorted_slots("full_indices", full_indices, self.page_size, full.num_pages)
            checks.sorted_slots("swa_indices", swa_indices, self.page_size, swa.num_pages)
            if not bool((full_indices % self.page_size == swa_indices % self.page_size).all()):
                raise ValueError("swa_indices must keep the offset in the page of full_indices")
        self._void_backups()
        self.full_to_swa_index_mapping[full_indices] = swa_indices.to(torch.int64)

    def free_swa(self, free_index: Tensor, *, row_lens: Sequence[int] | None = None) -> None:
        """Free the SWA pages of the pages that ``free_index`` (``[n]`` full slots) lies in; unmapped ones are skipped.

        Acts at once, also inside a free group. With ``row_lens`` (as for ``free``) every page given must have its SWA
        page; then the host does not wait. ValueError for slots out of range, on page 0 or twice; with ``debug`` also
        if a mapped slot stays behind below one that is given.
        """
        checks.index("free_index", free_index, self._device)
        checks.cuts(row_lens, None, free_index.numel())
        if free_index.numel() == 0:
            return
        pages = self._swa_side(free_index, row_lens)
        self._void_backups()
        # What a waiting free said is mapped may be so no longer.
        self._pending = [FreeBatch(batch.pages, batch.exact) for batch in self._pending]
        self._put_swa(self._detach(pages, mapped=None if row_lens is None else ((0, pages.numel()),)))

    def _swa_side(self, slots: Tensor, row_lens: Sequence[int] | None) -> Tensor:
        """Distinct full pages of slots whose window side is freed."""
        pool = self.full_attn_allocator
        if self._looks and (row_lens is None or self.debug):
            ordered = checks.sorted_slots("free_index", slots, self.page_size, pool.num_pages)
            pages = checks.consecutive(ordered // self.page_size)
            if self.debug:
                self._check_window(slots, pages, row_lens)
        if row_lens is not None:
            return checks.row_pages(slots, row_lens, self.page_size)
        return pages if self._looks else checks.consecutive((slots // self.page_size).to(torch.int64).sort().values)

    def _check_window(self, slots: Tensor, pages: Tensor, row_lens: Sequence[int] | None) -> None:
        """What lies above the given slots in their page may be a trimmed row's, which nobody uses any more."""
        mapping = self.full_to_swa_index_mapping
        given = torch.zeros_like(mapping, dtype=torch.bool).index_fill_(0, slots.to(torch.int64), True)
        mapped, given = (kernels.page_rows(flags, self.page_size)[pages] for flags in (mapping > 0, given))
        goes_on = given.flip(1).cummax(1).values.flip(1)
        if bool((mapped & ~given & goes_on).any()):
            raise ValueError("free_index: another slot of a page given is still mapped")
        if row_lens is not None and not bool(mapped.any(1).all()):
            raise ValueError("free_index: row_lens promises that every page has its SWA page")

    def _detach(self, pages: Tensor, mapped: tuple[checks.Span, ...] | None) -> Tensor:
        """Cut the SWA pages off ``pages`` and return them; where ``mapped`` says which exist, without a host wait."""
        swa = torch.empty_like(pages)
        self._ops.detach(self.full_to_swa_index_mapping, pages, swa, self.page_size)
        if mapped is None:
            return swa[swa > 0]
        return torch.cat([swa[a:b] for a, b in mapped]) if mapped else swa[:0]

    def _put_swa(self, pages: Tensor) -> None:
        if pages.numel():
            self.swa_attn_allocator.put(pages)

    def _full_pool(self) -> BaseTokenToKVPoolAllocator:
        return self.full_attn_allocator

    def _release(self, batch: FreeBatch) -> None:
        self._put_swa(self._detach(batch.pages, batch.mapped))
        self.full_attn_allocator.put(batch.pages)

    def _check_batch(self, batch: FreeBatch) -> None:
        swa = self._swa_pages(batch.pages)
        if len(swa[swa > 0]):
            checks.all_held("free_index (its SWA side)", swa[swa > 0], self.swa_attn_allocator.held)
        claimed = torch.zeros_like(swa)
        for a, b in batch.mapped or ():
            claimed[a:b] = 1
        if batch.mapped is not None and not torch.equal(claimed > 0, swa > 0):
            raise ValueError("swa_lens: the pages said to have SWA slots are not those that have them")

    def _swa_pages(self, pages: Tensor) -> Tensor:
        return kernels.swa_pages_of(self.full_to_swa_index_mapping, pages, self.page_size)

    def backup_state(self) -> SWAState:
        """A state to return to: opaque, O(1), usable until the next free in either pool."""
        full, swa = self.full_attn_allocator.backup_state(), self.swa_attn_allocator.backup_state()
        return SWAState(*self.backups.new(), full, swa)

    def restore_state(self, state: SWAState) -> None:
        """Take back every page handed out since ``state``, in both pools, unmapped. Errors as for one pool."""
        self.backups.require(state, SWAState)
        full, swa = self.full_attn_allocator, self.swa_attn_allocator
        full.backups.require(state.full, PoolState)
        swa.backups.require(state.swa, PoolState)
        self.backups.back_to(state)
        # Pages held then are held still, and their slots map as then: a mapping changes only with its page or a free.
        rows = kernels.page_rows(self.full_to_swa_index_mapping, self.page_size)
        rows.index_fill_(0, full.restore_state(state.full), 0)
        swa.restore_state(state.swa)

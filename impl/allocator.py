"""Paged slot pools on torch tensors: page lists, free groups, backup and restore.

A *slot* is one token's place in the KV cache, ``slot // page_size`` its page. Page 0 is padding and never handed out,
so a pool of ``size`` tokens owns pages ``1..size // page_size``. What an allocation needs is counted on the host from
the host copies of the lengths, so that no allocation waits for the device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from impl import checks, kernels
from impl.checks import Backup, Backups, FreeBatch, Rows


class SlotAllocator(ABC):
    """What one pool and two together have in common: allocating for rows, freeing, free groups."""

    page_size: int
    full_to_swa_index_mapping: Tensor | None = None
    _device: torch.device
    _ops: kernels.Ops
    _looks: bool  # content checks that read tensors: always on CPU, elsewhere with debug=True
    _kvcache: Any

    def get_kvcache(self) -> Any:
        return self._kvcache

    def _forget(self) -> None:
        self._depth = 0
        self._pending: list[FreeBatch] = []
        self.backups = Backups(self)

    @property
    def is_not_in_free_group(self) -> bool:
        return self._depth == 0

    @property
    def free_group(self) -> list[Tensor]:
        """First slots of the pages that wait for the group's end, one int64 tensor a ``free``."""
        return [batch.pages * self.page_size for batch in self._pending]

    def free_group_begin(self) -> None:
        """Hold frees back until the matching ``free_group_end``. Groups nest; nothing collected is lost."""
        self._depth += 1

    def free_group_end(self) -> None:
        """End a group; the end of the outermost one frees what was collected. RuntimeError without a begin."""
        if self._depth == 0:
            raise RuntimeError("free_group_end without free_group_begin")
        if self._depth == 1 and self._pending:
            self._release(FreeBatch.join(self._pending))
            self._pending = []
        self._depth -= 1

    def free(
        self, free_index: Tensor, *, row_lens: Sequence[int] | None = None, swa_lens: Sequence[int] | None = None
    ) -> None:
        """Free every page that a slot of ``free_index`` lies in.

        ``free_index``: ``[n]`` integer slots. Without ``row_lens`` the pages are found by sorting (on CUDA the host
        waits for it). With ``row_lens`` (tokens a row, summing to ``n``) each row must begin on a page boundary and
        follow its pages in order, and no host wait occurs. ``swa_lens[i]``, where an SWA pool is attached, says how
        many trailing tokens of row ``i`` have SWA slots; it spares the wait for the mapping, and is ignored by a
        single pool. ValueError (state as before): slots out of range, on page 0, twice, free already, or a page
        without its first slot; checked on CPU for the path without ``row_lens``, and everywhere with ``debug``.
        """
        checks.index("free_index", free_index, self._device)
        checks.cuts(row_lens, swa_lens, free_index.numel())
        if free_index.numel() == 0:
            return
        batch = self._batch(free_index, row_lens, swa_lens)
        if self._full_pool().debug:
            self._check_batch(batch)
        self._void_backups()
        if self._depth:
            self._full_pool().mark(batch.pages, held=False)
            self._pending.append(batch)
        else:
            self._release(batch)

    def _batch(self, slots: Tensor, row_lens: Sequence[int] | None, swa_lens: Sequence[int] | None) -> FreeBatch:
        pool = self._full_pool()
        if row_lens is None:
            batch = FreeBatch(pool.pages_to_free(slots), exact=self._looks)
        else:
            spans = None if swa_lens is None else checks.mapped_spans(row_lens, swa_lens, self.page_size)
            pages = checks.row_pages(slots, row_lens, self.page_size)
            batch = FreeBatch(pages, exact=True, mapped=spans)
            pool.check_row_pages(slots, pages)
        waiting = sum(other.pages.numel() for other in self._pending)
        if batch.pages.numel() + waiting + pool.free_count() > pool.num_pages:
            raise ValueError("free_index: more pages freed than were handed out (double free)")
        return batch

    def alloc_extend(
        self, prefix_lens: Tensor, prefix_lens_cpu: Tensor, seq_lens: Tensor, seq_lens_cpu: Tensor, last_loc: Tensor,
        extend_num_tokens: int, num_new_pages: int | None = None,
    ) -> Tensor | None:  # fmt: skip
        """Slots for tokens ``prefix..seq`` of each row, first filling the page of ``last_loc``; all are mapped.

        ``prefix_lens``, ``seq_lens``, ``last_loc`` (slot of token ``prefix - 1``, or -1): ``[rows]`` on the device;
        the ``_cpu`` ones the same lengths on the host. Returns ``[extend_num_tokens]`` int64 slots, row after row,
        or None, with nothing changed, if a pool has too few pages. A partly filled page must have its SWA page where
        there are two pools. ValueError or TypeError for inconsistent arguments.
        """
        rows = Rows(seq_lens, seq_lens_cpu, last_loc, prefix_lens, prefix_lens_cpu)
        plan = checks.extend_plan(rows, extend_num_tokens, num_new_pages, self.page_size)
        return self._extend(rows, plan, plan.pages, 0)

    def _extend(self, rows: Rows, plan: checks.Plan, swa_pages: int, swa_start: int) -> Tensor | None:
        self._check_rows(rows)
        pages = self._peek(plan.pages, swa_pages)
        if pages is None:
            return None
        self._remember(rows.last_loc)
        out = torch.empty(plan.tokens, dtype=torch.int64, device=self._device)
        self._ops.extend(
            rows.prefix, rows.seq, rows.last_loc, *pages, self.full_to_swa_index_mapping, out,
            self.page_size, plan.longest, swa_start,
        )  # fmt: skip
        self._take(*pages)
        return out

    def alloc_decode(self, seq_lens: Tensor, seq_lens_cpu: Tensor, last_loc: Tensor) -> Tensor | None:
        """One slot a row for token ``seq - 1`` (``seq_lens`` count it; ``last_loc`` is the slot before, or -1).

        All ``[rows]``. Returns ``[rows]`` int64 slots; None and errors as ``alloc_extend``.
        """
        rows = Rows(seq_lens, seq_lens_cpu, last_loc)
        plan = checks.decode_plan(rows, self.page_size)
        self._check_rows(rows)
        pages = self._peek(plan.pages, plan.pages)
        if pages is None:
            return None
        self._remember(last_loc)
        out = torch.empty(plan.tokens, dtype=torch.int64, device=self._device)
        self._ops.decode(seq_lens, last_loc, *pages, self.full_to_swa_index_mapping, out, self.page_size)
        self._take(*pages)
        return out

    def _void_backups(self) -> None:
        """Something is freed: what was before can no longer be restored."""
        self.backups.void()

    def _check_rows(self, rows: Rows) -> None:
        rows.check(self._device, look=self._looks)
        if self._full_pool().debug:
            checks.last_slots(rows, self._full_pool().held, self.page_size)

    def _check_batch(self, batch: FreeBatch) -> None:  # noqa: B027 (one pool has nothing to add)
        """More ways (``debug``) to find a batch wrong."""

    def _remember(self, slots: Tensor) -> None:  # noqa: B027 (one pool has no mapping)
        """The pages of ``slots`` are about to be mapped anew."""

    @abstractmethod
    def _full_pool(self) -> BaseTokenToKVPoolAllocator: ...

    @abstractmethod
    def _peek(self, full_pages: int, swa_pages: int) -> tuple[Tensor, Tensor | None] | None: ...

    @abstractmethod
    def _take(self, full_pages: Tensor, swa_pages: Tensor | None) -> None: ...

    @abstractmethod
    def _release(self, batch: FreeBatch) -> None: ...


@dataclass(frozen=True)
class PoolState(Backup):
    """What ``backup_state`` returns: opaque, usable until the next free."""

    stack: Tensor
    top: int
    released: tuple[Tensor, ...]


class BaseTokenToKVPoolAllocator(SlotAllocator):
    """One pool of pages. The free pages are ``_stack[_top:]``: taking and giving back touch only what they move."""

    def __init__(
        self, size: int, page_size: int, dtype: torch.dtype, device: str | torch.device, kvcache: Any, need_sort: bool,
        *, debug: bool = False, backend: str | None = None,
    ) -> None:  # fmt: skip
        self.num_pages = checks.pool_sizes("size", size, page_size)
        self.size, self.page_size, self.dtype, self.device = size, page_size, dtype, device
        self.need_sort, self.debug, self._kvcache = need_sort, debug, kvcache
        self._device = torch.device(device)
        self._looks = debug or self._device.type == "cpu"
        self._ops = kernels.backend(self._device, backend)
        self._in_page = torch.arange(page_size, device=self._device)
        self.clear()

    @property
    def size_full(self) -> int:
        return self.size

    @property
    def free_pages(self) -> Tensor:
        """``[n]`` int64 page numbers, next to be handed out first. A view: clone it to keep it."""
        return self._stack[self._top :]

    @property
    def release_pages(self) -> Tensor:
        """``[n]`` int64 pages freed but not yet sorted in (only with ``need_sort``)."""
        return torch.cat([self._stack[:0], *self._released])

    def all_free(self) -> Tensor:
        return torch.cat([self.free_pages, *self._released])

    def free_count(self) -> int:
        """Pages free or released."""
        return self.num_pages - self._top + self._released_count

    def available_size(self) -> int:
        """Tokens that can still be handed out, in whole pages."""
        return self.free_count() * self.page_size

    def debug_print(self) -> str:
        return f"#available-size: {self.available_size()}, "

    def clear(self) -> None:
        """Every page free, every group and backup forgotten."""
        self._stack = torch.arange(1, self.num_pages + 1, dtype=torch.int64, device=self._device)
        self._top = 0
        self._released: list[Tensor] = []
        self._released_count = 0
        self.held = torch.zeros(self.num_pages + 1 if self._looks else 0, dtype=torch.bool, device=self._device)
        self._forget()

    def merge_and_sort_free(self) -> None:
        """Sort the released pages into the free ones."""
        if not self._released:
            return
        free = self.all_free().sort().values
        # A new stack: a backup may still hold the old one. What lies below the top is never read.
        self._top = self.num_pages - free.numel()
        self._stack = torch.cat([self._stack[: self._top], free])
        self._released, self._released_count = [], 0

    def peek(self, pages: int) -> Tensor | None:
        """The next ``pages`` free pages, still free (see ``take``); None where there are fewer."""
        if pages > self.free_count():
            return None
        if pages > self.num_pages - self._top:
            self.merge_and_sort_free()
        return self._stack[self._top : self._top + pages]

    def take(self, pages: Tensor) -> None:
        """Hand out what ``peek`` showed."""
        self._top += pages.numel()
        self.mark(pages, held=True)

    def put(self, pages: Tensor) -> None:
        """Give back distinct held pages. RuntimeError if there are more than were ever handed out."""
        if pages.numel() + self.free_count() > self.num_pages:
            raise RuntimeError("more pages given back than were handed out: the mapping was overwritten from outside")
        self._void_backups()
        self.mark(pages, held=False)
        if self.need_sort:
            self._released.append(pages)
            self._released_count += pages.numel()
        else:
            self._top -= pages.numel()
            self._stack[self._top : self._top + pages.numel()] = pages

    def mark(self, pages: Tensor, *, held: bool) -> None:
        if self._looks:
            self.held.index_fill_(0, pages, held)

    def slots(self, pages: Tensor) -> Tensor:
        """All slots of ``pages``, in order; a copy, so that no caller can reach into the free list."""
        if self.page_size == 1:
            return pages.clone()
        return (pages[:, None] * self.page_size + self._in_page).view(-1)

    def pages_to_free(self, slots: Tensor) -> Tensor:
        """The distinct pages of ``slots``, checked where looking is cheap."""
        if self._looks:
            return checks.held_pages("free_index", slots, self.held, self.page_size)
        pages = (slots // self.page_size).to(torch.int64)
        return pages if self.page_size == 1 else torch.unique(pages)

    def check_row_pages(self, slots: Tensor, pages: Tensor) -> None:
        """``pages``, read off rows, must be held, and (``debug``) be the very pages the slots lie in."""
        if self._looks:
            checks.all_held("free_index", pages, self.held)
        if self.debug and not torch.equal(pages.sort().values, self.pages_to_free(slots)):
            raise ValueError("free_index: every row must begin on a page boundary and follow its pages")

    def alloc(self, need_size: int) -> Tensor | None:
        """``[need_size]`` int64 slots of whole pages, or None if there are too few.

        ValueError unless ``need_size`` is a non-negative multiple of the page size.
        """
        pages = self.peek(checks.page_multiple("need_size", need_size, self.page_size))
        if pages is None:
            return None
        self.take(pages)
        return self.slots(pages)

    def backup_state(self) -> PoolState:
        """A state to return to: opaque, O(1), usable until the next free."""
        return PoolState(*self.backups.new(), self._stack, self._top, tuple(self._released))

    def restore_state(self, state: PoolState) -> Tensor:
        """Take back every page handed out since ``state``. RuntimeError if anything was freed since.

        Returns pages that include all of those, and none that is held.
        """
        self.backups.require(state, PoolState)
        self.backups.back_to(state)
        # Nothing was freed since, so only allocations moved the top (or a merge built another stack).
        merged = state.stack is not self._stack
        self._stack, old_top, self._top = state.stack, self._top, state.top
        self._released, self._released_count = list(state.released), sum(map(len, state.released))
        back = self.all_free() if merged else self._stack[self._top : old_top]
        self.mark(back, held=False)
        return back

    def _full_pool(self) -> BaseTokenToKVPoolAllocator:
        return self

    def _peek(self, full_pages: int, _: int) -> tuple[Tensor, None] | None:
        pages = self.peek(full_pages)
        return None if pages is None else (pages, None)

    def _take(self, full_pages: Tensor, _: Tensor | None) -> None:
        self.take(full_pages)

    def _release(self, batch: FreeBatch) -> None:
        self.put(batch.pages)


class TokenToKVPoolAllocator(BaseTokenToKVPoolAllocator):
    """A pool whose pages are single tokens."""

    def __init__(
        self, size: int, dtype: torch.dtype, device: str | torch.device, kvcache: Any, need_sort: bool, *,
        debug: bool = False, backend: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(size, 1, dtype, device, kvcache, need_sort, debug=debug, backend=backend)


class PagedTokenToKVPoolAllocator(BaseTokenToKVPoolAllocator):
    """A pool of pages of ``page_size`` tokens; what one row gets is contiguous within each page."""

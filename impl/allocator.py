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
from impl.checks import FreeBatch


class FreeGroups(ABC):
    """Free, at once or when the outermost group ends; and which backups a free has made unusable."""

    page_size: int
    _device: torch.device
    _looks: bool  # content checks that read tensors: always on CPU, elsewhere with debug=True
    _kvcache: Any

    def _forget(self) -> None:
        self._depth = 0
        self._pending: list[FreeBatch] = []
        self._backups: list[int] = []
        self._serial = getattr(self, "_serial", 0)

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
        self,
        free_index: Tensor,
        *,
        row_lens: Sequence[int] | None = None,
        swa_lens: Sequence[int] | None = None,
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
        checks.rows(row_lens, swa_lens, len(free_index))
        if len(free_index) == 0:
            return
        batch = self._batch(free_index, row_lens, swa_lens)
        if self._full_pool().debug:
            self._check_batch(batch)
        self._backups.clear()
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
        waiting = sum(len(other.pages) for other in self._pending)
        if len(batch.pages) + waiting + pool.free_count() > pool.num_pages:
            raise ValueError("free_index: more pages freed than were handed out (double free)")
        return batch

    def get_kvcache(self) -> Any:
        return self._kvcache

    def get_cpu_copy(self, indices: Tensor, mamba_indices: Tensor | None = None) -> Any:
        return self._kvcache.get_cpu_copy(indices, mamba_indices=mamba_indices)

    def load_cpu_copy(self, kv_cache_cpu: Any, indices: Tensor, mamba_indices: Tensor | None = None) -> Any:
        return self._kvcache.load_cpu_copy(kv_cache_cpu, indices, mamba_indices=mamba_indices)

    def _new_backup(self) -> int:
        self._serial += 1
        self._backups.append(self._serial)
        return self._serial

    def _require_backup(self, state: Any, kind: type) -> None:
        if not isinstance(state, kind):
            raise TypeError(f"restore_state takes what backup_state returned, got {type(state).__name__}")
        if state.owner is not self:  # type: ignore[attr-defined]
            raise ValueError("restore_state: this state was taken from another allocator")
        if state.serial not in self._backups:  # type: ignore[attr-defined]
            raise RuntimeError("restore_state: pages were freed since this backup, or an earlier one was restored")

    def _drop_backups_after(self, serial: int) -> None:
        del self._backups[self._backups.index(serial) + 1 :]

    def _check_batch(self, batch: FreeBatch) -> None:  # noqa: B027 (nothing more to check for one pool)
        """More ways (``debug``) to find a batch wrong."""

    @abstractmethod
    def _full_pool(self) -> BaseTokenToKVPoolAllocator: ...

    @abstractmethod
    def _release(self, batch: FreeBatch) -> None: ...


@dataclass(frozen=True)
class PoolState:
    """What ``backup_state`` returns: opaque, valid until the next free."""

    owner: BaseTokenToKVPoolAllocator
    serial: int
    stack: Tensor
    top: int
    released: tuple[Tensor, ...]


class BaseTokenToKVPoolAllocator(FreeGroups):
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
        return self.num_pages - self._top + sum(map(len, self._released))

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
        self.held = torch.zeros(self.num_pages + 1 if self._looks else 0, dtype=torch.bool, device=self._device)
        self._forget()

    def merge_and_sort_free(self) -> None:
        """Sort the released pages into the free ones."""
        if not self._released:
            return
        free = self.all_free().sort().values
        # A new stack: a backup may still hold the old one. What lies below the top is never read.
        self._top = self.num_pages - len(free)
        self._stack = torch.cat([self._stack[: self._top], free])
        self._released = []

    def peek(self, pages: int) -> Tensor | None:
        """The next ``pages`` free pages, still free (see ``take``); None where there are fewer."""
        if pages > self.free_count():
            return None
        if pages > self.num_pages - self._top:
            self.merge_and_sort_free()
        return self._stack[self._top : self._top + pages]

    def take(self, pages: Tensor) -> None:
        """Hand out what ``peek`` showed."""
        self._top += len(pages)
        self.mark(pages, held=True)

    def put(self, pages: Tensor) -> None:
        """Give back distinct held pages."""
        self._backups.clear()
        self.mark(pages, held=False)
        if self.need_sort:
            self._released.append(pages)
        else:
            self._top -= len(pages)
            self._stack[self._top : self._top + len(pages)] = pages

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
        if not self._looks:
            pages = (slots // self.page_size).to(torch.int64)
            return pages if self.page_size == 1 else torch.unique(pages)
        ordered = checks.sorted_slots("free_index", slots, self.page_size, self.num_pages)
        pages = checks.closed_pages("free_index", ordered, self.page_size)
        checks.all_held("free_index", pages, self.held)
        return pages

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

    def alloc_extend(
        self, prefix_lens: Tensor, prefix_lens_cpu: Tensor, seq_lens: Tensor, seq_lens_cpu: Tensor, last_loc: Tensor,
        extend_num_tokens: int, num_new_pages: int | None = None,
    ) -> Tensor | None:  # fmt: skip
        """Slots for tokens ``prefix..seq`` of each row, first filling the page of ``last_loc``.

        ``prefix_lens``, ``seq_lens``, ``last_loc`` (slot of token ``prefix - 1``, or -1): ``[rows]`` on the device;
        the ``_cpu`` ones the same lengths on the host. Returns ``[extend_num_tokens]`` int64 slots, row after row,
        or None if there are too few pages. ValueError or TypeError for inconsistent arguments.
        """
        plan = checks.extend_plan(prefix_lens_cpu, seq_lens_cpu, extend_num_tokens, num_new_pages, self.page_size)
        self.check_rows(prefix_lens, prefix_lens_cpu, seq_lens, seq_lens_cpu, last_loc)
        pages = self.peek(plan.pages)
        if pages is None:
            return None
        out = torch.empty(plan.tokens, dtype=torch.int64, device=self._device)
        self._ops.extend(prefix_lens, seq_lens, last_loc, pages, None, None, out, self.page_size, plan.longest)
        self.take(pages)
        return out

    def alloc_decode(self, seq_lens: Tensor, seq_lens_cpu: Tensor, last_loc: Tensor) -> Tensor | None:
        """One slot a row for token ``seq - 1`` (``seq_lens`` count it; ``last_loc`` is the slot before, or -1).

        All ``[rows]``. Returns ``[rows]`` int64 slots, or None if there are too few pages.
        """
        plan = checks.decode_plan(seq_lens_cpu, self.page_size)
        self.check_rows(None, None, seq_lens, seq_lens_cpu, last_loc)
        pages = self.peek(plan.pages)
        if pages is None:
            return None
        out = torch.empty(plan.tokens, dtype=torch.int64, device=self._device)
        self._ops.decode(seq_lens, last_loc, pages, None, None, out, self.page_size)
        self.take(pages)
        return out

    def check_rows(
        self, prefix: Tensor | None, prefix_cpu: Tensor | None, seq: Tensor, seq_cpu: Tensor, last_loc: Tensor
    ) -> None:
        """The device arguments of an extend (of a decode, without ``prefix``) against the host's."""
        rows = len(seq_cpu)
        checks.index("seq_lens", seq, self._device, rows)
        checks.index("last_loc", last_loc, self._device, rows)
        if prefix is not None:
            checks.index("prefix_lens", prefix, self._device, rows)
        if self._looks:
            checks.same_lengths("seq_lens", seq, seq_cpu)
            if prefix is not None and prefix_cpu is not None:
                checks.same_lengths("prefix_lens", prefix, prefix_cpu)
        if self.debug:
            checks.last_slots(last_loc, seq - 1 if prefix is None else prefix, self.held, self.page_size)

    def backup_state(self) -> PoolState:
        """A state to return to: opaque, O(1), usable until the next free."""
        return PoolState(self, self._new_backup(), self._stack, self._top, tuple(self._released))

    def check_state(self, state: PoolState) -> None:
        self._require_backup(state, PoolState)

    def restore_state(self, state: PoolState) -> None:
        """Take back every page handed out since ``state``. RuntimeError if anything was freed since."""
        self.check_state(state)
        self._drop_backups_after(state.serial)
        # Nothing was freed since, so only allocations moved the top (or a merge built another stack).
        merged = state.stack is not self._stack
        self._stack, old_top, self._top = state.stack, self._top, state.top
        self._released = list(state.released)
        back = self.all_free() if merged else self._stack[self._top : old_top]
        self.mark(back, held=False)

    def _full_pool(self) -> BaseTokenToKVPoolAllocator:
        return self

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

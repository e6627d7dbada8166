"""Paged slot pools on torch tensors: page lists, backup and restore.

A *slot* is one token's place in the KV cache, ``slot // page_size`` its page. Page 0 is padding and never handed out,
so a pool of ``size`` tokens owns pages ``1..size // page_size``. What an allocation needs is counted on the host from
the host copies of the lengths, so that no allocation waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from impl import checks, kernels
from impl.checks import Backup, FreeBatch
from impl.slots import SlotAllocator

__all__ = [
    "BaseTokenToKVPoolAllocator",
    "PagedTokenToKVPoolAllocator",
    "PoolState",
    "SlotAllocator",
    "TokenToKVPoolAllocator",
]


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

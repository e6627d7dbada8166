"""Two pools, full attention and sliding window attention (SWA), and the mapping from full slots to SWA slots.

The mapping goes from page to page and keeps the offset: all mapped slots of a full page map into one SWA page, each to
the slot with its own offset there. So any mapped slot of a page, also one that a trimmed row no longer uses, tells the
SWA page. The entries of pages that are not handed out are 0. An SWA page is handed out as long as something maps to it.

On CUDA the host waits for the device in these calls alone: ``check_frees``; ``free`` without ``row_lens`` or without
``swa_lens``; ``free_swa`` without ``row_lens``; ``free_full``, ``free_full_segment`` and ``free_full_segments``;
``free_group_end``, if the group has such a free or a ``free_swa`` came after a free in it; every call with ``debug``.
A call on another CUDA stream than the call before is ordered after it, see ``StreamOrder``; but whoever reads the
mapping, also by ``translate_loc_from_full_to_swa``, on another stream than the calls that change it, puts the streams
in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from impl import checks, kernels
from impl.allocator import (
    Backup,
    BaseTokenToKVPoolAllocator,
    FreeBatch,
    PagedTokenToKVPoolAllocator,
    PoolState,
    SlotAllocator,
    Span,
    TokenToKVPoolAllocator,
)
from impl.checks import Rows
from impl.host import StreamOrder, row_heads, row_pages, upload

__all__ = ["SWAState", "SWATokenToKVPoolAllocator"]


@dataclass(frozen=True)
class SWAState(Backup):
    """What ``backup_state`` returns. Opaque to the caller; usable until the next free in either pool."""

    full: PoolState
    swa: PoolState


class SWATokenToKVPoolAllocator(SlotAllocator):
    """Allocates from both pools together. ``free`` gives back full and SWA pages, ``free_swa`` the SWA pages alone.

    Stands in for SGLang's class of this name. ``size``, ``size_swa``: tokens of the two pools. ``kvcache``: if it has a
    method ``register_mapping``, that is called with the mapping. ``need_sort``, ``debug``, ``backend``: as for one
    pool. ``full_attn_allocator``, ``swa_attn_allocator``: the two pools, if the caller has made them; ValueError if
    their sizes, device or options differ from those given here. ``req_to_token_pool``: the table of rows, which newer
    engines pass for a ring of SWA slots in each row; it is not used, and a KV cache with such rings is a ValueError.

    ``full_to_swa_index_mapping``: ``[size + page_size + 1]`` int64, the SWA slot of each full slot, 0 for none. Its
    last entry is -1, so that the ``last_loc`` -1 of a row without tokens maps to -1.
    """

    windowed = True
    # The classes of the two pools, for pages of one token and of more: a subclass of this class may name its own.
    pool_kinds: tuple[type[TokenToKVPoolAllocator], type[PagedTokenToKVPoolAllocator]] = (
        TokenToKVPoolAllocator,
        PagedTokenToKVPoolAllocator,
    )

    def __init__(
        self, size: int, size_swa: int, page_size: int, dtype: torch.dtype, device: str | torch.device, kvcache: Any,
        need_sort: bool, req_to_token_pool: Any = None,  # noqa: ARG002 (newer engines pass it)
        *, debug: bool = False, backend: str | None = None,
        full_attn_allocator: BaseTokenToKVPoolAllocator | None = None,
        swa_attn_allocator: BaseTokenToKVPoolAllocator | None = None,
    ) -> None:  # fmt: skip
        checks.pool_sizes("size", size, page_size)
        checks.pool_sizes("size_swa", size_swa, page_size)
        if getattr(kvcache, "swa_req_ring_size", None) is not None:
            raise ValueError("kvcache: a ring of SWA slots for each request is not supported: its slots are no pages")
        self._size_full, self._size_swa = size, size_swa
        self.page_size, self.dtype, self.device = page_size, dtype, device
        self.need_sort, self.debug, self._kvcache = need_sort, debug, kvcache
        self._device = torch.device(device)
        self._check_content = debug or self._device.type == "cpu"
        self._ops = kernels.backend(self._device, backend)
        self._order = StreamOrder(self._device)
        self.full_attn_allocator = full_attn_allocator or self._pool("full_kv_pool", size, backend)
        self.swa_attn_allocator = swa_attn_allocator or self._pool("swa_kv_pool", size_swa, backend)
        self._check_pool("full_attn_allocator", self.full_attn_allocator, size)
        self._check_pool("swa_attn_allocator", self.swa_attn_allocator, size_swa)
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
        one, paged = self.pool_kinds
        return (
            one(tokens, *common, **options)
            if self.page_size == 1
            else paged(tokens, self.page_size, *common, **options)
        )

    def _check_pool(self, name: str, pool: BaseTokenToKVPoolAllocator, tokens: int) -> None:
        checks.part(
            name,
            size=(pool.size, tokens),
            page_size=(pool.page_size, self.page_size),
            device=(torch.device(pool.device), self._device),
            need_sort=(pool.need_sort, self.need_sort),
            debug=(pool.debug, self.debug),
        )

    @property
    def size(self) -> int:
        """The size of the smaller pool in tokens."""
        return min(self._size_full, self._size_swa)

    @property
    def size_full(self) -> int:
        """The size of the full pool in tokens."""
        return self._size_full

    @property
    def size_swa(self) -> int:
        """The size of the SWA pool in tokens."""
        return self._size_swa

    @property
    def swa_req_ring(self) -> bool:
        """False: SWA slots are pages of a pool, never a ring of one request."""
        return False

    @property
    def swa_ring_cost_tokens(self) -> int:
        """0: there is no ring."""
        return 0

    def get_all_free_pages(self) -> None:
        """None: no single list has the free pages. Ask ``full_attn_allocator`` or ``swa_attn_allocator``."""

    def resize(self, config: Any) -> None:
        """Make the pools hold ``config.full_max_total_num_tokens`` and ``config.swa_max_total_num_tokens`` tokens, all
        of them free, as after ``clear``. The mapping stays the tensor that it is.

        ValueError, with nothing changed, for a size that is no pool size, and for a full pool that is larger than the
        mapping.
        """
        full, swa = int(config.full_max_total_num_tokens), int(config.swa_max_total_num_tokens)
        checks.pool_sizes("full_max_total_num_tokens", full, self.page_size)
        checks.pool_sizes("swa_max_total_num_tokens", swa, self.page_size)
        most = self.full_to_swa_index_mapping.numel() - self.page_size - 1
        if full > most:
            raise ValueError(f"full_max_total_num_tokens must be at most {most}, the size of the mapping, got {full}")
        self._size_full, self._size_swa = full, swa
        self.full_attn_allocator.set_size(full)
        self.swa_attn_allocator.set_size(swa)
        self.clear()

    @property
    def free_pages(self) -> Tensor:
        """``free_pages`` of the full pool."""
        return self.full_attn_allocator.free_pages

    @property
    def release_pages(self) -> Tensor:
        """``release_pages`` of the full pool."""
        return self.full_attn_allocator.release_pages

    def available_size(self) -> int:
        """How many tokens can still be handed out with an SWA slot each, in whole pages."""
        return min(self.full_available_size(), self.swa_available_size())

    def full_available_size(self) -> int:
        """How many tokens of the full pool can still be handed out, in whole pages."""
        return self.full_attn_allocator.available_size()

    def swa_available_size(self) -> int:
        """How many tokens of the SWA pool can still be handed out, in whole pages."""
        return self.swa_attn_allocator.available_size()

    def new_pages_available(self, num_full_pages: int, num_swa_pages: int) -> bool:
        """Both pools have so many free pages."""
        full, swa = self.full_attn_allocator, self.swa_attn_allocator
        return num_full_pages <= full.free_count() and num_swa_pages <= swa.free_count()

    def debug_print(self) -> str:
        """One line for the engine's log."""
        full, swa = self.full_available_size(), self.swa_available_size()
        return f"#swa-available-size: {swa}, #full-attn-available-size: {full}, "

    def translate_loc_from_full_to_swa(self, kv_indices: Tensor) -> Tensor:
        """The SWA slots of full slots (integers of any shape): 0 where there is none, -1 for -1."""
        slots: Tensor = self.full_to_swa_index_mapping[kv_indices]
        return slots

    def translate_swa_indices_for_transfer(self, kv_indices: Tensor) -> Tensor:
        """The SWA slots of full slots, as another machine addresses them: ``translate_loc_from_full_to_swa``."""
        return self.translate_loc_from_full_to_swa(kv_indices)

    def merge_and_sort_free(self) -> None:
        """Sort ``release_pages`` into ``free_pages``, in both pools."""
        self.full_attn_allocator.merge_and_sort_free()
        self.swa_attn_allocator.merge_and_sort_free()

    def clear(self) -> None:
        """Make every page of both pools free and unmapped, and forget every free group and backup."""
        self._in_order()
        self.full_attn_allocator.clear()
        self.swa_attn_allocator.clear()
        self.full_to_swa_index_mapping[:-1].zero_()
        self._forget()

    def _peek(self, full_pages: int, swa_pages: int) -> tuple[Tensor, Tensor] | None:
        if not self.new_pages_available(full_pages, swa_pages):
            return None
        full, swa = self.full_attn_allocator.peek(full_pages), self.swa_attn_allocator.peek(swa_pages)
        return None if full is None or swa is None else (full, swa)

    def _take(self, full_pages: Tensor, swa_pages: Tensor | None) -> None:
        self.full_attn_allocator.take(full_pages)
        if swa_pages is not None:
            self.swa_attn_allocator.take(swa_pages)

    def alloc(self, need_size: int) -> Tensor | None:
        """``[need_size]`` int64 full slots of whole pages, all mapped, or None if either pool has too few pages.

        ValueError unless ``need_size`` is a non-negative multiple of the page size.
        """
        need = checks.page_multiple("need_size", need_size, self.page_size)
        self._in_order()
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
        """Slots for the new tokens of one row, of which only the last ``swa_tail_len`` (any number) get SWA slots.

        The row has nothing yet, or a prefix of whole pages. The SWA pages that the tail touches are taken; the new
        tokens before the tail map to nothing, also those in the tail's first page. Arguments, answer and errors as for
        ``alloc_extend``; ValueError also for more than one row, for a prefix that ends inside a page, and for a tail
        outside ``0..extend_num_tokens``.
        """
        rows = Rows(seq_lens, seq_lens_cpu, last_loc, prefix_lens, prefix_lens_cpu)
        plan = checks.extend_plan(rows, extend_num_tokens, None, self.page_size)
        start = checks.tail_start(rows, extend_num_tokens, swa_tail_len, self.page_size)
        swa_pages = plan.pages - start // self.page_size if swa_tail_len else 0
        return self._grow(rows, plan, swa_pages, start)

    def _check_rows(self, rows: Rows) -> None:
        super()._check_rows(rows)
        if self.debug:
            filling = rows.last_loc[rows.fills(self.page_size)] // self.page_size
            if not bool((self._swa_pages(filling) > 0).all()):
                raise ValueError("last_loc: a page that is still being filled has lost its SWA page")

    def set_full_to_swa_mapping(self, full_indices: Tensor, swa_indices: Tensor) -> None:
        """Map ``full_indices[i]`` to ``swa_indices[i]`` (``[n]`` integers on the device each).

        For callers that load KV cache back and write the mapping themselves. Backups made before can no longer be
        restored. ValueError (on CPU, or with ``debug``) for slots out of range, and for a pair with different offsets
        in their pages.
        """
        checks.int_tensor("full_indices", full_indices, self._device)
        checks.int_tensor("swa_indices", swa_indices, self._device, full_indices.numel())
        if full_indices.numel() == 0:
            return
        self._in_order()
        if self._check_content:
            full, swa = self.full_attn_allocator, self.swa_attn_allocator
            checks.sorted_slots("full_indices", full_indices, self.page_size, full.num_pages)
            checks.sorted_slots("swa_indices", swa_indices, self.page_size, swa.num_pages)
            if not bool((full_indices % self.page_size == swa_indices % self.page_size).all()):
                raise ValueError("swa_indices[i] must have the offset of full_indices[i] in its page")
        self._void_backups()
        self.full_to_swa_index_mapping[full_indices] = swa_indices.to(torch.int64)

    def clear_full_to_swa_mapping(self, full_indices: Tensor) -> None:
        """Map ``full_indices`` (``[n]`` integers on the device) to nothing, and free nothing.

        For callers that give the SWA pages to other full slots. Backups made before can no longer be restored.
        ValueError (on CPU, or with ``debug``) for slots out of range or there twice.
        """
        checks.int_tensor("full_indices", full_indices, self._device)
        if full_indices.numel() == 0:
            return
        self._in_order()
        if self._check_content:
            checks.sorted_slots("full_indices", full_indices, self.page_size, self.full_attn_allocator.num_pages)
        self._void_backups()
        self.full_to_swa_index_mapping.index_fill_(0, full_indices.to(torch.int64), 0)

    def move_swa(self, given: Tensor, kept: Tensor) -> None:
        """The SWA pages of the full slots ``given`` belong to the full slots ``kept`` from now on, slot by slot.

        ``given``, ``kept``: ``[n]`` integers on the device, whole pages each, slot by slot at the same offsets. Nothing
        is freed. Backups made before can no longer be restored. ValueError (on CPU, or with ``debug``) for slots out of
        range, for a given slot that is not mapped, and for a kept slot that is mapped.
        """
        checks.int_tensor("given", given, self._device)
        checks.int_tensor("kept", kept, self._device, given.numel())
        if given.numel() == 0:
            return
        self._in_order()
        swa = self.translate_loc_from_full_to_swa(given)
        if self._check_content:
            if not bool((swa > 0).all()):
                raise ValueError("given: a slot has no SWA slot")
            if bool((self.translate_loc_from_full_to_swa(kept) != 0).any()):
                raise ValueError("kept: a slot has an SWA slot already")
        self.set_full_to_swa_mapping(kept, swa)
        self.full_to_swa_index_mapping[given] = 0

    def free_swa(self, free_index: Tensor, *, row_lens: Sequence[int] | None = None) -> None:
        """Free the SWA pages of the full pages that ``free_index`` lies in; the full pages stay handed out.

        ``free_index``: ``[n]`` integers on the device, full slots; pages without an SWA page are skipped. It acts at
        once, also inside a free group. ``row_lens``: as for ``free``; every page given must have its SWA page then, and
        the host does not wait. ValueError for slots out of range, on page 0 or there twice; with ``debug`` also if a
        mapped slot that is not given comes before a given one in its page.
        """
        checks.int_tensor("free_index", free_index, self._device)
        checks.row_lengths(row_lens, None, free_index.numel())
        if free_index.numel() == 0:
            return
        self._in_order()
        if row_lens is not None and self.frees_in_one_launch:
            self.free_swa_at(free_index, None if self.page_size == 1 else row_heads(row_lens, self.page_size))
            return
        if row_lens is None:  # the host waits for the different pages
            self.check_frees()
        pages = self._swa_side(free_index, row_lens)
        self._void_backups()
        # Which pages of a pending free have SWA pages may have changed.
        self.pending = [FreeBatch(batch.pages, batch.exact) for batch in self.pending]
        self._put_swa(self._detach(pages, mapped=None if row_lens is None else ((0, pages.numel()),)))

    def free_swa_segment(self, free_index: Tensor, *, start_pos: int) -> None:
        """Free the SWA pages of one segment of a row, and do not wait for the device.

        Arguments as for ``free_segment``: the first slot of each page must be mapped. Errors as for ``free_swa``, and
        ValueError for a start inside a page.
        """
        checks.int_tensor("free_index", free_index, self._device)
        checks.page_multiple("start_pos", start_pos, self.page_size)
        if free_index.numel():
            self.free_swa(free_index, row_lens=[free_index.numel()])

    def free_full(self, free_index: Tensor) -> None:
        """Free the full pages that ``free_index`` lies in; their SWA pages were freed before.

        ``free_index``: ``[n]`` integers on the device, full slots. In a free group the pages wait for its end. Errors
        as for ``free``; ValueError also (on CPU, or with ``debug``) for a page that still has its SWA page.
        """
        checks.int_tensor("free_index", free_index, self._device)
        if free_index.numel() == 0:
            return
        batch = self._batch(free_index, None, None)
        if self._check_content and bool((self._swa_pages(batch.pages) > 0).any()):
            raise ValueError("free_index: a page still has its SWA page; free it with free or free_swa")
        self._free(FreeBatch(batch.pages, batch.exact, mapped=() if batch.exact else None))

    def _swa_side(self, slots: Tensor, row_lens: Sequence[int] | None) -> Tensor:
        """The different full pages of slots whose SWA pages are to be freed."""
        pool = self.full_attn_allocator
        if self._check_content and (row_lens is None or self.debug):
            ordered = checks.sorted_slots("free_index", slots, self.page_size, pool.num_pages)
            pages = checks.distinct(ordered // self.page_size)
            if self.debug:
                self._check_window(slots, pages, row_lens)
        if row_lens is not None:
            return row_pages(slots, row_lens, self.page_size)
        if self._check_content:
            return pages
        return checks.distinct((slots // self.page_size).to(torch.int64).sort().values)

    def _check_window(self, slots: Tensor, pages: Tensor, row_lens: Sequence[int] | None) -> None:
        """ValueError if a slot that is not given stays mapped before a given one in its page.

        After the given slots there may be mapped ones: those that a row used before it was trimmed.
        """
        mapping = self.full_to_swa_index_mapping
        given = torch.zeros_like(mapping, dtype=torch.bool).index_fill_(0, slots.to(torch.int64), True)
        mapped, given = (kernels.page_rows(flags, self.page_size)[pages] for flags in (mapping > 0, given))
        goes_on = given.flip(1).cummax(1).values.flip(1)
        if bool((mapped & ~given & goes_on).any()):
            raise ValueError("free_index: a slot before a given one in its page is not given, and is still mapped")
        if row_lens is not None and not bool(mapped.any(1).all()):
            raise ValueError("row_lens: it promises that every page of free_index has its SWA page, and one has none")

    def _detach(self, pages: Tensor, mapped: tuple[Span, ...] | None) -> Tensor:
        """Unmap the full ``pages`` and return their SWA pages; no host wait if ``mapped`` says which have one."""
        swa = torch.empty_like(pages)
        self._ops.detach(self.full_to_swa_index_mapping, pages, swa, self.page_size)
        if mapped is None:
            return swa[swa > 0]
        if len(mapped) == 1:
            return swa[slice(*mapped[0])]
        return torch.cat([swa[first:last] for first, last in mapped]) if mapped else swa[:0]

    def _put_swa(self, pages: Tensor) -> None:
        if pages.numel():
            self.swa_attn_allocator.put(pages)

    def _each_pool(self) -> Sequence[tuple[str, BaseTokenToKVPoolAllocator]]:
        return [("full pages", self.full_attn_allocator), ("SWA pages", self.swa_attn_allocator)]

    def _on_device(self) -> Iterable[Tensor | None]:
        yield self.full_to_swa_index_mapping
        yield from (batch.pages for batch in self.pending)
        for _, pool in self._each_pool():
            yield from pool._on_device()

    @property
    def full_pool(self) -> BaseTokenToKVPoolAllocator:
        """``full_attn_allocator``."""
        return self.full_attn_allocator

    def _release(self, batch: FreeBatch) -> None:
        self._put_swa(self._detach(batch.pages, batch.mapped))
        self.full_attn_allocator.put(batch.pages)

    def _free_at(self, slots: Tensor, heads: Tensor | None, mapped: Sequence[Span], pages: int) -> None:
        given = sum(last - first for first, last in mapped)
        self.swa_attn_allocator.check_room(given)
        self._void_backups()
        uploaded = self._uploaded(heads, mapped if 0 < given < pages else (), pages)
        full, swa = self.full_attn_allocator.room(pages), self.swa_attn_allocator.room(given) if given else None
        self._ops.release(slots, *uploaded, self.full_to_swa_index_mapping, full, swa, self.page_size)

    def free_swa_at(self, slots: Tensor, heads: Tensor | None) -> None:
        """``free_swa`` of pages of rows in one launch, without a copy of their slots: arguments as for ``free_at``.
        Every page has its SWA page.
        """
        pages = (slots if heads is None else heads).numel()
        self.swa_attn_allocator.check_room(pages)
        self._in_order()
        self._void_backups()
        uploaded = self._uploaded(heads, (), pages)
        swa = self.swa_attn_allocator.room(pages)
        self._ops.release(slots, *uploaded, self.full_to_swa_index_mapping, None, swa, self.page_size)

    def _uploaded(self, heads: Tensor | None, mapped: Sequence[Span], pages: int) -> tuple[Tensor | None, ...]:
        """On the device, by one copy: ``heads``, and where the SWA page of each page goes if these spans alone have
        one. Each is None where there is nothing to say.
        """
        hosts = (heads, _into(mapped, pages) if mapped else None)
        there = [host for host in hosts if host is not None]
        rows = iter(upload(torch.stack(there), self._device) if there else ())
        return tuple(None if host is None else next(rows) for host in hosts)

    def _check_batch(self, batch: FreeBatch) -> None:
        swa = self._swa_pages(batch.pages)
        if len(swa[swa > 0]):
            checks.all_held("free_index (its SWA side)", swa[swa > 0], self.swa_attn_allocator.held)
        claimed = torch.zeros_like(swa)
        for first, last in batch.mapped or ():
            claimed[first:last] = 1
        if batch.mapped is not None and not torch.equal(claimed > 0, swa > 0):
            raise ValueError("swa_lens: the pages that it says have an SWA page are not those that have one")

    def _swa_pages(self, pages: Tensor) -> Tensor:
        return kernels.swa_pages_of(self.full_to_swa_index_mapping, pages, self.page_size)

    def backup_state(self) -> SWAState:
        """A state for ``restore_state``. Takes constant time and memory, usable until the next free in either pool."""
        full, swa = self.full_attn_allocator.backup_state(), self.swa_attn_allocator.backup_state()
        return SWAState(*self.backups.new(), full, swa)

    def restore_state(self, state: Backup) -> None:
        """Make every page free, in both pools, that was handed out since ``state``, and unmap those pages.

        RuntimeError if anything was freed since, ValueError for a state of another allocator, TypeError for anything
        else.
        """
        known = self.backups.require(state, SWAState)
        full, swa = self.full_attn_allocator, self.swa_attn_allocator
        full.backups.require(known.full, PoolState)
        swa.backups.require(known.swa, PoolState)
        self.backups.back_to(known)
        # The pages that stay handed out keep their mapping: it changes only with the page itself or a free.
        self.unmap(full.restore_state(known.full))
        swa.restore_state(known.swa)

    def unmap(self, full_pages: Tensor) -> None:
        """The full pages (``[n]`` int64) come back without a free: their slots map to nothing (SGLang PR 25805)."""
        self._in_order()
        kernels.page_rows(self.full_to_swa_index_mapping, self.page_size).index_fill_(0, full_pages, 0)


def _into(mapped: Sequence[Span], pages: int) -> Tensor:
    """``[pages]`` int64 on the host: the place of each page among those in the spans, -1 for a page in none."""
    into = torch.full((pages,), -1)
    at = 0
    for first, last in mapped:
        into[first:last] = torch.arange(at, at + last - first)
        at += last - first
    return into

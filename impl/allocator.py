"""Pools of KV-cache slots in pages: allocation, free groups, backup and restore.

A *slot* is the place of one token in the KV cache; ``slot // page_size`` is its page. Page 0 is padding and is never
handed out, so a pool of ``size`` tokens owns the pages ``1..size // page_size``. The pages that an allocation needs are
counted on the host, from the host copies of the lengths, so no allocation waits for the device.

On CUDA the host waits for the device in these calls alone: ``check_frees``; at page sizes above 1 ``free`` without
``row_lens``, ``free_full``, ``free_full_segment`` and ``free_full_segments``; at any page size ``free_group_end``, if
one of these calls came in the group; every call with ``debug``. A call on another CUDA stream than the call before is
ordered after it, see ``StreamOrder``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate, count
from typing import Any, TypeVar

import torch
from torch import Tensor

from impl import checks, kernels
from impl.checks import Rows
from impl.host import StreamOrder, row_heads, row_pages, upload
from impl.kernels import Freed

__all__ = [
    "BaseTokenToKVPoolAllocator",
    "PagedTokenToKVPoolAllocator",
    "PoolState",
    "SlotAllocator",
    "TokenToKVPoolAllocator",
]

Span = tuple[int, int]  # first and last + 1 position in a list of pages
MOST_SERIAL = (1 << 31) - 1  # frees are numbered from 1 to this and then from 1 again, so that entries fit into int64


@dataclass(frozen=True)
class FreeBatch:
    """The pages of one ``free``, which may wait for the end of a free group.

    ``exact``: no page is there twice. ``mapped``: the spans of ``pages`` that have an SWA page, None if that is
    unknown.
    """

    pages: Tensor
    exact: bool
    mapped: tuple[Span, ...] | None = None

    @staticmethod
    def join(batches: Sequence[FreeBatch]) -> FreeBatch:
        """All pages of the batches in one."""
        pages = torch.cat([batch.pages for batch in batches])
        if not all(batch.exact for batch in batches):
            return FreeBatch(torch.unique(pages), exact=False)
        if any(batch.mapped is None for batch in batches):
            return FreeBatch(pages, exact=True)
        starts = accumulate((batch.pages.numel() for batch in batches), initial=0)
        spans = ((at + a, at + b) for at, own in zip(starts, batches, strict=False) for a, b in own.mapped or ())
        return FreeBatch(pages, exact=True, mapped=tuple(spans))


def mapped_spans(row_lens: Sequence[int], swa_lens: Sequence[int], page_size: int) -> tuple[Span, ...]:
    """The spans of ``row_pages`` with an SWA page, if the last ``swa_lens[i]`` tokens of row ``i`` have one."""
    spans: list[Span] = []
    base = 0
    for tokens, tail in zip(row_lens, swa_lens, strict=True):
        pages = -(-tokens // page_size)
        if tail:
            first = base + (tokens - tail) // page_size
            spans[-1:] = _joined(spans[-1:], (first, base + pages))
        base += pages
    return tuple(spans)


def _joined(before: list[Span], span: Span) -> list[Span]:
    """The span behind the one before it, as one if the two touch: one slice is read faster than many."""
    if before and before[0][1] == span[0]:
        return [(before[0][0], span[1])]
    return [*before, span]


@dataclass(frozen=True)
class Backup:
    """What every backup records: the allocator that made it, and a number that no other backup has."""

    owner: object
    serial: int


B = TypeVar("B", bound=Backup)


class Backups:
    """The backups of ``owner`` that can still be restored: nothing was freed, and no earlier one restored, since."""

    _serials = count()

    def __init__(self, owner: object) -> None:
        self._owner = owner
        self._usable: list[int] = []

    def new(self) -> tuple[object, int]:
        """Owner and serial of a new backup."""
        self._usable.append(next(self._serials))
        return self._owner, self._usable[-1]

    def void(self) -> None:
        """Something is freed: no backup made before can be restored."""
        self._usable.clear()

    def require(self, state: object, kind: type[B]) -> B:
        """``state``, which can be restored; otherwise TypeError, ValueError or RuntimeError."""
        if not isinstance(state, kind):
            raise TypeError(f"state must be what backup_state returned, got {type(state).__name__}")
        if state.owner is not self._owner:
            raise ValueError("state must be a backup of this allocator, got one of another")
        if state.serial not in self._usable:
            raise RuntimeError("state: pages were freed since this backup, or an earlier one was restored")
        return state

    def back_to(self, state: Backup) -> None:
        """``state`` is restored: the backups made after it are void."""
        del self._usable[self._usable.index(state.serial) + 1 :]


class SlotAllocator(ABC):
    """What one pool and a pair of pools have in common: allocating for rows, freeing, free groups.

    ``windowed``: it has an SWA pool beside the full pool.
    """

    windowed: bool
    page_size: int
    device: str | torch.device
    debug: bool
    full_to_swa_index_mapping: Tensor | None = None
    _device: torch.device
    _ops: kernels.Ops
    _check_content: bool  # read device tensors to find bad input: always on CPU, on CUDA with debug=True
    _kvcache: Any
    _order: StreamOrder

    def get_kvcache(self) -> Any:
        """The KV cache that the constructor was given."""
        return self._kvcache

    # The content of the KV cache.

    def get_cpu_copy(self, indices: Tensor, mamba_indices: Tensor | None = None, **more: Any) -> Any:
        """The content of the slots ``indices`` on the host, as ``get_cpu_copy`` of the KV cache returns it.

        ``mamba_indices``: slots of recurrent states that are copied too. ``more``: further arguments for the KV cache
        (newer engines pass ``req_pool_index``); those that are None are left out. RuntimeError without a KV cache.
        """
        return self._cache("get_cpu_copy")(indices, mamba_indices=mamba_indices, **_given(more))

    def load_cpu_copy(
        self, kv_cache_cpu: Any, indices: Tensor, mamba_indices: Tensor | None = None, **more: Any
    ) -> Any:
        """Write ``kv_cache_cpu``, which ``get_cpu_copy`` returned, into the slots ``indices``. Arguments and errors as
        for ``get_cpu_copy``.
        """
        return self._cache("load_cpu_copy")(kv_cache_cpu, indices, mamba_indices=mamba_indices, **_given(more))

    def _cache(self, call: str) -> Any:
        if self._kvcache is None:
            raise RuntimeError(f"{call}: this allocator was made without a KV cache")
        return getattr(self._kvcache, call)

    def translate_kv_indices_for_transfer(self, kv_indices: Tensor) -> Tensor:
        """The slots as another machine addresses them: unchanged, since a slot is its own address."""
        return kv_indices

    @property
    def debug_mode(self) -> bool:
        """``debug`` by the name that engines use."""
        return self.debug

    def _in_order(self) -> None:
        """A call begins that reads or writes free lists or the mapping on the current stream."""
        self._order.follow(self._on_device)

    @abstractmethod
    def _on_device(self) -> Iterable[Tensor | None]:
        """Every tensor on the device that calls read and write."""

    def _forget(self) -> None:
        """No group is open, nothing waits, no backup can be restored."""
        self._depth = 0
        self.pending: list[FreeBatch] = []
        self.backups = Backups(self)

    def warm_up(self) -> None:
        """Compile every Triton kernel that a call can launch, so that no later call waits for a compiler.

        Nothing is handed out, and nothing changes; with the backend ``torch`` there is nothing to do. It is enough for
        lengths and slots of int32 and int64, where ``prefix_lens`` and ``seq_lens`` have one dtype.
        """
        pool = self.full_pool
        self._ops.warm_up(
            self._device, self.page_size, windowed=self.windowed, release=pool.fused, looks=pool.looks_at_frees
        )

    # Free groups.

    @property
    def is_not_in_free_group(self) -> bool:
        """No free group is open: ``free`` acts at once. Setting it to True ends all open groups, and what waits is
        freed; setting it to False opens a group if none is open.
        """
        return self._depth == 0

    @is_not_in_free_group.setter
    def is_not_in_free_group(self, value: bool) -> None:
        if value:
            self._end_groups()
        else:
            self._depth = max(self._depth, 1)

    @property
    def free_group(self) -> list[Tensor]:
        """The first slots of the pages that wait for the end of the group: one int64 tensor for each ``free``.

        Setting it to None or to an empty list ends all open groups, and what waits is freed. ValueError for a list with
        slots: what waits is known by ``free`` alone.
        """
        return [batch.pages * self.page_size for batch in self.pending]

    @free_group.setter
    def free_group(self, value: Sequence[Tensor] | None) -> None:
        if value:
            raise ValueError("free_group can be set to None or to an empty list only: give slots to free")
        self._end_groups()

    def _end_groups(self) -> None:
        self._depth = min(self._depth, 1)
        if self._depth:
            self.free_group_end()

    def free_group_begin(self) -> None:
        """Collect the pages of every ``free`` in ``pending`` until the matching ``free_group_end``.

        Groups nest: the pages that wait in an outer group keep waiting.
        """
        self._depth += 1

    def free_group_end(self) -> None:
        """End a group; the end of the outermost one frees all pending pages. RuntimeError if no group is open."""
        if self._depth == 0:
            raise RuntimeError("free_group_end without free_group_begin")
        if self._depth == 1 and self.pending:
            self._in_order()
            self._release(FreeBatch.join(self.pending))
            self.pending = []
        self._depth -= 1

    def free(
        self, free_index: Tensor, *, row_lens: Sequence[int] | None = None, swa_lens: Sequence[int] | None = None
    ) -> None:
        """Free every page that a slot of ``free_index`` lies in.

        ``free_index``: ``[n]`` integers on the device, slots. Without ``row_lens`` the pages are found by sorting; on
        CUDA the host waits for the result. ``row_lens``: the slots are those of rows, one after the other, with so many
        tokens each (they sum to ``n``); each row begins on a page boundary and its slots are in order. Then the host
        does not wait. ``swa_lens[i]``, for an allocator with an SWA pool: so many trailing tokens of row ``i`` lie in
        pages that have an SWA page (one token of the first such page is enough). It spares reading the mapping, and a
        single pool ignores it.

        ValueError, with nothing changed, for slots that are out of range, on page 0, there twice or free already, and
        for a page whose first slot is missing. Without ``row_lens`` this is checked on CPU; with ``debug`` always. On
        CUDA without ``debug`` the device finds pages that are free already, see ``check_frees``, which a call that
        waits for the pages calls first.
        """
        checks.int_tensor("free_index", free_index, self._device)
        checks.row_lengths(row_lens, swa_lens, free_index.numel())
        if free_index.numel() == 0:
            return
        if not self.frees_in_one_launch:
            self._free(self._batch(free_index, row_lens, swa_lens))
        elif not self.windowed and self.page_size == 1:  # slots are pages, so it does not matter what rows they are of
            self.free_at(free_index, None, ())
        elif row_lens is not None and (swa_lens is not None or not self.windowed):
            heads = None if self.page_size == 1 else row_heads(row_lens, self.page_size)
            mapped = mapped_spans(row_lens, swa_lens or row_lens, self.page_size) if self.windowed else ()
            self.free_at(free_index, heads, mapped)
        else:
            self._free(self._batch(free_index, row_lens, swa_lens))

    def check_frees(self) -> None:
        """RuntimeError if a page was freed that was free already, or that no pool has (on CUDA the host waits).

        Where content is checked, such a free is a ValueError before anything changes. On CUDA without ``debug`` nothing
        is read in a free; the device counts such pages, and the count is read here. Pools in which one was found hand
        pages out twice, until ``clear``. With ``need_sort`` they are found when ``release_pages`` are sorted in. A pool
        on CUDA with the backend ``torch`` finds none.
        """
        self._in_order()
        founds = [(name, pool.found) for name, pool in self._each_pool() if pool.found is not None]
        if not founds or not int(reduce(torch.add, (found for _, found in founds))):  # one wait for both
            return
        for name, found in founds:
            if number := int(found):
                raise RuntimeError(
                    f"{name}: freed pages that were free already, or that the pool does not have: {number}"
                )

    @property
    def frees_in_one_launch(self) -> bool:
        """``free_at`` can be called: the backend is Triton, no group is open, and no content is checked."""
        return self.full_pool.fused and self._depth == 0

    def free_at(self, slots: Tensor, heads: Tensor | None, mapped: Sequence[Span]) -> None:
        """Free pages of rows in one launch, without a copy of their slots.

        ``slots``: integers on the device, among them the first slot of each page. ``heads``: ``[pages]`` int64 on the
        host, where in ``slots`` those are; None if ``slots`` are those of the pages. ``mapped``: the spans of these
        pages that have an SWA page; a single pool ignores it. ValueError, with nothing changed, for more pages than
        are handed out.
        """
        pages = (slots if heads is None else heads).numel()
        if pages + self.full_pool.free_count() > self.full_pool.num_pages:
            raise ValueError("free_index: more pages freed than were handed out (double free)")
        self._in_order()
        self._free_at(slots, heads, mapped, pages)

    def free_segment(self, free_index: Tensor, *, start_pos: int) -> None:
        """Free the pages of one segment of a row, and do not wait for the device.

        ``free_index``: ``[n]`` integers on the device, the slots of the row's tokens ``start_pos..start_pos + n``.
        ``start_pos`` is a multiple of the page size; the segment may end inside a page, which is freed whole. With an
        SWA pool the first slot of each page must be mapped; for pages without an SWA page call ``free_full``.
        ValueError as for ``free`` with ``row_lens``, and for a start inside a page.
        """
        self.free_segments([(free_index, start_pos)])

    def free_segments(self, segments: Sequence[tuple[Tensor, int]]) -> None:
        """Free several segments of rows, each as ``(free_index, start_pos)``: see ``free_segment``. No two segments
        have a page in common.
        """
        for slots, start in segments:
            checks.int_tensor("free_index", slots, self._device)
            checks.page_multiple("start_pos", start, self.page_size)
        lens = [slots.numel() for slots, _ in segments if slots.numel()]
        if lens:
            every = torch.cat([slots for slots, _ in segments if slots.numel()])
            self.free(every, row_lens=lens, swa_lens=lens)

    @abstractmethod
    def free_full(self, free_index: Tensor) -> None:
        """Free the full pages of slots whose SWA pages were freed before."""

    def free_full_segment(self, free_index: Tensor, *, start_pos: int) -> None:
        """``free_full`` of one segment of a row: ``free_index`` and ``start_pos`` as for ``free_segment``, but no page
        has an SWA page. ValueError for a start inside a page, else errors as for ``free_full``.
        """
        checks.int_tensor("free_index", free_index, self._device)
        checks.page_multiple("start_pos", start_pos, self.page_size)
        self.free_full(free_index)

    def free_full_segments(self, segments: Sequence[tuple[Tensor, int]]) -> None:
        """``free_full_segment`` of several segments, each as ``(free_index, start_pos)``; no two have a page in common.
        Every segment is checked before the first one is freed.
        """
        for slots, start in segments:
            checks.int_tensor("free_index", slots, self._device)
            checks.page_multiple("start_pos", start, self.page_size)
        if filled := [slots for slots, _ in segments if slots.numel()]:
            self.free_full(torch.cat(filled))

    def _free(self, batch: FreeBatch) -> None:
        if self.full_pool.debug:
            self._check_batch(batch)
        self._void_backups()
        if self._depth:
            self.full_pool.mark(batch.pages, held=False)
            self.pending.append(batch)
        else:
            self._release(batch)

    def _batch(self, slots: Tensor, row_lens: Sequence[int] | None, swa_lens: Sequence[int] | None) -> FreeBatch:
        self._in_order()
        pool = self.full_pool
        if row_lens is None:
            if self.page_size > 1 or self.windowed:  # the host waits for the pages below
                self.check_frees()
            batch = FreeBatch(pool.pages_to_free(slots), exact=self._check_content)
        else:
            spans = None if swa_lens is None else mapped_spans(row_lens, swa_lens, self.page_size)
            pages = row_pages(slots, row_lens, self.page_size)
            batch = FreeBatch(pages, exact=True, mapped=spans)
            pool.check_row_pages(slots, pages)
        waiting = sum(other.pages.numel() for other in self.pending)
        if batch.pages.numel() + waiting + pool.free_count() > pool.num_pages:
            raise ValueError("free_index: more pages freed than were handed out (double free)")
        return batch

    # Allocating for rows.

    def alloc_extend(
        self, prefix_lens: Tensor, prefix_lens_cpu: Tensor, seq_lens: Tensor, seq_lens_cpu: Tensor, last_loc: Tensor,
        extend_num_tokens: int, num_new_pages: int | None = None,
    ) -> Tensor | None:  # fmt: skip
        """Slots for the tokens ``prefix..seq`` of each row; with an SWA pool all of them are mapped.

        A row's tokens first fill the page of its ``last_loc``, then new pages. ``prefix_lens``, ``seq_lens``,
        ``last_loc`` (the slot of token ``prefix - 1``, or -1 for a row without tokens): ``[rows]`` integers on the
        device. ``prefix_lens_cpu``, ``seq_lens_cpu``: the lengths again, on the host. ``extend_num_tokens``:
        ``sum(seq - prefix)``. ``num_new_pages``: if given, it must be the number of pages that this takes.

        Returns ``[extend_num_tokens]`` int64 slots, row after row, or None, with nothing changed, if a pool has too few
        pages. With an SWA pool, a partly filled page must still have its SWA page. ValueError or TypeError, with
        nothing changed, for arguments that contradict each other.
        """
        rows = Rows(seq_lens, seq_lens_cpu, last_loc, prefix_lens, prefix_lens_cpu)
        plan = checks.extend_plan(rows, extend_num_tokens, num_new_pages, self.page_size)
        return self._grow(rows, plan, plan.pages)

    def alloc_decode(self, seq_lens: Tensor, seq_lens_cpu: Tensor, last_loc: Tensor) -> Tensor | None:
        """One slot for each row: for token ``seq - 1``. With an SWA pool it is mapped.

        ``seq_lens`` (``[rows]`` integers on the device) and ``seq_lens_cpu`` (on the host) count the new token;
        ``last_loc`` (``[rows]``, device) is the slot of the token before it, or -1. Returns ``[rows]`` int64 slots, or
        None, with nothing changed, if a pool has too few pages. Errors as for ``alloc_extend``.
        """
        rows = Rows(seq_lens, seq_lens_cpu, last_loc)
        plan = checks.decode_plan(rows, self.page_size)
        return self._grow(rows, plan, plan.pages)

    def _grow(self, rows: Rows, plan: checks.Plan, swa_pages: int, swa_start: int = 0) -> Tensor | None:
        self._in_order()
        self._check_rows(rows)
        pages = self._peek(plan.pages, swa_pages)
        if pages is None:
            return None
        out = torch.empty(plan.tokens, dtype=torch.int64, device=self._device)
        args = (rows.seq, rows.last_loc, *pages, self.full_to_swa_index_mapping, out, self.page_size)
        if rows.prefix is None:
            self._ops.decode(*args)
        else:
            self._ops.extend(rows.prefix, *args, plan.longest, swa_start)
        self._take(*pages)
        return out

    # What one pool and a pair of pools do in their own ways.

    def _void_backups(self) -> None:
        """Something is freed: no backup made before can be restored."""
        self.backups.void()

    def _check_rows(self, rows: Rows) -> None:
        rows.check(self._device, content=self._check_content)
        if self.full_pool.debug:
            checks.last_slots(rows, self.full_pool.held, self.page_size)

    def _check_batch(self, batch: FreeBatch) -> None:  # noqa: B027 (a single pool has nothing to add)
        """Further checks of a free, with ``debug``."""

    @abstractmethod
    def _each_pool(self) -> Sequence[tuple[str, BaseTokenToKVPoolAllocator]]:
        """The pools, each with the name of what its pages are."""

    @property
    @abstractmethod
    def full_pool(self) -> BaseTokenToKVPoolAllocator:
        """The pool that ``free_index`` and the slots returned belong to."""

    @abstractmethod
    def full_available_size(self) -> int:
        """How many tokens of the full pool can still be handed out, in whole pages."""

    @abstractmethod
    def swa_available_size(self) -> int:
        """How many tokens of the SWA pool can still be handed out, in whole pages; 0 where there is none."""

    @abstractmethod
    def backup_state(self) -> Backup:
        """A state for ``restore_state``, usable until the next free."""

    @abstractmethod
    def restore_state(self, state: Backup) -> Tensor | None:
        """Make every page free that was handed out since ``state`` was made."""

    @abstractmethod
    def _peek(self, full_pages: int, swa_pages: int) -> tuple[Tensor, Tensor | None] | None:
        """The next free pages of each pool, which stay free; None if a pool has too few."""

    @abstractmethod
    def _take(self, full_pages: Tensor, swa_pages: Tensor | None) -> None:
        """Hand out the pages that ``_peek`` returned."""

    @abstractmethod
    def _release(self, batch: FreeBatch) -> None:
        """Make the pages of the batch free, in each pool."""

    @abstractmethod
    def _free_at(self, slots: Tensor, heads: Tensor | None, mapped: Sequence[Span], pages: int) -> None:
        """``free_at`` of so many pages."""


def _given(more: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in more.items() if value is not None}


@dataclass(frozen=True)
class PoolState(Backup):
    """What ``backup_state`` returns. Opaque to the caller; usable until the next free."""

    stack: Tensor
    top: int
    released: tuple[Tensor, ...]


class BaseTokenToKVPoolAllocator(SlotAllocator):
    """One pool of pages. The free pages are ``_stack[_top:]``, so taking and giving back touch only what they move.

    ``size``: tokens. ``kvcache``: kept for ``get_kvcache``. ``need_sort``: freed pages are kept apart and sorted in
    when the free ones run short (as in SGLang). ``debug``: check content on CUDA too, and check more. ``backend``:
    ``torch`` or ``triton``; by default ``triton`` on CUDA.
    """

    windowed = False
    found: Tensor | None  # [1] int64: how many freed pages were free already, or no pages of the pool; see check_frees
    _released: list[Tensor]

    def __init__(
        self, size: int, page_size: int, dtype: torch.dtype, device: str | torch.device, kvcache: Any, need_sort: bool,
        *, debug: bool = False, backend: str | None = None,
    ) -> None:  # fmt: skip
        self.num_pages = checks.pool_sizes("size", size, page_size)
        self.size, self.page_size, self.dtype, self.device = size, page_size, dtype, device
        self.need_sort, self.debug, self._kvcache = need_sort, debug, kvcache
        self._device = torch.device(device)
        self._check_content = debug or self._device.type == "cpu"
        self._ops = kernels.backend(self._device, backend)
        self.fused = kernels.backend_name(self._device, backend) == "triton" and not self._check_content
        self._in_page = torch.arange(page_size, device=self._device)
        self._order = StreamOrder(self._device)
        self.clear()

    @property
    def size_full(self) -> int:
        """The size of the pool in tokens."""
        return self.size

    @property
    def looks_at_frees(self) -> bool:
        """The device looks in each free for pages that are free already."""
        return self._places is not None

    @property
    def free_pages(self) -> Tensor:
        """``[n]`` int64 page numbers; the first is handed out next. A view: clone it to keep it.

        A subclass may set it: pages that are no longer in it count as handed out. No backup can be restored then.
        ValueError, with nothing changed, for more pages than the pool has, and (on CPU, or with ``debug``) for pages
        out of range, there twice, or in ``release_pages`` too.
        """
        return self._stack[self._top :]

    @free_pages.setter
    def free_pages(self, pages: Tensor) -> None:
        self._replace(pages, self._released)

    @property
    def release_pages(self) -> Tensor:
        """``[n]`` int64 pages that are free but not yet sorted into ``free_pages`` (only with ``need_sort``).

        A subclass may set it, as ``free_pages``.
        """
        return torch.cat(self._released) if self._released else self._stack[:0]

    @release_pages.setter
    def release_pages(self, pages: Tensor) -> None:
        self._replace(self.free_pages, [pages])

    def _replace(self, free: Tensor, released: Sequence[Tensor]) -> None:
        """A subclass has changed the free lists by itself."""
        for pages in (free, *released):
            checks.int_tensor("pages", pages, self._device)
        self._in_order()
        waiting = [batch.pages for batch in self.pending]
        lists = [pages.to(torch.int64) for pages in (free, *released, *waiting)]
        count = sum(pages.numel() for pages in lists)
        if count > self.num_pages:
            raise ValueError(f"pages: more free pages ({count}) than the pool has ({self.num_pages})")
        if self._check_content and count:
            checks.sorted_slots("pages", torch.cat(lists), 1, self.num_pages)
        self._void_backups()
        self._released = [pages for pages in lists[1 : 1 + len(released)] if pages.numel()]
        self._released_count = sum(pages.numel() for pages in self._released)
        self._top = self.num_pages - lists[0].numel()
        # A new stack: what was handed out may be a view of the old one. What lies below the top is never read.
        self._stack = torch.cat([lists[0].new_zeros(self._top), lists[0]])
        if self._places is not None:
            self._places[lists[0]] = torch.arange(self._top, self.num_pages, device=self._device)
        if self._check_content:
            self.held.fill_(True)[0] = False
            self.mark(torch.cat(lists), held=False)

    def get_all_free_pages(self) -> Tensor:
        """``[n]`` int64: the pages in ``free_pages`` and ``release_pages``. A copy."""
        return self.all_free()

    def all_free(self) -> Tensor:
        """``[n]`` int64: the pages in ``free_pages`` and ``release_pages``."""
        return torch.cat([self.free_pages, *self._released])

    def free_count(self) -> int:
        """How many pages are in ``free_pages`` and ``release_pages``."""
        return self.num_pages - self._top + self._released_count

    def available_size(self) -> int:
        """How many tokens can still be handed out, in whole pages."""
        return self.free_count() * self.page_size

    def full_available_size(self) -> int:
        """How many tokens can still be handed out, in whole pages."""
        return self.available_size()

    def swa_available_size(self) -> int:
        """0: there is no SWA pool."""
        return 0

    def debug_print(self) -> str:
        """One line for the engine's log."""
        return f"#available-size: {self.available_size()}, "

    def free_full(self, free_index: Tensor) -> None:
        """``free``: a single pool has no SWA pages."""
        self.free(free_index)

    def resize(self, config: Any) -> None:
        """Make the pool hold ``config.max_total_num_tokens`` tokens, all of them free, as after ``clear``.

        ValueError for a size that is no pool size, as in the constructor.
        """
        self.set_size(int(config.max_total_num_tokens))
        self.clear()

    def set_size(self, size: int) -> None:
        """``size`` tokens from the next ``clear`` on, which must be the next call."""
        self.num_pages = checks.pool_sizes("size", size, self.page_size)
        self.size = size

    def clear(self) -> None:
        """Make every page free and forget every free group and backup."""
        self._in_order()
        self._stack = torch.arange(1, self.num_pages + 1, dtype=torch.int64, device=self._device)
        self._top = 0
        self._released = []
        self._released_count = 0
        self._merged = 0, 0  # where the top was before the last merge, and where it was after
        held = self.num_pages + 1 if self._check_content else 0
        self.held = torch.zeros(held, dtype=torch.bool, device=self._device)
        self._serial = 0
        self.found = torch.zeros(1, dtype=torch.int64, device=self._device) if self.fused else None
        self._places: Tensor | None = None
        if self.fused and not self.need_sort:  # page p is free at position p - 1
            self._places = torch.arange(-1, self.num_pages, dtype=torch.int64, device=self._device).clamp_(min=0)
            self.found = self._places[:1]
        self._forget()

    def merge_and_sort_free(self) -> None:
        """Sort ``release_pages`` into ``free_pages``."""
        if not self._released:
            return
        self._in_order()
        free = self.all_free().sort().values
        if self.found is not None:
            self.found.add_((free[1:] == free[:-1]).sum())
        # A new stack: a backup may still hold the old one. What lies below the top is never read.
        before, self._top = self._top, self.num_pages - free.numel()
        self._stack = torch.empty_like(self._stack)
        self._stack[self._top :] = free
        self._released, self._released_count = [], 0
        self._merged = before, self._top

    # Pages in and out. No argument is checked but the number of pages: the callers have done so.

    def peek(self, pages: int) -> Tensor | None:
        """``[pages]`` int64: the next free pages, which stay free until ``take``. None if there are too few."""
        if pages > self.free_count():
            return None
        if pages > self.num_pages - self._top:
            self.merge_and_sort_free()
        return self._stack[self._top : self._top + pages]

    def take(self, pages: Tensor) -> None:
        """Hand out the pages that ``peek`` returned."""
        self._top += pages.numel()
        self.mark(pages, held=True)

    def put(self, pages: Tensor) -> None:
        """Make different pages free that are handed out. RuntimeError if more would be free than the pool has."""
        self.check_room(pages.numel())
        self.mark(pages, held=False)
        self._ops.put(pages, self.room(pages.numel()))

    def check_room(self, pages: int) -> None:
        """RuntimeError if so many pages more would be more free ones than the pool has."""
        if pages + self.free_count() > self.num_pages:
            raise RuntimeError("pages: more given back than were handed out; was the mapping overwritten from outside?")

    def room(self, pages: int) -> Freed:
        """Where the caller writes the numbers of so many pages, which are free from now on."""
        self._void_backups()
        if self.need_sort:
            self._released.append(self._stack.new_empty(pages))
            self._released_count += pages
            return Freed(self._released[-1], 0, pages)
        self._top -= pages
        self._serial = self._serial % MOST_SERIAL + 1
        return Freed(self._stack, self._top, pages, self._places, self._serial)

    def mark(self, pages: Tensor, *, held: bool) -> None:
        """Record in the table ``held``, if there is one, that pages are handed out or not."""
        if self._check_content:
            self.held.index_fill_(0, pages, held)

    def slots(self, pages: Tensor) -> Tensor:
        """``[len(pages) * page_size]`` int64: the slots of the pages, in order. A copy: no view of the free list."""
        if self.page_size == 1:
            return pages.clone()
        return (pages[:, None] * self.page_size + self._in_page).view(-1)

    def pages_to_free(self, slots: Tensor) -> Tensor:
        """The different pages of ``slots``; ValueError for bad slots, where content is checked."""
        if self._check_content:
            return checks.held_pages("free_index", slots, self.held, self.page_size)
        pages = (slots // self.page_size).to(torch.int64)
        return pages if self.page_size == 1 else torch.unique(pages)

    def check_row_pages(self, slots: Tensor, pages: Tensor) -> None:
        """``pages``, every ``page_size``-th slot of rows, must be handed out, and with ``debug`` the slots' pages."""
        if self._check_content:
            checks.all_held("free_index", pages, self.held)
        if self.debug and not torch.equal(pages.sort().values, self.pages_to_free(slots)):
            raise ValueError("free_index: every row must begin on a page boundary and hold its slots in order")

    def alloc(self, need_size: int) -> Tensor | None:
        """``[need_size]`` int64 slots of whole pages, or None if there are too few.

        ValueError unless ``need_size`` is a non-negative multiple of the page size.
        """
        self._in_order()
        pages = self.peek(checks.page_multiple("need_size", need_size, self.page_size))
        if pages is None:
            return None
        self.take(pages)
        return self.slots(pages)

    def backup_state(self) -> PoolState:
        """A state for ``restore_state``. Takes constant time and memory, and is usable until the next free."""
        return PoolState(*self.backups.new(), self._stack, self._top, tuple(self._released))

    def restore_state(self, state: Backup) -> Tensor:
        """Make every page free that was handed out since ``state`` was made.

        Returns ``[n]`` int64 pages that include all of those, and none that is handed out. RuntimeError if anything was
        freed since, ValueError for a state of another allocator, TypeError for anything else.
        """
        known = self.backups.require(state, PoolState)
        self._in_order()
        self.backups.back_to(known)
        # Nothing was freed since, so only allocations moved the top, and at most one merge built another stack.
        if known.stack is self._stack:
            back = self._stack[known.top : self._top]
        else:
            before, after = self._merged
            back = torch.cat([known.stack[known.top : before], self._stack[after : self._top]])
        self._stack, self._top = known.stack, known.top
        self._released, self._released_count = list(known.released), sum(map(len, known.released))
        self.mark(back, held=False)
        return back

    def _each_pool(self) -> Sequence[tuple[str, BaseTokenToKVPoolAllocator]]:
        return [("pages", self)]

    def _on_device(self) -> Iterable[Tensor | None]:
        waiting = (batch.pages for batch in self.pending)
        return [self._stack, *self._released, *waiting, self.held, self._places, self.found, self._in_page]

    @property
    def full_pool(self) -> BaseTokenToKVPoolAllocator:
        """The pool itself."""
        return self

    def _peek(self, full_pages: int, _: int) -> tuple[Tensor, None] | None:
        pages = self.peek(full_pages)
        return None if pages is None else (pages, None)

    def _take(self, full_pages: Tensor, _: Tensor | None) -> None:
        self.take(full_pages)

    def _release(self, batch: FreeBatch) -> None:
        self.put(batch.pages)

    def _free_at(self, slots: Tensor, heads: Tensor | None, mapped: Sequence[Span], pages: int) -> None:
        del mapped
        on_device = None if heads is None else upload(heads, self._device)
        if self.page_size == 1 and heads is None:
            self._ops.put(slots, self.room(pages))
        else:
            self._ops.release(slots, on_device, None, None, self.room(pages), None, self.page_size)


class TokenToKVPoolAllocator(BaseTokenToKVPoolAllocator):
    """A pool whose pages are single tokens. Stands in for SGLang's class of this name."""

    def __init__(
        self, size: int, dtype: torch.dtype, device: str | torch.device, kvcache: Any, need_sort: bool, *,
        debug: bool = False, backend: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(size, 1, dtype, device, kvcache, need_sort, debug=debug, backend=backend)


class PagedTokenToKVPoolAllocator(BaseTokenToKVPoolAllocator):
    """A pool of pages of ``page_size`` tokens; the tokens of a row are contiguous within each page.

    Stands in for SGLang's class of this name.
    """

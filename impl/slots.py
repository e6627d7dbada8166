"""What one pool and two pools together have in common: allocating for rows, freeing, free groups."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from impl import checks, kernels
from impl.checks import Backups, FreeBatch, Rows

if TYPE_CHECKING:
    from impl.allocator import BaseTokenToKVPoolAllocator


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
        many trailing tokens of row ``i`` lie in pages that have an SWA page (of the first of those pages one token is
        enough); it spares the wait for the mapping, and is ignored by a single pool.

        ValueError (state as before): slots out of range, on page 0, twice, free already, or a page without its first
        slot; checked on CPU for the path without ``row_lens``, and everywhere with ``debug``.
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
        return self._grow(rows, plan, plan.pages)

    def alloc_decode(self, seq_lens: Tensor, seq_lens_cpu: Tensor, last_loc: Tensor) -> Tensor | None:
        """One slot a row for token ``seq - 1`` (``seq_lens`` count it; ``last_loc`` is the slot before, or -1).

        All ``[rows]``. Returns ``[rows]`` int64 slots; None and errors as ``alloc_extend``.
        """
        rows = Rows(seq_lens, seq_lens_cpu, last_loc)
        plan = checks.decode_plan(rows, self.page_size)
        return self._grow(rows, plan, plan.pages)

    def _grow(self, rows: Rows, plan: checks.Plan, swa_pages: int, swa_start: int = 0) -> Tensor | None:
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

    def _void_backups(self) -> None:
        """Something is freed: what was before can no longer be restored."""
        self.backups.void()

    def _check_rows(self, rows: Rows) -> None:
        rows.check(self._device, look=self._looks)
        if self._full_pool().debug:
            checks.last_slots(rows, self._full_pool().held, self.page_size)

    def _check_batch(self, batch: FreeBatch) -> None:  # noqa: B027 (one pool has nothing to add)
        """More ways (``debug``) to find a batch wrong."""

    @abstractmethod
    def _full_pool(self) -> BaseTokenToKVPoolAllocator: ...

    @abstractmethod
    def _peek(self, full_pages: int, swa_pages: int) -> tuple[Tensor, Tensor | None] | None: ...

    @abstractmethod
    def _take(self, full_pages: Tensor, swa_pages: Tensor | None) -> None: ...

    @abstractmethod
    def _release(self, batch: FreeBatch) -> None: ...

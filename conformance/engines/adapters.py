"""Adapters for allocator objects that have the method names and signatures of SGLang's allocators.

``PoolAdapter`` makes an ``AllocatorEngine`` of one pool, ``PairAdapter`` a ``SwaMappingEngine`` of a full and an SWA
pool. They turn plain integers into tensors and back. Any engine with such classes can use them, as our implementation
does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from conformance.stems.allocator.protocol import AllocatorSnapshot
from conformance.stems.swa_mapping.protocol import SwaMappingSnapshot

MOST_VIEWS = 64  # so many tensors that were passed to a call that frees are kept, the newest


def release_list(pool: Any) -> list[int]:
    """The release list of an allocator that has it as the tensor ``release_pages``."""
    pages: list[int] = pool.release_pages.tolist()
    return pages


class _Calls:
    """The calls that both adapters have. ``engine``: the allocator object. ``released``: reads the release list of one
    pool.
    """

    def __init__(
        self,
        engine: Any,
        page_size: int,
        device: str = "cpu",
        lacks: Collection[str] = (),
        fragile: bool = False,
        released: Callable[[Any], list[int]] = release_list,
    ) -> None:
        self.engine, self.page_size, self.device = engine, page_size, device
        self.lacks, self.fragile = frozenset(lacks), fragile
        self._released = released
        self._backup: Any = None
        self._views: deque[Tensor] = deque(maxlen=MOST_VIEWS)

    def _tensor(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self.device)

    @staticmethod
    def _host(numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64)

    @staticmethod
    def _numbers(answer: Tensor | None) -> list[int] | None:
        return None if answer is None else answer.tolist()

    def alloc(self, tokens: int) -> list[int] | None:
        """``alloc``: slots of whole pages for ``tokens`` tokens, ``None`` if out of memory."""
        return self._numbers(self.engine.alloc(tokens))

    def extend(self, before: Sequence[int], after: Sequence[int], last: Sequence[int]) -> list[int] | None:
        """``alloc_extend``: slots for rows that grow from ``before`` to ``after`` tokens, row after row, ``None`` if
        out of memory.
        """
        lengths = (self._tensor(before), self._host(before), self._tensor(after), self._host(after))
        return self._numbers(self.engine.alloc_extend(*lengths, self._tensor(last), sum(after) - sum(before)))

    def decode(self, after: Sequence[int], last: Sequence[int]) -> list[int] | None:
        """``alloc_decode``: one slot for each row of ``after`` tokens, ``None`` if out of memory."""
        return self._numbers(self.engine.alloc_decode(self._tensor(after), self._host(after), self._tensor(last)))

    def _view(self, slots: Sequence[int]) -> Tensor:
        """The slots as a view of a row of the caller's table, which ``overwrite`` changes."""
        row = self._tensor([0, *slots, 0])
        self._views.append(row)
        return row[1:-1]

    def free(self, slots: Sequence[int]) -> None:
        """``free``: frees the pages of these slots."""
        self.engine.free(self._view(slots))

    def free_segment(self, slots: Sequence[int], start: int) -> None:
        """``free_segment``: frees the pages of a row's slots from the token ``start`` on."""
        self.engine.free_segment(self._view(slots), start_pos=start)

    def overwrite(self, slots: Sequence[int]) -> None:
        """Writes ``slots`` into the rows that were passed to calls that free."""
        for row in self._views:
            row.copy_(self._tensor([slots[i % len(slots)] for i in range(len(row))]))

    def begin_group(self) -> None:
        """``free_group_begin``: opens a free group."""
        self.engine.free_group_begin()

    def end_group(self) -> None:
        """``free_group_end``: ends the free group."""
        self.engine.free_group_end()

    def backup(self) -> None:
        """``backup_state``: takes a backup and keeps it here."""
        self._backup = self.engine.backup_state()

    def restore(self) -> None:
        """``restore_state`` of the last backup."""
        self.engine.restore_state(self._backup)

    def clear(self) -> None:
        """``clear``: frees every page."""
        self.engine.clear()
        self._views.clear()

    def _pool(self, pool: Any, available: int) -> AllocatorSnapshot:
        """The lists of one pool. ``available``: the size that the allocator reports, in tokens."""
        return AllocatorSnapshot(pool.free_pages.tolist(), self._released(pool), int(available))

    def bad(self, kind: str, row: int) -> None:
        """Sends bad input of one kind, see ``AllocatorEngine.bad``. ``row`` varies the number that is sent."""
        pool = getattr(self.engine, "full_attn_allocator", self.engine)
        free = pool.free_pages.tolist()
        calls: dict[str, Callable[[], Any]] = {
            "free_again": lambda: self.free([(free[row % len(free)] if free else 0) * self.page_size]),
            "free_padding": lambda: self.free([0]),
            "alloc_negative": lambda: self.alloc(-(row + 1) * self.page_size),
            "free_outside": lambda: self.free([pool.size + (2 + row) * self.page_size]),
            "end_group": self.end_group,
        }
        calls[kind]()


class PoolAdapter(_Calls):
    """One paged allocator: an ``AllocatorEngine``."""

    def snapshot(self) -> AllocatorSnapshot:
        """The free list, the release list and the available size."""
        pool = getattr(self.engine, "full_attn_allocator", self.engine)  # an allocator may have its lists in a part
        return self._pool(pool, self.engine.available_size())


class PairAdapter(_Calls):
    """One allocator of two pools and the mapping between them: a ``SwaMappingEngine``."""

    def tail(self, tokens: int, tail: int) -> list[int] | None:
        """``alloc_extend_swa_tail``: slots for a new row of ``tokens`` tokens, of which the last ``tail`` get SWA
        slots.
        """
        lengths = (self._tensor([0]), self._host([0]), self._tensor([tokens]), self._host([tokens]))
        return self._numbers(self.engine.alloc_extend_swa_tail(*lengths, self._tensor([-1]), tokens, tail))

    def free_swa(self, slots: Sequence[int]) -> None:
        """``free_swa``: frees the SWA pages that these full slots map to."""
        self.engine.free_swa(self._view(slots))

    def free_swa_segment(self, slots: Sequence[int], start: int) -> None:
        """``free_swa_segment``: frees the SWA pages of a row's slots from the token ``start`` on."""
        self.engine.free_swa_segment(self._view(slots), start_pos=start)

    def free_full(self, slots: Sequence[int]) -> None:
        """``free_full``, as a tree does with a tombstone; ``free`` of the full pool alone where there is none."""
        free = getattr(self.engine, "free_full", None) or self.engine.full_attn_allocator.free
        free(self._view(slots))

    def snapshot(self) -> SwaMappingSnapshot:
        """Both pools, and the mapping without the last entry, which belongs to no slot."""
        engine = self.engine
        full = self._pool(engine.full_attn_allocator, engine.full_available_size())
        swa = self._pool(engine.swa_attn_allocator, engine.swa_available_size())
        return SwaMappingSnapshot(full, swa, engine.full_to_swa_index_mapping[:-1].tolist())

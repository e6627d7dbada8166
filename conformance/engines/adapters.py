"""Adapters for allocator objects that have the method names and signatures of SGLang's allocators.

``PoolAdapter`` makes a ``PoolEngine`` of one pool, ``PairAdapter`` a ``PairEngine`` of a full and an SWA pool. They
turn plain integers into tensors and back. Any engine with such classes can use them, as our implementation does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from conformance.engines.protocol import PairSnapshot, PoolSnapshot


class _Calls:
    """The calls that both adapters have. ``engine``: the allocator object."""

    def __init__(
        self, engine: Any, page_size: int, device: str = "cpu", lacks: Collection[str] = (), fragile: bool = False
    ) -> None:
        self.engine, self.page_size, self.device = engine, page_size, device
        self.lacks, self.fragile = frozenset(lacks), fragile
        self._backup: Any = None

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

    def free(self, slots: Sequence[int]) -> None:
        """``free``: frees the pages of these slots."""
        self.engine.free(self._tensor(slots))

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

    def bad(self, kind: str, row: int) -> None:
        """Sends bad input of one kind, see ``PoolEngine.bad``. ``row`` varies the number that is sent."""
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


def snapshot_of(pool: Any, available: int) -> PoolSnapshot:
    """The lists of one pool. ``available``: the size that the allocator reports, in tokens."""
    return PoolSnapshot(pool.free_pages.tolist(), pool.release_pages.tolist(), int(available))


class PoolAdapter(_Calls):
    """One paged allocator: a ``PoolEngine``."""

    def snapshot(self) -> PoolSnapshot:
        """The free list, the release list and the available size."""
        return snapshot_of(self.engine, self.engine.available_size())


class PairAdapter(_Calls):
    """One allocator of two pools and the mapping between them: a ``PairEngine``."""

    def tail(self, tokens: int, tail: int) -> list[int] | None:
        """``alloc_extend_swa_tail``: slots for a new row of ``tokens`` tokens, of which the last ``tail`` get SWA
        slots.
        """
        lengths = (self._tensor([0]), self._host([0]), self._tensor([tokens]), self._host([tokens]))
        return self._numbers(self.engine.alloc_extend_swa_tail(*lengths, self._tensor([-1]), tokens, tail))

    def free_swa(self, slots: Sequence[int]) -> None:
        """``free_swa``: frees the SWA pages that these full slots map to."""
        self.engine.free_swa(self._tensor(slots))

    def free_full(self, slots: Sequence[int]) -> None:
        """``free`` of the full pool alone, as a tree does with a tombstone."""
        self.engine.full_attn_allocator.free(self._tensor(slots))

    def snapshot(self) -> PairSnapshot:
        """Both pools, and the mapping without the last entry, which belongs to no slot."""
        engine = self.engine
        full = snapshot_of(engine.full_attn_allocator, engine.full_available_size())
        swa = snapshot_of(engine.swa_attn_allocator, engine.swa_available_size())
        return PairSnapshot(full, swa, engine.full_to_swa_index_mapping[:-1].tolist())

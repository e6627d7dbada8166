"""An allocator object with SGLang's names and signatures, called with plain integers.

Our classes and SGLang's are driven by this one adapter; what one of them lacks, its ``Traits`` say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Traits:
    """What an engine offers beyond the common calls. ``rejects``: it answers bad input with a clear error."""

    label: str
    release: str | None = None
    tail: bool = True
    paged_at_one: bool = False
    rejects: bool = False
    fragile: bool = False


@dataclass(frozen=True)
class Lists:
    """A pool as its engine shows it: page numbers in list order, and the available size in tokens."""

    free: list[int]
    released: list[int]
    available: int


class PoolSubject:
    """One paged allocator."""

    def __init__(self, engine: Any, page_size: int, device: str, traits: Traits) -> None:
        self.engine, self.page_size, self.device, self.traits = engine, page_size, device, traits
        self._backup: Any = None

    def _tensor(self, numbers: Sequence[int]) -> torch.Tensor:
        return torch.tensor(list(numbers), dtype=torch.int64, device=self.device)

    @staticmethod
    def _host(numbers: Sequence[int]) -> torch.Tensor:
        return torch.tensor(list(numbers), dtype=torch.int64)

    @staticmethod
    def _numbers(answer: torch.Tensor | None) -> list[int] | None:
        return None if answer is None else [int(slot) for slot in answer.tolist()]

    def alloc(self, tokens: int) -> list[int] | None:
        """Slots for ``tokens`` tokens, ``None`` if out of memory."""
        return self._numbers(self.engine.alloc(tokens))

    def extend(self, before: Sequence[int], after: Sequence[int], last: Sequence[int]) -> list[int] | None:
        """Slots for rows that grow from ``before`` to ``after`` tokens."""
        return self._numbers(
            self.engine.alloc_extend(
                self._tensor(before),
                self._host(before),
                self._tensor(after),
                self._host(after),
                self._tensor(last),
                sum(after) - sum(before),
            )
        )

    def decode(self, after: Sequence[int], last: Sequence[int]) -> list[int] | None:
        """One slot for each row, whose length becomes ``after``."""
        return self._numbers(self.engine.alloc_decode(self._tensor(after), self._host(after), self._tensor(last)))

    def free(self, slots: Sequence[int]) -> None:
        """Gives slots back."""
        self.engine.free(self._tensor(slots))

    def begin(self) -> None:
        """Opens a free group."""
        self.engine.free_group_begin()

    def end(self) -> None:
        """Ends a free group."""
        self.engine.free_group_end()

    def backup(self) -> None:
        """Takes a backup, and keeps it."""
        self._backup = self.engine.backup_state()

    def restore(self) -> None:
        """Restores the last backup."""
        self.engine.restore_state(self._backup)

    def clear(self) -> None:
        """Starts anew."""
        self.engine.clear()

    def lists(self) -> Lists:
        """The free list, the release list and the available size."""
        return self._lists(self.engine)

    @staticmethod
    def _lists(pool: Any) -> Lists:
        return Lists(pool.free_pages.tolist(), pool.release_pages.tolist(), int(pool.available_size()))


class SwaSubject(PoolSubject):
    """One allocator of two pools and the mapping between them."""

    def tail(self, tokens: int, tail: int) -> list[int] | None:
        """Slots for a new row of ``tokens`` tokens, of which the last ``tail`` get SWA slots."""
        before, after, last = [0], [tokens], [-1]
        return self._numbers(
            self.engine.alloc_extend_swa_tail(
                self._tensor(before),
                self._host(before),
                self._tensor(after),
                self._host(after),
                self._tensor(last),
                tokens,
                tail,
            )
        )

    def free_swa(self, slots: Sequence[int]) -> None:
        """Gives back the SWA side of slots."""
        self.engine.free_swa(self._tensor(slots))

    def free_full(self, slots: Sequence[int]) -> None:
        """Gives back the full side alone, as the tree does."""
        self.engine.full_attn_allocator.free(self._tensor(slots))

    def lists(self) -> Lists:
        """The full pool."""
        return Lists(
            self.engine.full_attn_allocator.free_pages.tolist(),
            self.engine.full_attn_allocator.release_pages.tolist(),
            int(self.engine.full_available_size()),
        )

    def swa_lists(self) -> Lists:
        """The SWA pool."""
        return Lists(
            self.engine.swa_attn_allocator.free_pages.tolist(),
            self.engine.swa_attn_allocator.release_pages.tolist(),
            int(self.engine.swa_available_size()),
        )

    def mapping(self) -> list[int]:
        """The SWA slot of each full slot, 0 where there is none (without the sentinel at the end)."""
        return [int(slot) for slot in self.engine.full_to_swa_index_mapping[:-1].tolist()]

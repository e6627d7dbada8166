"""What tests of state slots look at."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from impl.states import MambaSlotAllocator


def numbers(slots: Tensor | None) -> list[int]:
    """The slots of an answer that was granted."""
    assert slots is not None
    return [int(slot) for slot in slots.tolist()]


def pool_state(pool: MambaSlotAllocator) -> tuple[Any, ...]:
    """Everything that a call may change."""
    return pool.free_slots.tolist(), pool.group_slots.tolist(), pool._depth, pool.held.tolist()

"""A pool of mamba state slots: promise by promise, errors that change nothing, random runs beside plain sets."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from state_slots import numbers, pool_state

from impl.states import MambaSlotAllocator

# The pool.


def test_a_new_pool_has_every_slot_but_the_padding(device: str) -> None:
    pool = MambaSlotAllocator(4, device)
    assert (pool.free_slots.tolist(), pool.available_size()) == ([1, 2, 3, 4], 4)


def test_slots_are_handed_out_and_come_back(device: str) -> None:
    pool = MambaSlotAllocator(4, device, debug=True)
    slots = pool.alloc(3)
    assert slots is not None
    assert slots.dtype == torch.int64
    assert pool.alloc(2) is None
    assert pool.available_size() == 1
    pool.free(slots[1:])
    assert sorted(numbers(pool.alloc(3))) == sorted({1, 2, 3, 4} - {int(slots[0])})


def test_what_was_handed_out_stays_the_callers() -> None:
    pool = MambaSlotAllocator(3)
    slots = pool.alloc(2)
    assert slots is not None
    pool.free(slots[:1].clone())
    assert numbers(slots) == [1, 2]


@pytest.mark.parametrize("wrong", [[0], [5], [-1], [1, 1], [2]])
def test_freeing_what_was_not_handed_out_is_refused_and_changes_nothing(wrong: list[int]) -> None:
    pool = MambaSlotAllocator(4)
    pool.alloc(1)
    before = pool_state(pool)
    with pytest.raises(ValueError, match="free_index"):
        pool.free(torch.tensor(wrong))
    assert pool_state(pool) == before


def test_nothing_can_be_asked_for_and_given_back() -> None:
    pool = MambaSlotAllocator(2)
    assert numbers(pool.alloc(0)) == []
    pool.free(torch.tensor([], dtype=torch.int64))
    assert pool.available_size() == 2


# Groups.


def test_a_group_sets_slots_aside_and_gives_back_the_rest() -> None:
    pool = MambaSlotAllocator(6)
    pool.alloc_group_begin(3)
    assert (pool.available_size(), pool.group_slots.tolist()) == (3, [1, 2, 3])
    assert numbers(pool.alloc(1)) == [1]
    pool.alloc_group_end()
    assert sorted(pool.free_slots.tolist()) == [2, 3, 4, 5, 6]


def test_a_group_that_does_not_fit_sets_nothing_aside() -> None:
    pool = MambaSlotAllocator(2)
    pool.alloc_group_begin(3)
    assert (pool.available_size(), pool.group_slots.numel()) == (2, 0)
    pool.alloc_group_end()
    assert pool.available_size() == 2


def test_groups_nest_and_none_forgets_the_slots_of_another() -> None:
    pool = MambaSlotAllocator(6)
    pool.alloc_group_begin(3)
    pool.alloc_group_begin(2)
    pool.alloc_group_end()
    assert pool.group_slots.tolist() == [1, 2, 3, 4, 5]
    pool.alloc_group_end()
    assert sorted(pool.free_slots.tolist()) == [1, 2, 3, 4, 5, 6]


def test_a_call_takes_from_the_group_and_then_from_the_pool() -> None:
    pool = MambaSlotAllocator(4)
    pool.alloc_group_begin(2)
    assert numbers(pool.alloc(3)) == [1, 2, 3]
    assert pool.alloc(2) is None


def test_a_clear_ends_the_groups() -> None:
    pool = MambaSlotAllocator(3)
    pool.alloc_group_begin(2)
    pool.clear()
    assert (pool.free_slots.tolist(), pool.group_slots.numel()) == ([1, 2, 3], 0)
    with pytest.raises(RuntimeError, match="without alloc_group_begin"):
        pool.alloc_group_end()


@given(st.lists(st.tuples(st.sampled_from(["alloc", "free", "begin", "end"]), st.integers(0, 4)), max_size=30))
def test_no_slot_is_lost_or_shared(calls: list[tuple[str, int]]) -> None:
    pool, held, depth = MambaSlotAllocator(6, debug=True), list[int](), 0
    for name, count in calls:
        if name == "alloc" and (slots := pool.alloc(count)) is not None:
            held += slots.tolist()
        elif name == "free":
            pool.free(torch.tensor(held[:count], dtype=torch.int64))
            held = held[count:]
        elif name == "begin":
            pool.alloc_group_begin(count)
            depth += 1
        elif name == "end" and depth:
            pool.alloc_group_end()
            depth -= 1
        everywhere = [*held, *pool.free_slots.tolist(), *pool.group_slots.tolist()]
        assert sorted(everywhere) == [1, 2, 3, 4, 5, 6]

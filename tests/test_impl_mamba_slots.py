"""Mamba state slots: promise by promise, errors that change nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from state_slots import pool_state

from impl.mamba_slots import MambaSlotAllocator, MambaStates, StateHolder


def named(holder: StateHolder) -> list[int | None]:
    slots = [holder.mamba_pool_idx, *(holder.mamba_ping_pong_track_buffer or [])]
    return [None if slot is None else int(slot) for slot in slots]


def admitted(states: MambaStates) -> StateHolder:
    req = StateHolder()
    assert states.alloc([req]) is not None
    return req


# Requests.


@pytest.mark.parametrize(("buffer_size", "lazy", "has"), [(0, False, 1), (1, False, 2), (2, True, 2), (2, False, 3)])
def test_a_request_gets_what_its_kind_of_buffer_needs(buffer_size: int, lazy: bool, has: int, device: str) -> None:
    states = MambaStates(2, 6, buffer_size=buffer_size, lazy=lazy, device=device, debug=True)
    req = admitted(states)
    slots = [slot for slot in named(req) if slot is not None]
    assert (len(set(slots)), states.mamba_allocator.available_size()) == (has, 6 - has)
    assert req.req_pool_idx is not None
    row = [int(states.req_index_to_mamba_index_mapping[req.req_pool_idx])]
    row += states.req_index_to_mamba_ping_pong_track_buffer_mapping[req.req_pool_idx].tolist()
    assert [slot for slot in row if slot] == slots


def test_what_a_request_has_it_does_not_get_again() -> None:
    states = MambaStates(2, 6)
    req = admitted(states)
    before = named(req)
    assert states.alloc([req]) == [req.req_pool_idx]
    assert (named(req), states.mamba_allocator.available_size()) == (before, 3)


@pytest.mark.parametrize(("rows", "slots"), [(2, 5), (1, 6)])
def test_a_batch_that_does_not_fit_changes_nothing(rows: int, slots: int) -> None:
    states = MambaStates(rows, slots)
    batch = [StateHolder(), StateHolder()]
    assert states.alloc(batch) is None
    assert [named(req) for req in batch] == [[None], [None]]
    assert (states.available_size(), states.mamba_allocator.available_size()) == (rows, slots)
    assert all(req.req_pool_idx is None for req in batch)


def test_a_copy_for_a_match_is_kept_when_the_request_is_admitted() -> None:
    states = MambaStates(1, 3)
    req = StateHolder()
    copied = states.alloc_for_match(req)
    assert copied is not None
    states.alloc([req])
    assert named(req) == [int(copied), 2, 3]
    assert states.alloc_for_match(StateHolder()) is None
    with pytest.raises(ValueError, match="has a state already"):
        states.alloc_for_match(req)


def test_who_gives_back_names_nothing_and_gets_new_slots_when_it_comes_again() -> None:
    states = MambaStates(1, 6)
    req = admitted(states)
    states.release([req])
    assert (named(req), req.mamba_next_track_idx, req.req_pool_idx) == ([None], None, None)
    assert states.mamba_allocator.available_size() == 6
    states.alloc([req])
    assert states.mamba_allocator.available_size() == 3


def test_one_track_can_be_kept() -> None:
    states = MambaStates(1, 3)
    req = admitted(states)
    kept = states.free_mamba_cache(req, 1)
    assert (kept is not None, int(kept or 0)) == (True, 3)
    assert (named(req), states.mamba_allocator.available_size()) == ([None], 2)
    states.free(req)
    assert states.available_size() == 1


# The track buffer.


def test_the_newest_state_is_the_one_that_is_not_next() -> None:
    states = MambaStates(1, 3)
    req = admitted(states)
    states.track(req)
    assert (req.mamba_next_track_idx, states.get_mamba_ping_pong_keep_idx(req)) == (1, 0)
    assert int(states.donate(req)) == 2
    assert named(req) == [1, None, 3]
    states.release([req])
    assert sorted(states.mamba_allocator.free_slots.tolist()) == [1, 3]


def test_a_donated_track_is_replaced_in_the_request_and_its_row() -> None:
    states = MambaStates(1, 4)
    req = admitted(states)
    states.track(req)
    new = states.mamba_allocator.alloc(1)
    assert new is not None
    assert int(states.donate_mamba_ping_pong_slot(req, new)) == 2
    assert named(req) == [1, 4, 3]
    assert states.req_index_to_mamba_ping_pong_track_buffer_mapping[req.req_pool_idx].tolist() == [4, 3]


def test_a_lazy_track_comes_and_goes() -> None:
    states = MambaStates(1, 3, lazy=True)
    req = admitted(states)
    assert named(req) == [1, 2, None]
    assert states.alloc_second(req)
    assert (named(req), req.mamba_next_track_idx) == ([1, 2, 3], 1)
    assert states.alloc_second(req), "it is there already"
    states.give_second(req)
    assert named(req) == [1, None, 3]
    states.give_second(req)
    assert (named(req), states.get_mamba_ping_pong_keep_idx(req)) == ([1, None, 3], 1)
    assert states.req_index_to_mamba_ping_pong_track_buffer_mapping[req.req_pool_idx].tolist() == [0, 3]
    states.release([req])
    assert sorted(states.mamba_allocator.free_slots.tolist()) == [1, 2, 3]


def test_a_lazy_track_without_room_changes_nothing() -> None:
    states = MambaStates(1, 2, lazy=True)
    req = admitted(states)
    assert not states.alloc_second(req)
    assert (named(req), req.mamba_next_track_idx) == ([1, 2, None], 0)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_cuda_no_call_waits_for_the_device() -> None:
    states, session = MambaStates(4, 12, device="cuda"), StateHolder()
    batch = [StateHolder() for _ in range(3)]
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert states.alloc(batch) == [1, 2, 3]
        states.track(batch[0])
        new = states.mamba_allocator.alloc(1)
        assert new is not None
        states.mamba_allocator.free(states.donate_mamba_ping_pong_slot(batch[0], new).view(1))
        states.save(batch[1], session)
        states.release([*batch, session])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert sorted(states.mamba_allocator.free_slots.tolist()) == list(range(1, 13))


# Sessions.


def test_a_saved_turn_is_the_sessions_alone_and_the_next_turns_alone() -> None:
    states = MambaStates(2, 3)
    session, first, later = StateHolder(), admitted(states), StateHolder()
    states.save(first, session)
    assert (named(first), named(session), session.req_pool_idx) == ([None], [1, 2, 3], 1)
    states.restore(session, later)
    assert (named(session), named(later), later.req_pool_idx) == ([None], [1, 2, 3], 1)
    states.release([later, session])
    assert (states.mamba_allocator.available_size(), states.available_size()) == (3, 2)


# Errors.


def lazy_only(states: MambaStates, req: StateHolder) -> None:
    states.alloc_second(req)


ERRORS: list[tuple[str, Callable[[MambaStates, StateHolder], object]]] = [
    ("has no state", lambda *_: MambaStates(1, 1, buffer_size=0).donate(StateHolder())),
    ("has no track buffer", lambda s, _: s.donate(StateHolder())),
    ("has no track 2", lambda s, req: s.free_mamba_cache(req, 2)),
    ("has no row", lambda s, _: s.free(StateHolder())),
    ("a request twice", lambda s, req: s.alloc([req, req])),
    ("not lazy", lazy_only),
    ("of its own", lambda s, req: s.save(req, req)),
    ("buffer_size must be", lambda *_: MambaStates(1, 1, buffer_size=3)),
    ("buffer_size must be", lambda *_: MambaStates(1, 1, buffer_size=1, lazy=True)),
    ("at least 1", lambda *_: MambaStates(1, 0)),
]


@pytest.mark.parametrize(("words", "call"), ERRORS)
def test_an_error_says_what_is_wrong_and_changes_nothing(
    words: str, call: Callable[[MambaStates, StateHolder], object]
) -> None:
    states = MambaStates(2, 6)
    req = admitted(states)
    before = (pool_state(states.mamba_allocator), named(req), states.available_size())
    with pytest.raises(ValueError, match=words):
        call(states, req)
    assert (pool_state(states.mamba_allocator), named(req), states.available_size()) == before


def test_a_given_pool_is_used_and_must_fit() -> None:
    pool = MambaSlotAllocator(6)
    admitted(MambaStates(2, 6, mamba_allocator=pool))
    assert pool.available_size() == 3
    with pytest.raises(ValueError, match="mamba_allocator must have size 5, got 6"):
        MambaStates(2, 5, mamba_allocator=pool)
    with pytest.raises(ValueError, match="mamba_allocator must have device meta, got cpu"):
        MambaStates(2, 6, device="meta", mamba_allocator=pool)


def test_slots_needed_counts_what_requests_lack() -> None:
    states = MambaStates(3, 6)
    req, other = admitted(states), StateHolder()
    assert states.slots_needed([req, other]) == 3
    assert states.slots_needed([StateHolder(mamba_pool_idx=torch.tensor(1))]) == 2


def test_clear_frees_every_row_and_slot() -> None:
    states = MambaStates(2, 3)
    admitted(states)
    states.clear()
    assert (states.available_size(), states.mamba_allocator.available_size()) == (2, 3)
    assert int(states.req_index_to_mamba_index_mapping.sum()) == 0


def test_a_pool_that_looks_at_no_content_keeps_no_list_of_what_is_held() -> None:
    """As on a device without ``debug``."""
    pool = MambaSlotAllocator(3, "cpu")
    pool._check_content = False
    pool.clear()
    assert (pool.held.numel(), pool.available_size()) == (0, 3)

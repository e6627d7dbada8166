"""The session cache with recurrent states: one promise after the other; ``test_impl_cache_law`` has random runs."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from cache_states import three
from test_impl_cache import PAGES, cached, drained, got_rows, new, one, seen, shape, text
from torch import Tensor

from impl.cache import SessionCache
from impl.mamba_slots import MambaStates
from impl.rows import IDLE, RUNNING

Copies = list[tuple[int, int]]


def stateful(page: int, slots: int, *, buffer: int = 0, lazy: bool = False, window: int = 0) -> SessionCache:
    """Four rows; ``copies`` of it are those of states."""
    states = MambaStates(4, slots, buffer_size=buffer, lazy=lazy, debug=True)
    copies: Copies = []

    def copy(source: Tensor, to: Tensor) -> None:
        copies.extend(zip(source.tolist(), to.tolist(), strict=True))

    c = new(page, window=window or page, rows=4, full=30, swa=30, states=states, copy=copy)
    c.copies = copies  # type: ignore[attr-defined]
    return c


def copies_of(c: SessionCache) -> Copies:
    """The copies since the last look."""
    known: Copies = c.copies  # type: ignore[attr-defined]
    found, known[:] = list(known), []
    return found


def states_at(c: SessionCache) -> dict[int, int]:
    """Where nodes with states end, in pages, and the states."""
    return {e.stop // c.page_size: int(e.state) for e in c.tree.entries.values() if e.state is not None}


def free(c: SessionCache) -> int:
    assert c.mamba.states is not None
    return c.mamba.states.mamba_allocator.available_size()


def everything(c: SessionCache) -> object:
    """All that a call may change; what stands in the table of an idle row is stale."""
    c.rows.req_to_token[c.rows.phase == IDLE] = 0
    mamba = {row: (three(one), one.mamba_next_track_idx, one.tracked) for row, one in c.mamba.of.items()}
    return seen(c), mamba, states_at(c), free(c)


def end(c: SessionCache) -> None:
    c.abort([row for row, phase in enumerate(c.rows.phase.tolist()) if phase == RUNNING])
    c.close(list(c.rows.slot))
    c.evict(1 << 20, 0, 0)
    assert drained(c)


@pytest.mark.parametrize("page", PAGES)
def test_a_request_goes_on_only_from_a_state_and_gets_a_copy(page: int) -> None:
    c = stateful(page, 6)
    cached(c, text(4 * page))
    assert c.match_prefix(text(3 * page)).node == 0
    assert (c.match_prefix(text(9 * page)).slots.numel(), shape(c)) == (4 * page, [(0, 4, True)])
    assert copies_of(c) == []  # it was given to the node itself
    rows = got_rows(c.admit([text(6 * page), text(4 * page), text(5 * page)]))
    assert c.rows.committed[rows].tolist() == [4 * page, 0, 4 * page]
    (node,) = states_at(c).values()
    assert copies_of(c) == [(node, three(c.mamba.of[row])[0]) for row in (rows[0], rows[2])]
    assert c.handles[rows[0]].state
    assert c.evict(1 << 20, 1 << 20, 9) == (0, 0, 0)
    end(c)


@pytest.mark.parametrize("page", [2, 16])
def test_without_a_buffer_only_whole_pages_have_their_state(page: int) -> None:
    c = stateful(page, 6)
    row = one(c, text(2 * page + 1))
    before = everything(c)
    c.cache_unfinished([row], [text(2 * page + 1)])
    assert everything(c) == before
    c.cache_finished([row], [text(2 * page + 1)])
    assert drained(c)


@pytest.mark.parametrize("page", PAGES)
def test_the_tree_gets_what_was_tracked_and_the_track_itself(page: int) -> None:
    c = stateful(page, 8, buffer=2)
    row = one(c, text(5 * page))
    c.cache_unfinished([row], [text(5 * page)])
    assert shape(c) == []  # nothing was tracked
    c.track([row], [3 * page])
    kept = three(c.mamba.of[row])[1]
    c.cache_unfinished([row], [text(5 * page)])
    assert (shape(c), states_at(c), int(c.rows.protected[row])) == ([(0, 3, True)], {3: kept}, 3 * page)
    assert len({kept, *three(c.mamba.of[row])}) == 4
    c.track([row], [5 * page])
    kept = three(c.mamba.of[row])[2]
    c.cache_finished([row], [text(5 * page)])
    assert (states_at(c)[5], free(c), copies_of(c)) == (kept, 6, [])
    end(c)


@pytest.mark.parametrize("page", PAGES)
def test_a_boundary_gives_up_what_was_tracked_before(page: int) -> None:
    """The next state is written to the track that is next; it is nobody's before."""
    c = stateful(page, 4, buffer=2, lazy=True)
    row = one(c, text(4 * page))
    c.track([row], [2 * page])
    assert c.boundary([row]) == [True]
    c.cache_unfinished([row], [text(4 * page)])
    assert shape(c) == []
    c.track([row], [4 * page])
    c.settle([row])
    assert (free(c), three(c.mamba.of[row])[1]) == (2, 0)
    other = three(c.mamba.of[row])[2]
    c.cache_unfinished([row], [text(4 * page)])
    assert (states_at(c), free(c)) == ({4: other}, 1)
    assert (c.boundary([row]), free(c)) == ([True], 0)
    end(c)


def test_a_lazy_buffer_goes_on_with_one_track_where_there_is_no_room() -> None:
    c = stateful(1, 3, buffer=2, lazy=True)
    row = one(c, text(2))
    c.track([row], [2])
    c.cache_unfinished([row], [text(2)])
    assert (free(c), c.boundary([row])) == (0, [False])  # its node's state is held
    end(c)


# Room.


@pytest.mark.parametrize("page", PAGES)
def test_states_are_evicted_for_requests_that_come_or_nothing_is(page: int) -> None:
    c = stateful(page, 4, buffer=1)
    for way in (1, 2):
        row = one(c, text(2 * page, 0, way))
        c.track([row], [2 * page])
        c.cache_finished([row], [text(2 * page, 0, way)])
    before = everything(c)
    assert c.admit([text(3 * page, 0, 1), text(3 * page, 0, 2)]) is None
    assert everything(c) == before
    (row,) = got_rows(c.admit([text(3 * page, 0, 2)]))
    before = everything(c)
    assert (free(c), c.admit([text(3 * page, 0, 2)])) == (0, None)
    assert everything(c) == before
    assert c.admit([text(page)]) is None
    end(c)


@pytest.mark.parametrize("page", PAGES)
def test_what_makes_room_may_be_what_was_planned_on(page: int) -> None:
    c = stateful(page, 2)
    row = one(c, text(4 * page))
    cached(c, text(2 * page))
    assert (free(c), list(states_at(c))) == (0, [2])
    c.cache_unfinished([row], [text(4 * page)])
    assert (shape(c), list(states_at(c)), free(c)) == ([(0, 4, True)], [4], 0)
    end(c)


@pytest.mark.parametrize("page", PAGES)
def test_a_row_whose_state_finds_no_room_keeps_its_pages(page: int) -> None:
    c = stateful(page, 3)
    rows = [one(c, text(4 * page)), one(c, text(4 * page))]
    third = one(c, text(page, 0, 2))
    before = everything(c)
    c.cache_unfinished(rows, [text(4 * page)] * 2)
    assert everything(c) == before
    c.abort([third])
    c.cache_unfinished(rows, [text(4 * page)] * 2)  # the second one finds the first one's
    assert (c.rows.protected[rows].tolist(), free(c)) == ([4 * page] * 2, 0)
    end(c)


@pytest.mark.parametrize("page", PAGES)
def test_a_leaf_leaves_with_its_state_and_those_above_without_one(page: int) -> None:
    c = stateful(page, 6)
    cached(c, text(4 * page))
    cached(c, text(4 * page, fork=2 * page))
    assert shape(c) == [(0, 2, True), (2, 4, True), (2, 4, True)]
    assert c.evict(0, 0, 1) == (2 * page, 2 * page, 1)
    assert c.evict(0, 0, 1) == (4 * page, 4 * page, 1)
    assert drained(c)


@pytest.mark.parametrize("page", PAGES)
def test_a_state_alone_leaves_a_node_that_is_read(page: int) -> None:
    c = stateful(page, 6)
    cached(c, text(2 * page))
    row = one(c, text(4 * page))
    c.cache_unfinished([row], [text(4 * page)])
    assert c.evict(0, 0, 9) == (0, 0, 1)
    assert (list(states_at(c)), shape(c)) == ([4], [(0, 2, True), (2, 4, True)])
    end(c)


@pytest.mark.parametrize("page", PAGES)
def test_a_tombstone_that_is_read_is_shared_and_keeps_its_pages(page: int) -> None:
    """The tombstone comes to life in place: the row that shares it goes on with it, and its reader keeps its pages."""
    c = stateful(page, 8, window=3 * page)
    slow = one(c, text(6 * page, fork=5 * page))
    cached(c, text(7 * page), cursor=4 * page)
    cached(c, text(2 * page))
    reader = one(c, text(8 * page))
    assert (int(c.rows.protected[reader]), c.evict(0, 0, 9)) == (7 * page, (0, 0, 1))
    before = c.rows.req_to_token[reader].tolist()
    c.cache_unfinished([slow], [text(6 * page, fork=5 * page)])
    assert c.rows.req_to_token[reader].tolist() == before
    assert int(c.rows.protected[slow]) > 2 * page
    shared = int(c.rows.protected[slow]) - page  # the fork is the row's own
    assert c.rows.req_to_token[slow, :shared].tolist() == before[:shared]
    end(c)


# Sessions.


@pytest.mark.parametrize("page", PAGES)
def test_a_turn_goes_on_with_what_the_last_one_carried(page: int) -> None:
    c = stateful(page, 6, buffer=2)
    row = one(c, text(3 * page), "s")
    c.track([row], [2 * page])
    before = three(c.mamba.of[row])
    c.save([row], [3 * page])
    assert c.restore(["s"], [3 * page]).tolist() == [3 * page]
    c.resume(["s"], [4 * page])
    assert (three(c.mamba.of[row]), c.mamba.of[row].tracked, copies_of(c)) == (before, 2 * page, [])
    end(c)


@pytest.mark.parametrize("page", PAGES)
def test_a_state_cannot_be_cut_so_a_row_goes_back_to_one(page: int) -> None:
    c = stateful(page, 8, buffer=2)
    row = one(c, text(8 * page), "s")
    c.track([row], [2 * page])
    c.cache_unfinished([row], [text(8 * page)])
    c.track([row], [5 * page])
    own, _, second = three(c.mamba.of[row])
    c.save([row], [7 * page])
    assert (int(c.rows.committed[row]), copies_of(c)) == (5 * page, [(second, own)])
    assert c.restore(["s"], [5 * page]).tolist() == [5 * page]
    assert c.restore(["s"], [4 * page]).tolist() == [2 * page]
    assert copies_of(c) == [(states_at(c)[2], own)]
    assert c.mamba.of[row].tracked == 0
    end(c)


# Errors.

Call = Callable[[SessionCache], object]
BAD: dict[str, tuple[Call, str]] = {
    "tracks what is not computed": (lambda c: c.track([0], [12]), "at[0]: expected committed whole pages of row 0"),
    "tracks a part of a page": (lambda c: c.track([0], [6]), "at[0]: expected committed whole pages of row 0"),
    "tracks nobody": (lambda c: c.track([3], [4]), "rows[0]: expected a row that is running"),
    "is not lazy": (lambda c: c.boundary([0]), "expected a cache whose rows have lazy track buffers"),
    "is not lazy either": (lambda c: c.settle([0]), "expected a cache whose rows have lazy track buffers"),
    "evicts less than nothing": (lambda c: c.evict(0, 0, -1), "states must be at least 0, got -1"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named_and_changes_nothing(name: str) -> None:
    c, (call, message) = stateful(4, 6, buffer=2), BAD[name]
    one(c, text(9))
    before = everything(c)
    with pytest.raises(ValueError, match=re.escape(message)):
        call(c)
    assert everything(c) == before


def test_states_have_a_row_for_each_of_the_cache() -> None:
    with pytest.raises(ValueError, match="states must have 3 rows"):
        new(1, states=MambaStates(2, 4))
    with pytest.raises(ValueError, match="track buffers"):
        new(1).track([], [])

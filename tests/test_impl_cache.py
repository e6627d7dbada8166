"""The session cache: one promise after the other, at each page size; ``test_impl_cache_law`` has random runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_impl_session_trim import seen as rows_seen
from test_impl_swa_mapping import got
from torch import Tensor

from impl.cache import SessionCache
from impl.mamba_in_cache import CopyState
from impl.mamba_slots import MambaStates
from impl.swa_mapping import SWATokenToKVPoolAllocator as SWA

PAGES = [1, 2, 4, 16]


def new(
    page: int, *, window: int = 3, rows: int = 3, full: int = 12, swa: int = 12, debug: bool = True,
    device: str = "cpu", states: MambaStates | None = None, copy: CopyState | None = None,
) -> SessionCache:  # fmt: skip
    pools = SWA(full * page, swa * page, page, torch.float16, device, None, False, debug=debug)
    return SessionCache(pools, rows, full * page, window, states, copy)


def drained(c: SessionCache) -> bool:
    """Nobody holds or owns anything."""
    a = c.pools
    full = (a.full_available_size(), a.swa_available_size()) == (a.size_full, a.size_swa)
    if c.mamba.states is not None:
        full = full and c.mamba.lacks(c.mamba.states.mamba_allocator.size) == 0 and not c.mamba.of
    return full and not c.handles and len(c.tree.entries) == 1 and c.rows.available_size() == c.rows.rows


def seen(c: SessionCache) -> tuple[Any, ...]:
    """Everything that a call may change, but when nodes were used."""
    nodes = {n: (e.key, e.slots.tolist(), e.above, e.children) for n, e in c.tree.entries.items()}
    counts = (c.locks.counts.ref.tolist(), c.locks.swa.tolist(), c.locks.sizes, dict(c.handles))
    return rows_seen(c.rows), nodes, counts


def text(n: int, fork: int = 1 << 20, way: int = 1) -> list[int]:
    """``n`` tokens that count on; from its fork on the text goes a way of its own."""
    return [i if i < fork else 1000 * way + i for i in range(n)]


def one(c: SessionCache, tokens: list[int], session: str | None = None) -> int:
    """A running row with all of these tokens computed."""
    (row,) = got_rows(c.admit([tokens], [session]))
    got(c.extend([row], [len(tokens)]))
    return row


def got_rows(rows: list[int] | None) -> list[int]:
    assert rows is not None
    return rows


def cached(c: SessionCache, tokens: list[int], cursor: int = 0) -> None:
    """A request of these tokens comes and goes, with its window moved on so far."""
    row = one(c, tokens)
    if cursor:
        c.rows.slide_to([row], [cursor])
    c.cache_finished([row], [tokens])


def used(c: SessionCache) -> tuple[int, int]:
    """Pages that are not available."""
    a = c.pools
    full, swa = a.size_full - a.full_available_size(), a.size_swa - a.swa_available_size()
    return full // c.page_size, swa // c.page_size


def shape(c: SessionCache) -> list[tuple[int, int, bool]]:
    """The nodes: from where to where, in pages, and whether live."""
    nodes = [(e.start // c.page_size, e.stop // c.page_size, c.tree.live(n)) for n, e in c.tree.entries.items() if n]
    return sorted(nodes)


def calls(c: SessionCache, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pages each return to the full pool brought, from now on."""
    pool, found = c.pools.full_attn_allocator, list[int]()
    real = pool.put

    def counted(pages: Tensor) -> None:
        found.append(pages.numel())
        real(pages)

    monkeypatch.setattr(pool, "put", counted)
    return found


# Matching.


@pytest.mark.parametrize("page", PAGES)
def test_what_is_computed_is_found_while_its_request_runs(page: int) -> None:
    c = new(page, window=page)
    first = one(c, text(4 * page - 1))
    assert c.match_prefix(text(9 * page)).node == 0
    c.cache_unfinished([first], [text(4 * page - 1)])
    assert int(c.rows.protected[first]) == 3 * page
    found = c.match_prefix(text(2 * page))
    assert found.slots.tolist() == c.rows.req_to_token[first, : 2 * page].tolist()
    assert c.tree.entries[found.node].stop == 2 * page
    second = one(c, text(3 * page, fork=page))
    assert c.rows.req_to_token[second, :page].tolist() == found.slots[:page].tolist()
    assert used(c) == (3 + (page > 1) + 2,) * 2
    c.abort([first, second])
    assert used(c) == (3, 3)
    c.evict(3 * page, 0)
    assert drained(c)


@pytest.mark.parametrize("page", PAGES)
def test_a_token_is_left_to_compute(page: int) -> None:
    c = new(page)
    cached(c, text(3 * page))
    rows = got_rows(c.admit([text(3 * page), text(3 * page + 1), text(1)]))
    assert c.rows.committed[rows].tolist() == [2 * page, 3 * page, 0]
    assert sorted(c.handles) == sorted(rows[:2])


@pytest.mark.parametrize("page", PAGES)
def test_one_node_is_cut_for_each_request_of_a_batch(page: int) -> None:
    c = new(page, rows=4)
    cached(c, text(6 * page))
    rows = got_rows(c.admit([text(n * page + 1) for n in (2, 4, 3, 4)]))
    assert [c.tree.entries[c.handles[row].node].stop // page for row in rows] == [2, 4, 3, 4]
    assert shape(c) == [(0, 2, True), (2, 3, True), (3, 4, True), (4, 6, True)]


@pytest.mark.parametrize("page", PAGES)
def test_a_match_ends_where_its_window_is_there(page: int) -> None:
    """Tombstones at the beginning: a prefix inside them, or less than a window behind, cannot be gone on from."""
    c = new(page, window=2 * page)
    cached(c, text(6 * page), cursor=3 * page)
    assert shape(c) == [(0, 3, False), (3, 6, True)]
    for pages in range(7):
        assert c.match_prefix(text(pages * page)).slots.numel() == (pages * page if pages >= 5 else 0)
    assert shape(c) == [(0, 3, False), (3, 5, True), (5, 6, True)]


# What goes to the tree.


@pytest.mark.parametrize("page", PAGES)
def test_copies_are_given_back_and_no_node_is_cut_for_them(page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    c = new(page)
    rows = [one(c, text(n)) for n in (4 * page, 3 * page + 1, 4 * page)]
    freed = calls(c, monkeypatch)
    c.cache_finished(rows, [text(4 * page), text(3 * page + 1), text(4 * page)])
    assert freed == [4 + 4]
    assert (shape(c), used(c)) == ([(0, 4, True)], (4, 4))
    cached(c, text(4 * page, fork=2 * page))
    assert shape(c) == [(0, 2, True), (2, 4, True), (2, 4, True)]


@pytest.mark.parametrize("page", PAGES)
def test_a_tombstone_comes_to_life_from_the_cursor_on(page: int) -> None:
    """A tombstone that somebody reads keeps its full slots, and the row's are freed."""
    for reader in (False, True):
        c = new(page, window=page, full=24, swa=24)
        other = one(c, text(4 * page))
        cached(c, text(5 * page), cursor=4 * page)
        held = one(c, text(6 * page)) if reader else None
        assert held is None or int(c.rows.protected[held]) == 5 * page
        c.rows.slide_to([other], [2 * page])
        before = c.tree.slots(c.tree.walk(text(5 * page))).tolist()
        c.cache_finished([other], [text(4 * page)])
        assert shape(c) == [(0, 2, False), (2, 4, True), (4, 5, True)]
        assert (c.tree.slots(c.tree.walk(text(5 * page))).tolist() == before) == reader
        if held is not None:
            c.abort([held])
        c.evict(9 * page, 0)
        assert drained(c)


@pytest.mark.parametrize("page", [page for page in PAGES if page > 1])
def test_a_request_that_goes_on_keeps_what_could_not_be_locked(page: int) -> None:
    """Behind tombstones that have left its window its pages are no whole window: the tree gets none of them."""
    c = new(page, window=2 * page + 1, full=24, swa=24)
    slow = one(c, text(6 * page + 1, fork=5 * page))
    cached(c, text(7 * page), cursor=4 * page)
    c.rows.slide_to([slow], [4 * page])
    before = seen(c)
    c.cache_unfinished([slow], [text(6 * page + 1, fork=5 * page)])
    assert (seen(c), int(c.rows.protected[slow])) == (before, 0)
    got(c.extend([slow], [8 * page]))
    c.cache_unfinished([slow], [text(8 * page, fork=5 * page)])
    assert int(c.rows.protected[slow]) == 8 * page
    c.abort([slow])
    c.evict(24 * page, 0)
    assert drained(c)


@pytest.mark.parametrize("page", PAGES)
def test_chains_of_nodes_that_all_hold_alike_become_one(page: int) -> None:
    c = new(page, window=page, full=24, swa=24)
    whole = one(c, text(6 * page))
    c.cache_unfinished([whole], [text(6 * page)])
    upper = one(c, text(4 * page + 1, fork=4 * page))
    slots = c.tree.slots(c.tree.walk(text(6 * page))).tolist()
    c.tree.cut(c.tree.upto(c.tree.walk(text(4 * page))[-1].node, 4 * page), 2 * page)
    assert shape(c) == [(0, 2, True), (2, 4, True), (4, 6, True)]
    c.compact()
    assert shape(c) == [(0, 4, True), (4, 6, True)], "the second request ends after page 4"
    late = one(c, text(6 * page + 1))
    c.abort([upper])
    c.compact()
    assert shape(c) == [(0, 4, True), (4, 6, True)], "the third request holds the SWA pages of the last node alone"
    c.abort([late])
    c.compact()
    assert shape(c) == [(0, 6, True)]
    c.abort([whole])
    assert c.tree.slots(c.tree.walk(text(6 * page))).tolist() == slots
    c.evict(24 * page, 0)
    assert drained(c)


def test_what_has_left_the_window_alone_is_not_kept() -> None:
    c = new(4, window=1)
    cached(c, text(9), cursor=8)
    assert drained(c)


# Sessions.


@pytest.mark.parametrize("page", PAGES)
def test_a_session_holds_its_prefix_between_turns(page: int) -> None:
    c = new(page, window=page)
    row = one(c, text(3 * page), "s")
    c.cache_unfinished([row], [text(3 * page)])
    got(c.decode([row]))
    c.save([row], [3 * page + 1])
    assert c.evict(99 * page, 99 * page) == (0, 0, 0)
    assert c.restore(["s"], [3 * page]).tolist() == [3 * page]
    assert c.resume(["s"], [5 * page]) == [row]
    got(c.extend([row], [5 * page]))
    c.cache_unfinished([row], [text(5 * page)])
    c.save([row], [5 * page])
    assert c.evict(99 * page, 99 * page) == (0, 3 * page, 0)
    assert c.locks.full_protected_size() == 5 * page
    c.close(["s"])
    assert c.locks.full_protected_size() == 0
    c.evict(5 * page, 0)
    assert drained(c)


# Room.


def texts(c: SessionCache) -> set[tuple[int, ...]]:
    return {tuple(c.tree.tokens(n)) for n in c.tree.entries if n}


@pytest.mark.parametrize("page", PAGES)
def test_the_least_recently_used_goes_first(page: int) -> None:
    c, ways = new(page, window=page), [text(2 * page, 0, way) for way in range(4)]
    for way in ways:
        cached(c, way)
    c.match_prefix(ways[0])
    assert c.evict(2 * page + 1, 0) == (4 * page, 4 * page, 0)
    assert texts(c) == {tuple(ways[0]), tuple(ways[3])}
    assert c.evict(0, 1) == (2 * page, 2 * page, 0)
    assert texts(c) == {tuple(ways[0])}


@pytest.mark.parametrize("page", PAGES[1:])
def test_a_request_that_ends_uses_what_the_tree_has_of_it(page: int) -> None:
    c, ways = new(page, window=page), [text(2 * page, 0, way) for way in range(2)]
    for way in ways:
        cached(c, way)
    rows = [one(c, [*way, 7]) for way in ways]  # the second one matches later
    for row, way in zip(rows[::-1], ways[::-1], strict=True):
        c.cache_finished([row], [[*way, 7]])  # the first one ends later
    assert c.evict(1, 0) == (2 * page, 2 * page, 0)
    assert texts(c) == {tuple(ways[0])}


@pytest.mark.parametrize("page", PAGES)
def test_growth_takes_what_it_needs_from_the_tree_or_nothing(page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    c = new(page, window=page, full=8, swa=8)
    for way in (1, 2):
        cached(c, text(3 * page, 0, way))
    row, other = one(c, text(2 * page, 0, 3)), got_rows(c.admit([text(8 * page, 0, 4)]))
    before, freed = seen(c), calls(c, monkeypatch)
    assert c.extend(other, [6 * page + 1]) is None
    c.free_group_begin()
    assert c.extend([row], [3 * page]) is None  # what the tree gives would wait
    c.free_group_end()
    assert (seen(c), freed) == (before, [])
    got(c.extend([row], [5 * page]))
    assert (freed, texts(c)) == ([3], {tuple(text(3 * page, 0, 2))})
    got(c.reserve(other, [page]))
    assert (freed, used(c)) == ([3, 3], (6, 6))
    assert c.make_room(2 * page, 2 * page)
    assert not c.make_room(3 * page, 0)
    c.abort([row, *other])
    assert drained(c)


@pytest.mark.parametrize("page", PAGES)
def test_a_reader_keeps_its_window_alone(page: int) -> None:
    """The SWA side of what it reads further up makes room."""
    c = new(page, window=page, full=12, swa=8)
    row = one(c, text(3 * page))
    for n in (3 * page, 6 * page):
        got(c.extend([row], [n]))
        c.cache_unfinished([row], [text(n)])
    assert c.extend([row], [12 * page]) is None
    got(c.extend([row], [10 * page]))
    assert shape(c) == [(0, 3, False), (3, 6, True)]
    c.abort([row])
    c.evict(6 * page, 0)
    assert drained(c)

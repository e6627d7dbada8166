"""Request rows and session slots: one promise after the other, at each page size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_impl_swa_mapping import got, ints, mapped, snapshot
from torch import Tensor

from impl.session_trim import RequestRows
from impl.swa_mapping import SWATokenToKVPoolAllocator as SWA
from spec.lengths import ceil_align

PAGES = [1, 2, 4, 16]


def new(
    page: int, *, window: int = 3, rows: int = 3, full: int = 12, swa: int = 12, debug: bool = True, device: str = "cpu"
) -> RequestRows:
    pools = SWA(full * page, swa * page, page, torch.float16, device, None, False, debug=debug)
    return RequestRows(pools, rows, full * page, window, device)


def seen(r: RequestRows) -> tuple[Any, ...]:
    """Everything that a call may change."""
    host = (r.phase.tolist(), r.lengths.tolist(), dict(r.slot), list(r.session), sorted(r._idle))
    return host, r.req_to_token.tolist(), snapshot(r.pools)


def full_again(r: RequestRows) -> bool:
    a = r.pools
    return (a.full_available_size(), a.swa_available_size()) == (a.size_full, a.size_swa)


def one(r: RequestRows, tokens: int, session: str | None = None, prefix: Tensor | None = None) -> int:
    """A running row of so many tokens."""
    (row,) = r.admit([ints() if prefix is None else prefix], [session]) or [-1]
    got(r.extend([row], [tokens]))
    return row


def lens(r: RequestRows, row: int) -> tuple[int, ...]:
    """Protected, cursor, committed, allocated."""
    return tuple(r.lengths[:4, row].tolist())


def put(r: RequestRows, tokens: int, to: int, session: str = "s") -> int:
    """A turn's row with so many computed tokens, its cursor at ``to``."""
    row = one(r, tokens, session)
    if to:
        r.slide_to([row], [to])
    return row


def calls(r: RequestRows, name: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many slots each call of the allocator's ``name`` was given, from now on."""
    seen, real = list[int](), getattr(r.allocator, name)

    def counted(slots: Tensor, **known: Any) -> None:
        seen.append(slots.numel())
        real(slots, **known)

    monkeypatch.setattr(r.allocator, name, counted)
    return seen


# A session's turns.


@pytest.mark.parametrize(("cursor", "to"), [(35, 38), (37, 26)])
def test_an_overshoot_is_trimmed_and_no_cursor_is_left_behind(cursor: int, to: int) -> None:
    """PR 22900: input 26, answer 12, committed 40, allocated 44: all end at 38, or at 26 where the window is gone."""
    r = new(1, window=3, full=50, swa=50)
    tree = one(r, 26)
    prompt = r.donate(tree, 26)
    r.finish([tree])
    r.release([tree])
    row = one(r, 40, "s", prompt)
    got(r.reserve([row], [44]))
    r.slide_to([row], [cursor])
    r.save([row], [38])
    assert lens(r, row) == (26, cursor if to == 38 else 26, to, to)
    assert int(r.text[row]) == 38
    assert r.allocator.full_available_size() == 50 - to
    assert r.allocator.swa_available_size() == 50 - 26 - (38 - cursor if to == 38 else 0)
    assert r.restore(["s"], [to]).tolist() == [to]
    assert [r.begins_anew(name, 26) for name in ("s", "nobody")] == [True, False]
    assert not r.begins_anew("s", 27)
    assert r.resume(["s"], [41]) == [row]
    got(r.extend([row], [41]))
    r.save([row], [41])
    r.close(["s"])
    r.allocator.free(prompt)
    assert full_again(r)


@pytest.mark.parametrize("page", PAGES)
def test_what_a_turn_left_beyond_the_prefix_is_not_overwritten(page: int) -> None:
    """PR 22862: a speculative tail, and a prefix shorter than what is committed; a turn not admitted tries again."""
    r = new(page, full=32, swa=32)
    row = one(r, 7, "s")
    got(r.reserve([row], [13]))
    r.save([row], [13])
    assert lens(r, row) == (0, 0, 7, 13)
    for attempt in range(3):
        with pytest.raises(ValueError, match="rows"):
            r.extend([row], [14])
        assert r.restore(["s"], [6]).tolist() == [6], attempt
        assert lens(r, row) == (0, 0, 6, 6)
        assert r.allocator.full_available_size() == 32 * page - ceil_align(6, page)
    assert r.resume(["s"], [14]) == [row]
    slots = got(r.extend([row], [14]))
    assert r.req_to_token[row, 6:14].tolist() == slots.tolist()
    assert r.allocator.full_available_size() == 32 * page - ceil_align(14, page)
    r.save([row], [14])
    r.close(["s"])
    assert full_again(r)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_that_keeps_a_token_stays_and_goes_on(page: int) -> None:
    """Its slots, its mapping and its SWA page are as before, wherever in the page the cut is."""
    for keep in range(1, 2 * page + 1):
        r = new(page, window=0)
        row = put(r, 3 * page, 0)
        before = r.req_to_token[row].to(torch.int64)
        stays = before[: ceil_align(keep, page)]
        maps = mapped(r.pools, stays)
        r.save([row], [keep])
        assert r.allocator.full_available_size() == r.allocator.swa_available_size() == 12 * page - len(stays)
        assert mapped(r.pools, stays) == maps
        r.resume(["s"], [3 * page])
        assert int(got(r.decode([row]))[0]) == int(before[keep]) or keep % page == 0
        got(r.extend([row], [3 * page]))
        assert r.req_to_token[row, : len(stays)].tolist() == stays.tolist()
        assert mapped(r.pools, stays) == maps
        r.save([row], [3 * page])
        r.close(["s"])
        assert full_again(r)


@pytest.mark.parametrize("page", PAGES)
def test_a_cut_into_the_window_goes_back_to_the_trees_part(page: int) -> None:
    """The window before the cut has no SWA slots any more: what is left of it would be read as padding."""
    for call in ("save", "restore"):
        r = new(page, window=page)
        row = put(r, 6 * page, 3 * page)
        r.donate(row, page)
        if call == "save":
            r.save([row], [4 * page - 1])
        else:
            r.save([row], [6 * page])
            assert r.restore(["s"], [4 * page]).tolist() == [4 * page]
            assert r.restore(["s"], [4 * page - 1]).tolist() == [page]
        assert lens(r, row) == (page, page, page, page)
        assert (r.allocator.full_available_size(), r.allocator.swa_available_size()) == (11 * page, 12 * page)
        assert r.resume(["s"], [6 * page]) == [row]
        assert len(got(r.extend([row], [2 * page + 1]))) == page + 1


def test_a_session_only_appends_and_has_one_row() -> None:
    r = new(4)
    row = one(r, 9, "s")
    assert (r.slot, r.session[row], r.available_size()) == ({"s": row}, "s", 2)
    r.save([row], [9])
    assert (r.session_held_tokens(), r.session_held_swa_tokens(), r.session_held_req_count()) == (12, 12, 1)
    assert r.resume(["s"], [10]) == [row]
    r.finish([row])  # an abort: the session starts anew
    r.release([row])
    assert (r.slot, r.session_held_req_count(), r.available_size()) == ({}, 0, 3)
    assert one(r, 3, "s") == row


# The window.


@pytest.mark.parametrize("page", PAGES)
def test_the_window_moves_in_one_free_and_keeps_a_page_more(page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for window in range(2 * page + 2):
        r = new(page, window=window, full=24, swa=24)
        rows = [one(r, 5 * page), one(r, 1), one(r, 7 * page - 1)]
        freed = calls(r, "free_swa", monkeypatch)
        cursors = r.slide(rows).tolist()
        for tokens, cursor in zip((5 * page, 1, 7 * page - 1), cursors, strict=True):
            assert cursor % page == 0
            assert cursor == 0 or cursor <= tokens - window - page < cursor + page
        assert freed == [sum(cursors)]
        assert r.slide(rows).tolist() == cursors
        assert mapped(r.pools, r.req_to_token[rows[2], : cursors[2]]) == [0] * cursors[2]


# The tree.


@pytest.mark.parametrize("page", PAGES)
def test_what_is_donated_is_not_freed_and_what_is_a_copy_is(page: int) -> None:
    r = new(page)
    first = one(r, 2 * page + 1)
    slots = r.donate(first, 2 * page)
    assert slots.tolist() == r.req_to_token[first, : 2 * page].tolist()
    second = one(r, 3 * page, prefix=slots[:page])
    assert int(r.protected[second]) == page
    own = r.req_to_token[second].clone()
    r.finish([first, second])
    r.dedupe(second, slots[page:], 2 * page)
    assert r.req_to_token[second, : 2 * page].tolist() == slots.tolist()
    assert r.req_to_token[second, 2 * page :].tolist() == own[2 * page :].tolist()
    r.release([first, second])
    assert r.pools.available_size() == 10 * page
    r.allocator.free(slots)
    assert full_again(r)


# Batches.


@pytest.mark.parametrize("page", PAGES)
def test_a_batch_is_one_free_of_whole_pages(page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    r = new(page, window=1, full=24, swa=24)
    rows = [one(r, page * n + 1, session) for n, session in ((3, "a"), (2, "b"), (4, None))]
    freed = calls(r, "free", monkeypatch)
    r.save(rows[:2], [page, 2 * page])
    assert freed == [2 * page + 1 + 1]
    r.restore(["b", "a"], [page, 1])
    assert freed[1:] == [page]
    r.close(["a", "b"])
    assert freed[2:] == [1 + page]
    r.finish(rows[2:])
    r.release(rows[2:])
    assert freed[3:] == [4 * page + 1]
    assert full_again(r)


@pytest.mark.parametrize(("full", "swa"), [(12, 6), (6, 12)])
@pytest.mark.parametrize("page", PAGES)
def test_out_of_memory_is_none_and_changes_nothing(page: int, full: int, swa: int) -> None:
    r = new(page, full=full, swa=swa)
    rows = [one(r, 3 * page), one(r, 2 * page)]
    before = seen(r)
    assert r.extend(rows, [4 * page, 3 * page]) is None
    assert r.reserve(rows, [5 * page, 2 * page]) is None
    assert r.decode(rows) is None
    assert r.admit([ints(), ints()]) is None
    assert seen(r) == before
    assert len(got(r.decode(rows[:1]))) == 1


def test_in_a_free_group_what_is_given_back_waits() -> None:
    r = new(4)
    row = one(r, 9, "s")
    r.allocator.free_group_begin()
    r.save([row], [3])
    r.close(["s"])
    assert r.pools.available_size() == 36
    r.allocator.free_group_end()
    assert full_again(r)

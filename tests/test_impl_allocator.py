"""The single pool, law by law: who holds which page, what a failure leaves behind, and what a group or backup keeps."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from impl.allocator import BaseTokenToKVPoolAllocator, PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator

Pool = BaseTokenToKVPoolAllocator


def pool(pages: int, page: int = 4, *, need_sort: bool = False, debug: bool = False) -> Pool:
    if page == 1:
        return TokenToKVPoolAllocator(pages, torch.float16, "cpu", None, need_sort, debug=debug)
    return PagedTokenToKVPoolAllocator(pages * page, page, torch.float16, "cpu", None, need_sort, debug=debug)


def snapshot(a: Pool) -> tuple[Any, ...]:
    group = [t.tolist() for t in a.free_group]
    return a.free_pages.tolist(), a.release_pages.tolist(), a.held.tolist(), group, a.is_not_in_free_group


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def extend(a: Pool, rows: list[tuple[int, int]], last: list[int]) -> torch.Tensor | None:
    prefix, seq = (ints(*lens) for lens in zip(*rows, strict=True))
    return a.alloc_extend(prefix, prefix, seq, seq, ints(*last), int((seq - prefix).sum()))


def got(slots: torch.Tensor | None) -> torch.Tensor:
    assert slots is not None
    return slots


def test_a_new_pool_hands_out_every_page_but_the_padding() -> None:
    a = pool(5)
    assert sorted(got(a.alloc(20)).tolist()) == list(range(4, 24))
    assert a.available_size() == 0
    assert a.alloc(4) is None
    assert got(a.alloc(0)).tolist() == []


def test_extend_fills_the_partial_page_then_takes_new_ones() -> None:
    a = pool(8)
    first = got(extend(a, [(0, 6), (0, 3)], [-1, -1]))
    more = got(extend(a, [(6, 13), (3, 3)], [int(first[5]), int(first[8])]))
    row = torch.cat([first[:6], more]).tolist()
    assert [s % 4 for s in row] == [i % 4 for i in range(13)]
    assert [s // 4 for s in row] == [row[i - i % 4] // 4 for i in range(13)]
    assert a.available_size() == (8 - 5) * 4


@pytest.mark.parametrize("page", [1, 4])
def test_a_row_goes_on_after_giving_back_its_full_pages(page: int) -> None:
    a = pool(3, page, debug=True)
    row = got(a.alloc(page))
    a.free(row)
    for last in (-1, int(row[-1])):  # nobody looks at the last slot of a row that begins a new page
        assert got(extend(a, [(page, page + 1)], [last])).tolist()[0] % page == 0


def test_decode_takes_a_page_only_for_rows_whose_last_page_is_full() -> None:
    a = pool(8)
    slots = got(extend(a, [(0, 4), (0, 2), (0, 1)], [-1, -1, -1]))
    out = got(a.alloc_decode(ints(5, 3, 2), ints(5, 3, 2), slots[[3, 5, 6]])).tolist()
    assert out[1:] == [int(slots[5]) + 1, int(slots[6]) + 1]
    assert out[0] % 4 == 0
    assert a.available_size() == 4 * 4


@pytest.mark.parametrize("need_sort", [False, True])
def test_too_few_pages_gives_none_and_changes_nothing(need_sort: bool) -> None:
    a = pool(3, need_sort=need_sort)
    slots = got(a.alloc(8))
    a.free(slots[4:])
    before = snapshot(a)
    assert a.alloc(12) is None
    assert extend(a, [(0, 9)], [-1]) is None
    assert a.alloc_decode(ints(1, 1, 5), ints(1, 1, 5), ints(-1, -1, int(slots[3]))) is None
    assert snapshot(a) == before


def test_need_sort_keeps_frees_apart_until_an_alloc_needs_them() -> None:
    a = pool(5, 1, need_sort=True)
    slots = got(a.alloc(3))
    a.free(slots[[2, 0]])
    assert got(a.alloc(1)).tolist() == [4]
    assert (a.free_pages.tolist(), sorted(a.release_pages.tolist())) == ([5], [1, 3])
    assert a.available_size() == 3
    assert got(a.alloc(2)).tolist() == [1, 3]
    assert (a.free_pages.tolist(), a.release_pages.tolist()) == ([5], [])


def test_a_free_with_the_first_slot_of_a_page_frees_the_page() -> None:
    a = pool(2)
    slots = got(a.alloc(8))
    a.free(slots[4:6])
    assert a.available_size() == 4


@pytest.mark.parametrize("page", [1, 4])
def test_rows_say_the_same_as_sorting(page: int) -> None:
    frees = []
    for by_rows in (False, True):
        a = pool(9, page, debug=True)
        slots = got(a.alloc(8 * page)).view(2, -1)
        rows = [slots[1, : 2 * page], slots[0, :page], slots[1, :0], slots[0, page : 2 * page + 1]]
        lens = [len(row) for row in rows]
        a.free(torch.cat(rows), **({"row_lens": lens, "swa_lens": [0] * 4} if by_rows else {}))
        frees.append(sorted(a.free_pages.tolist()))
    assert frees[0] == frees[1]


def test_groups_nest_and_lose_nothing() -> None:
    a = pool(6)
    slots = got(a.alloc(24))
    a.free_group_begin()
    a.free(slots[:4])
    a.free_group_begin()
    a.free(slots[8:16], row_lens=[8])
    a.free_group_end()
    assert not a.is_not_in_free_group
    assert (a.available_size(), len(a.free_group)) == (0, 2)
    assert a.alloc(4) is None
    a.free_group_end()
    assert (a.is_not_in_free_group, a.available_size(), a.free_group) == (True, 12, [])
    with pytest.raises(RuntimeError, match="without"):
        a.free_group_end()


@pytest.mark.parametrize("page", [1, 4])
def test_a_page_freed_twice_in_a_group_is_caught_at_the_second_free(page: int) -> None:
    a = pool(4, page)
    slots = got(a.alloc(3 * page))
    a.free_group_begin()
    a.free(slots[:page])
    for rows in (None, [page]):
        with pytest.raises(ValueError, match="free already"):
            a.free(slots[:page], row_lens=rows)
    a.free_group_end()
    assert a.available_size() == 2 * page


def test_a_group_keeps_pages_not_the_callers_memory() -> None:
    a = pool(4, 1)
    row = got(a.alloc(2))
    a.free_group_begin()
    a.free(row)
    row.zero_()
    a.free_group_end()
    assert sorted(a.free_pages.tolist()) == [1, 2, 3, 4]


def test_clear_ends_the_group_and_forgets() -> None:
    a = pool(4)
    slots = got(a.alloc(8))
    state = a.backup_state()
    a.free_group_begin()
    a.free(slots[:4])
    a.clear()
    assert snapshot(a) == snapshot(pool(4))
    with pytest.raises(RuntimeError, match="backup"):
        a.restore_state(state)


@pytest.mark.parametrize("need_sort", [False, True])
def test_restore_takes_back_what_was_handed_out_since(need_sort: bool) -> None:
    a = pool(6, need_sort=need_sort)
    a.free(got(a.alloc(12))[:8])
    before, state = snapshot(a), a.backup_state()
    for _ in range(2):
        assert a.alloc(16) is not None  # with need_sort this merges the released pages
        inner = a.backup_state()
        assert a.alloc(4) is not None
        a.restore_state(inner)
        assert a.available_size() == 4
        a.restore_state(state)
        assert snapshot(a) == before
    with pytest.raises(RuntimeError, match="restored"):
        a.restore_state(inner)


def test_restore_after_a_free_is_refused() -> None:
    a = pool(6)
    slots = got(a.alloc(8))
    for collect in (False, True):
        state = a.backup_state()
        if collect:
            a.free_group_begin()
        a.free(slots[4 * collect : 4 * collect + 4])
        before = snapshot(a)
        with pytest.raises(RuntimeError, match="freed since"):
            a.restore_state(state)
        assert snapshot(a) == before
    with pytest.raises(ValueError, match="another"):
        a.restore_state(pool(2).backup_state())
    with pytest.raises(TypeError, match="backup_state"):
        a.restore_state(None)  # type: ignore[arg-type]


def test_what_alloc_returns_is_the_callers_own() -> None:
    a = pool(4, 1)
    state = a.backup_state()
    got(a.alloc(2)).fill_(99)
    a.restore_state(state)
    assert a.free_pages.tolist() == [1, 2, 3, 4]


ONE, TWO = ints(1), ints(2)
BAD: dict[str, tuple[Callable[[Pool, torch.Tensor], object], type[Exception], str]] = {
    "alloc less than nothing": (lambda a, _: a.alloc(-4), ValueError, "need_size"),
    "alloc part of a page": (lambda a, _: a.alloc(6), ValueError, "need_size"),
    "alloc a float": (lambda a, _: a.alloc(4.0), TypeError, "need_size"),  # type: ignore[arg-type]
    "prefix over seq": (lambda a, _: extend(a, [(2, 1)], [5]), ValueError, "prefix"),
    "negative prefix": (lambda a, _: extend(a, [(-1, 1)], [5]), ValueError, "prefix"),
    "extend sum": (lambda a, _: a.alloc_extend(ONE, ONE, TWO, TWO, ONE, 2), ValueError, "extend_num_tokens"),
    "page count": (lambda a, _: a.alloc_extend(ONE, ONE, TWO, TWO, ints(4), 1, 3), ValueError, "num_new_pages"),
    "row counts": (lambda a, _: a.alloc_extend(ONE, ONE, ints(2, 2), TWO, ints(4), 1), ValueError, "seq_lens"),
    "host row counts": (lambda a, _: a.alloc_extend(ONE, ONE, TWO, ints(2, 2), ints(4), 1), ValueError, "seq_lens_cpu"),
    "device lengths differ": (lambda a, _: a.alloc_extend(ONE, ONE, ints(3), TWO, ints(4), 1), ValueError, "seq_lens"),
    "float last_loc": (lambda a, _: a.alloc_decode(TWO, TWO, torch.ones(1)), TypeError, "last_loc"),
    "meta last_loc": (lambda a, _: a.alloc_decode(TWO, TWO, ONE.to("meta")), ValueError, "last_loc must be on cpu"),
    "decode of nothing": (lambda a, _: a.alloc_decode(ints(0), ints(0), ints(-1)), ValueError, "at least 1"),
    "free a list": (lambda a, _: a.free([4]), TypeError, "free_index"),  # type: ignore[arg-type]
    "free floats": (lambda a, _: a.free(torch.ones(2)), TypeError, "free_index"),
    "free a matrix": (lambda a, s: a.free(s.view(2, -1)), ValueError, "one dimension"),
    "free padding": (lambda a, _: a.free(ints(0)), ValueError, "padding"),
    "free beyond": (lambda a, _: a.free(ints(24)), ValueError, "4..23"),
    "free a negative": (lambda a, _: a.free(ints(-1)), ValueError, "4..23"),
    "free a slot twice": (lambda a, s: a.free(s[[0, 1, 0]]), ValueError, "twice"),
    "free inside a page": (lambda a, s: a.free(s[2:8]), ValueError, "inside page 1"),
    "free what is free": (lambda a, _: a.free(ints(20)), ValueError, "page 5 is free already"),
    "free what is free, by rows": (lambda a, _: a.free(ints(20), row_lens=[1]), ValueError, "free already"),
    "rows that do not sum": (lambda a, s: a.free(s[:4], row_lens=[3]), ValueError, "row_lens"),
    "tails without rows": (lambda a, s: a.free(s[:4], swa_lens=[3]), ValueError, "row_lens"),
    "tail over its row": (lambda a, s: a.free(s[:4], row_lens=[4], swa_lens=[5]), ValueError, "swa_lens"),
}
BAD_IN_DEBUG: dict[str, tuple[Callable[[Pool, torch.Tensor], object], type[Exception], str]] = {
    "last_loc misplaced": (lambda a, s: extend(a, [(1, 2)], [int(s[1])]), ValueError, "offset"),
    "last_loc free": (lambda a, _: extend(a, [(1, 2)], [20]), ValueError, "free already"),
    "decode after a free slot": (lambda a, _: a.alloc_decode(TWO, TWO, ints(20)), ValueError, "free already"),
    "rows inside a page": (lambda a, s: a.free(s[2:6], row_lens=[4]), ValueError, "inside page"),
    "rows out of order": (lambda a, s: a.free(s[[0, 4, 5, 1, 2, 3]], row_lens=[6]), ValueError, "row"),
}


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("name", [*BAD, *BAD_IN_DEBUG])
def test_bad_input_is_named_and_changes_nothing(name: str, debug: bool) -> None:
    if name in BAD_IN_DEBUG and not debug:
        pytest.skip("looked at with debug=True only")
    call, error, message = {**BAD, **BAD_IN_DEBUG}[name]
    a = pool(5, debug=debug)
    slots = got(a.alloc(12))
    before = snapshot(a)
    with pytest.raises(error, match=re.escape(message)):
        call(a, slots)
    assert snapshot(a) == before


@pytest.mark.parametrize(("size", "page"), [(-1, 1), (-4, 4), (3, 4), (8, 0), (8, -1)])
def test_a_pool_of_part_of_a_page_is_refused(size: int, page: int) -> None:
    with pytest.raises(ValueError, match="size"):
        PagedTokenToKVPoolAllocator(size, page, torch.float16, "cpu", None, False)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(
    st.sampled_from([1, 2, 4]),
    st.booleans(),
    st.lists(st.tuples(st.sampled_from("aefgxbr"), st.integers(0, 9)), max_size=30),
)
def test_every_page_is_free_held_or_waiting(page: int, need_sort: bool, steps: list[tuple[str, int]]) -> None:
    """A pool against sets of pages: allocations take only free pages, and everything else gives back what it says."""
    a = pool(7, page, need_sort=need_sort, debug=True)
    free, waiting, rows, depth = set(range(1, 8)), set[int](), list[list[int]](), 0
    backup: tuple[Any, set[int], list[list[int]]] | None = None
    for step, k in steps:
        if step in "ae":
            need = k % 4 + 1
            tokens = need * page - (k % page if step == "e" else 0)
            slots = a.alloc(tokens) if step == "a" else extend(a, [(0, tokens)], [-1])
            assert (slots is None) == (need > len(free))
            if slots is not None:
                row = [s // page for s in slots.tolist()[::page]]
                assert set(row) <= free
                free -= set(row)
                rows.append(row)
        elif step == "f" and rows:
            row = rows.pop(k % len(rows))
            a.free(
                ints(*(p * page + o for p in row for o in range(page))), row_lens=[len(row) * page] * (k % 2) or None
            )
            (waiting if depth else free).update(row)
            backup = None
        elif step == "g":
            a.free_group_begin()
            depth += 1
        elif step == "x" and depth:
            a.free_group_end()
            depth -= 1
            if not depth and waiting:
                free, waiting, backup = free | waiting, set(), None
        elif step == "b":
            backup = (a.backup_state(), set(free), [list(row) for row in rows])
        elif step == "r" and backup:
            a.restore_state(backup[0])
            free, rows = set(backup[1]), [list(row) for row in backup[2]]
        listed = a.free_pages.tolist() + a.release_pages.tolist()
        assert sorted(listed) == sorted(free)
        assert a.available_size() == len(free) * page
        assert sorted(t // page for part in a.free_group for t in part.tolist()) == sorted(waiting)


@pytest.mark.parametrize("page", [1, 4])
def test_free_lists_that_are_set_leave_what_waits_for_the_end_of_a_group(page: int) -> None:
    a = pool(4, page)
    taken = got(a.alloc(4 * page))
    a.free(taken[:page])
    a.free_group_begin()
    a.free(taken[page : 2 * page])
    a.release_pages = a.release_pages
    assert a.available_size() == page
    a.free_group_end()
    assert a.available_size() == 2 * page

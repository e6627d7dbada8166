"""Two pools and their mapping against a page-level model in plain Python, then law by law."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from dispatched import Dispatched
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.engines.ours import swa_mapping

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from impl.allocator import PagedTokenToKVPoolAllocator
from impl.swa_mapping import SWATokenToKVPoolAllocator as SWA

BACKENDS = ["torch", "triton"]


def swa(
    full: int, window: int, page: int = 4, *, need_sort: bool = False, debug: bool = True, backend: str = "torch"
) -> SWA:
    return SWA(full * page, window * page, page, torch.float16, "cpu", None, need_sort, debug=debug, backend=backend)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def got(slots: torch.Tensor | None) -> torch.Tensor:
    assert slots is not None
    return slots


def snapshot(a: SWA) -> tuple[Any, ...]:
    allocator = (a.full_attn_allocator, a.swa_attn_allocator)
    lists = [(p.free_pages.tolist(), p.release_pages.tolist(), p.held.tolist()) for p in allocator]
    group = [t.tolist() for t in a.free_group]
    return lists, a.full_to_swa_index_mapping.tolist(), group, a.is_not_in_free_group


def extend(a: SWA, prefix: int, seq: int, last: int, tail: int | None = None) -> torch.Tensor | None:
    before, after = ints(prefix), ints(seq)
    args = (before, before, after, after, ints(last), seq - prefix)
    return a.alloc_extend(*args) if tail is None else a.alloc_extend_swa_tail(*args, tail)


def decode(a: SWA, lens: list[int], last: list[int]) -> torch.Tensor | None:
    return a.alloc_decode(ints(*lens), ints(*lens), ints(*last))


def mapped(a: SWA, slots: torch.Tensor) -> list[int]:
    return a.translate_loc_from_full_to_swa(slots).tolist()


def holds_the_law(a: SWA) -> None:
    """Free pages map to nothing; the mapping is page to page, keeps the offset, is injective and loses no SWA page."""
    page = a.page_size
    full, window = (
        set(p.free_pages.tolist()) | set(p.release_pages.tolist())
        for p in (a.full_attn_allocator, a.swa_attn_allocator)
    )
    assert a.full_to_swa_index_mapping[-1] == -1
    target: dict[int, int] = {}
    for slot, to in enumerate(a.full_to_swa_index_mapping[:-1].tolist()):
        if to:
            assert to % page == slot % page
            assert slot // page not in full | {0}
            assert target.setdefault(slot // page, to // page) == to // page
    assert len(set(target.values())) == len(target)
    assert set(range(1, a.size_swa // page + 1)) - window == set(target.values())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("page", [1, 2, 4])
def test_any_tail_takes_the_pages_it_touches(page: int, backend: str) -> None:
    for seq in range(1, 11):
        for tail in range(seq + 1):
            a = swa(11, 11, page, backend=backend)
            slots = got(extend(a, 0, seq, -1, tail))
            start = seq - tail
            need = -(-seq // page) - start // page if tail else 0
            assert a.swa_available_size() == (11 - need) * page
            assert mapped(a, slots[:start]) == [0] * start
            assert all(to >= page for to in mapped(a, slots[start:]))
            holds_the_law(a)
            if tail:  # decode goes on in the tail's last page
                slots = torch.cat([slots, got(decode(a, [seq + 1], [int(slots[-1])]))])
                assert mapped(a, slots)[-1] >= page
            a.free(slots, row_lens=[len(slots)], swa_lens=[len(slots) - start if tail else 0])
            assert (a.full_available_size(), a.swa_available_size()) == (11 * page, 11 * page)
            holds_the_law(a)


@pytest.mark.parametrize("need_sort", [False, True])
@pytest.mark.parametrize(("full", "window"), [(2, 6), (6, 2)])
def test_either_pool_short_gives_none_and_changes_neither(full: int, window: int, need_sort: bool) -> None:
    a = swa(full, window, need_sort=need_sort)
    slots = got(extend(a, 0, 4, -1))
    a.free(got(a.alloc(4)))
    pool = a.full_attn_allocator
    pool.free(got(pool.alloc(pool.available_size())))  # with need_sort every free page is now released
    before = snapshot(a)
    last = int(slots[-1])
    for result in (
        a.alloc(8),
        extend(a, 4, 9, last),
        extend(a, 0, 12, -1, 8),
        decode(a, [1, 5], [-1, last]),
    ):
        assert result is None
        assert snapshot(a) == before


def test_a_tail_needs_only_its_own_swa_pages() -> None:
    a = swa(6, 1)
    assert extend(a, 0, 24, -1) is None
    assert extend(a, 0, 24, -1, 5) is None
    assert len(got(extend(a, 0, 24, -1, 4))) == 24


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_trimmed_below_its_tail_grows_into_its_swa_page(backend: str) -> None:
    """The page keeps a token, so it keeps its SWA page; only the entry of a token that is gone names it."""
    a = swa(3, 3, 2, backend=backend)
    slots = got(extend(a, 0, 2, -1, 1))
    home = mapped(a, slots)[1]
    first = slots[:1]  # trimmed to one token: no page becomes free
    again = got(decode(a, [2], [int(first)]))
    assert mapped(a, torch.cat([first, again])) == [0, home]
    more = got(extend(a, 1, 4, int(first)))
    assert mapped(a, more)[0] == home
    holds_the_law(a)
    a.free(torch.cat([first, more]), row_lens=[4], swa_lens=[4])
    assert (a.full_available_size(), a.swa_available_size()) == (6, 6)


@pytest.mark.parametrize("rows", [[3], [2, 1], [-1, 3], []])
def test_lengths_that_are_not_those_of_the_slots_are_refused(rows: list[int]) -> None:
    a = swa(2, 2, 2)
    slots = got(extend(a, 0, 2, -1, 1))
    with pytest.raises(ValueError, match="row_lens must be lengths that sum to len\\(free_index\\) = 2"):
        a.free_swa(slots, row_lens=rows)
    assert a.swa_available_size() == 2
    holds_the_law(a)


@pytest.mark.parametrize("rows", [None, [1]])
def test_the_window_side_of_a_trimmed_page_is_freed_by_the_slots_that_are_left(rows: list[int] | None) -> None:
    for free in (True, False):
        a = swa(2, 2, 2)
        first = got(extend(a, 0, 2, -1, 1))[:1]
        if free:
            a.free(first, row_lens=rows, swa_lens=rows)
        else:
            a.free_swa(first, row_lens=rows)
        assert a.swa_available_size() == 4
        holds_the_law(a)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("page", [2, 4])
def test_tails_trims_and_growth(page: int, backend: str) -> None:
    """A tail starts anywhere in a page, the row is cut anywhere and grows again: what it gains is mapped, what it has
    stays as it was.
    """

    @settings(derandomize=True, deadline=None, max_examples=120 if backend == "torch" else 30)
    @given(
        st.integers(1, 3 * page),
        st.integers(0, 3 * page),
        st.lists(st.tuples(st.sampled_from("ted"), st.integers(0, 2 * page)), max_size=8),
    )
    def run(tokens: int, tail: int, steps: list[tuple[str, int]]) -> None:
        a, tail = swa(12, 12, page, backend=backend), min(tail, tokens)
        row = TailRow(got(extend(a, 0, tokens, -1, tail)).tolist(), tokens - tail, page)
        for step, k in steps:
            if step == "t":
                gone = row.trim(max(len(row.slots) - k, 1))
                if gone:
                    a.free(ints(*gone))
            elif row.has_room(12):
                seq, last = len(row.slots), row.slots[-1]
                grown = extend(a, seq, seq + k, last) if step == "e" else decode(a, [seq + 1], [last])
                row.grow(got(grown).tolist())
            assert [to > 0 for to in mapped(a, ints(*row.slots))] == row.mapped
            holds_the_law(a)
        a.free(ints(*row.slots), row_lens=[len(row.slots)], swa_lens=[row.in_window()])
        assert (a.full_available_size(), a.swa_available_size()) == (12 * page, 12 * page)

    run()


class TailRow:
    """A row, which of its tokens are mapped, and from which page on it has SWA pages."""

    def __init__(self, slots: list[int], start: int, page: int) -> None:
        self.slots, self.page = slots, page
        self.mapped = [token >= start for token in range(len(slots))]
        self.window = start // page if start < len(slots) else self.pages()

    def pages(self) -> int:
        return -(-len(self.slots) // self.page)

    def in_window(self) -> int:
        return max(len(self.slots) - self.window * self.page, 0)

    def has_room(self, pages: int) -> bool:
        whole = len(self.slots) % self.page == 0
        return (whole or self.window < self.pages()) and self.pages() + 2 < pages

    def trim(self, tokens: int) -> list[int]:
        gone = self.slots[-(-tokens // self.page) * self.page :]
        self.slots, self.mapped = self.slots[:tokens], self.mapped[:tokens]
        self.window = min(self.window, self.pages())
        return gone

    def grow(self, slots: list[int]) -> None:
        self.slots, self.mapped = self.slots + slots, self.mapped + [True] * len(slots)


def test_a_recycled_page_forgets_what_it_mapped_to() -> None:
    """PR 25805: the pages before a tail had belonged to a mapped row; freeing them must not reach its SWA pages."""
    a = swa(4, 4)
    a.free(got(extend(a, 0, 16, -1)))
    slots = got(extend(a, 0, 16, -1, 4))
    a.free_swa(slots[:12])
    assert a.swa_available_size() == 12
    a.free(slots)
    assert (a.full_available_size(), a.swa_available_size()) == (16, 16)


@pytest.mark.parametrize("rows", [None, [8]])
def test_window_eviction_then_free(rows: list[int] | None) -> None:
    a = swa(6, 6)
    slots = got(extend(a, 0, 18, -1))
    a.free_swa(slots[:8], row_lens=rows)
    assert (a.full_available_size(), a.swa_available_size()) == (4, 12)
    assert mapped(a, slots[:8]) == [0] * 8
    a.free_swa(slots[:8])  # unmapped pages are skipped
    assert a.swa_available_size() == 12
    a.free(slots, row_lens=rows and [18], swa_lens=rows and [10])
    assert (a.full_available_size(), a.swa_available_size()) == (24, 24)
    holds_the_law(a)


def test_tree_style_frees_of_one_side() -> None:
    a = swa(4, 4)
    slots = got(a.alloc(8))
    a.full_attn_allocator.free(slots)
    assert (a.full_available_size(), a.swa_available_size()) == (16, 8)
    a.free_swa(slots)
    assert a.swa_available_size() == 16
    holds_the_law(a)


@pytest.mark.parametrize("rows", [None, [8]])
def test_a_group_holds_both_sides_back_but_not_free_swa(rows: list[int] | None) -> None:
    a = swa(4, 4)
    slots = got(a.alloc(16))
    a.free_group_begin()
    a.free_group_begin()
    a.free(slots[:8], row_lens=rows, swa_lens=rows)
    a.free_group_end()
    assert a.available_size() == 0
    a.free_swa(slots[4:12])
    assert (a.full_available_size(), a.swa_available_size()) == (0, 8)
    a.free_group_end()
    assert (a.full_available_size(), a.swa_available_size()) == (8, 12)
    holds_the_law(a)


def test_load_back_rebuilds_the_mapping() -> None:
    a = swa(4, 4)
    slots = got(a.alloc(8))
    a.free_swa(slots)
    a.set_full_to_swa_mapping(slots, got(a.swa_attn_allocator.alloc(8)))
    holds_the_law(a)


@pytest.mark.parametrize("need_sort", [False, True])
def test_restore_undoes_both_pools_and_the_mapping(need_sort: bool) -> None:
    a = swa(5, 5, need_sort=need_sort)
    a.free(got(a.alloc(12))[:8])
    before, state = snapshot(a), a.backup_state()
    assert extend(a, 0, 13, -1) is not None
    a.restore_state(state)
    assert snapshot(a) == before
    for free in (a.free, a.free_swa):
        slots, state = got(a.alloc(4)), a.backup_state()
        free(slots)
        after = snapshot(a)
        with pytest.raises(RuntimeError, match="freed since"):
            a.restore_state(state)
        assert snapshot(a) == after


def test_restore_maps_a_partial_page_as_before() -> None:
    """What drafts left in the page that the row keeps is nobody's: evicting the row's own slots is enough."""
    a = swa(5, 5)
    slots = got(extend(a, 0, 6, -1))
    lists, window, state = snapshot(a)[0], mapped(a, slots), a.backup_state()
    got(decode(a, [7], [int(slots[5])]))
    a.restore_state(state)
    got(extend(a, 6, 11, int(slots[5])))
    a.restore_state(state)
    assert snapshot(a)[0] == lists
    assert mapped(a, slots) == window
    holds_the_law(a)
    a.free_swa(slots)
    assert a.swa_available_size() == 20
    holds_the_law(a)


def test_mapping_anew_ends_backups() -> None:
    a = swa(4, 4)
    slots = got(a.alloc(4))
    a.free_swa(slots)
    state = a.backup_state()
    a.set_full_to_swa_mapping(slots, got(a.swa_attn_allocator.alloc(4)))
    with pytest.raises(RuntimeError, match="backup"):
        a.restore_state(state)
    holds_the_law(a)


SYNCS = {"_local_scalar_dense", "nonzero", "_unique2", "unique_dim", "unique_consecutive", "masked_select", "equal"}


class NoSync(Dispatched):
    """What a CUDA host would wait for: reading a value, or a result whose size depends on values."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func._schema.name.removeprefix("aten::") not in SYNCS, func
        if "index" in func._schema.name and len(args) > 1 and isinstance(args[1], list):
            assert all(i is None or i.dtype != torch.bool for i in args[1]), func
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("page", [1, 4])
@pytest.mark.parametrize("need_sort", [False, True])
def test_no_transition_waits_for_the_device(page: int, need_sort: bool) -> None:
    """As on CUDA without debug: nothing is looked at, and rows of known length are freed without a wait."""
    a = swa(12, 12, page, need_sort=need_sort, debug=False)
    for part in (a, a.full_attn_allocator, a.swa_attn_allocator):
        part._check_content = False
    with NoSync():  # type: ignore[no-untyped-call]
        slots = got(a.alloc(2 * page))
        state = a.backup_state()
        row = got(extend(a, 0, page + 1, -1))
        a.restore_state(state)
        row = got(extend(a, 0, page + 1, -1))
        row = torch.cat([row, got(a.alloc_decode(ints(page + 2), ints(page + 2), row[-1:]))])
        none, lens = ints(0, 0), ints(1, page)
        pair = got(a.alloc_extend(none, none, lens, lens, none - 1, page + 1))
        a.free(pair, row_lens=[1, page], swa_lens=[1, page])
        tail = got(extend(a, 0, 3 * page, -1, page + 1))
        a.free_swa(row[:page], row_lens=[page])
        a.free_group_begin()
        a.free(slots, row_lens=[2 * page], swa_lens=[2 * page])
        a.free(torch.cat([row, tail]), row_lens=[page + 2, 3 * page], swa_lens=[2, page + 1])
        a.free_group_end()
        slots = got(a.alloc(12 * page))
    assert sorted(mapped(a, slots)) == list(range(page, 13 * page))
    with pytest.raises(AssertionError, match="aten"), NoSync():  # type: ignore[no-untyped-call]
        a.free(slots)  # rows unknown: here the host does wait


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_cuda_nothing_waits_and_both_backends_agree() -> None:
    results = []
    for backend in BACKENDS:
        a = SWA(64, 64, 4, torch.float16, "cuda", None, False, backend=backend)
        host = torch.tensor([7])
        lens, none, last = (t.cuda() for t in (host, torch.tensor([0]), torch.tensor([-1])))
        torch.cuda.set_sync_debug_mode("error")
        try:
            slots = got(a.alloc_extend(none, host - 7, lens, host, last, 7))
            out = got(a.alloc_decode(lens + 1, host + 1, slots[-1:]))
            a.free(torch.cat([slots, out]), row_lens=[8], swa_lens=[8])
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert a.available_size() == 64
        assert not a.full_to_swa_index_mapping[:-1].any()
        results.append(torch.cat([slots, out]).cpu())
    assert torch.equal(*results)


def test_clear_and_the_padding_entries() -> None:
    a = swa(4, 4)
    fresh = snapshot(a)
    a.free_group_begin()
    a.free(got(a.alloc(8)))
    a.clear()
    assert snapshot(a) == fresh
    assert mapped(a, ints(-1, 0, 5)) == [-1, 0, 0]
    assert "swa" in a.debug_print()


def test_the_pool_behind_learns_the_mapping() -> None:
    class Cache:
        full_kv_pool, swa_kv_pool = "full", "swa"
        mapping: torch.Tensor

        def register_mapping(self, mapping: torch.Tensor) -> None:
            self.mapping = mapping

    cache = Cache()
    a = SWA(8, 8, 4, torch.float16, "cpu", cache, False)
    assert cache.mapping is a.full_to_swa_index_mapping
    assert (a.get_kvcache(), a.swa_attn_allocator.get_kvcache()) == (cache, "swa")


BAD: dict[str, tuple[Callable[[SWA, torch.Tensor], object], str]] = {
    "tail too long": (lambda a, _: extend(a, 0, 4, -1, 5), "swa_tail_len"),
    "tail negative": (lambda a, _: extend(a, 0, 4, -1, -1), "swa_tail_len"),
    "tail inside a page": (lambda a, s: extend(a, 1, 4, int(s[0]), 2), "whole pages"),
    "tail of two rows": (
        lambda a, _: a.alloc_extend_swa_tail(
            ints(0, 0), ints(0, 0), ints(1, 1), ints(1, 1), ints(-1, -1), 2, swa_tail_len=1
        ),
        "one row",
    ),
    "alloc part of a page": (lambda a, _: a.alloc(3), "need_size"),
    "free padding": (lambda a, _: a.free_swa(ints(1)), "padding"),
    "free_swa twice a slot": (lambda a, s: a.free_swa(s[[0, 0]]), "twice"),
    "free_swa beyond": (lambda a, _: a.free_swa(ints(999)), "4..23"),
    "mapping lengths": (lambda a, s: a.set_full_to_swa_mapping(s[:2], s[:1]), "swa_indices"),
    "mapping offset": (lambda a, s: a.set_full_to_swa_mapping(s[:1], s[1:2]), "offset"),
    "mapping to padding": (lambda a, s: a.set_full_to_swa_mapping(s[:1], ints(0)), "padding"),
    "free inside a page": (lambda a, s: a.free(s[1:4]), "inside page"),
    "free twice": (lambda a, _: a.free(ints(20)), "free already"),
    "window page torn": (lambda a, s: a.free_swa(s[1:4]), "still mapped"),
    "rows promise too much": (lambda a, s: a.free_swa(s[4:8], row_lens=[4]), "promises"),
    "tails promise too much": (lambda a, s: a.free(s[:8], row_lens=[8], swa_lens=[8]), "swa_lens"),
    "tails promise too little": (lambda a, s: a.free(s[:8], row_lens=[8], swa_lens=[0]), "swa_lens"),
    "extend a page without SWA": (lambda a, s: extend(a, 7, 8, int(s[6])), "lost its SWA page"),
    "decode in a page without SWA": (lambda a, s: decode(a, [8], [int(s[6])]), "lost its SWA page"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named_and_changes_nothing(name: str) -> None:
    a = swa(5, 5)
    slots = got(a.alloc(12))
    a.free_swa(slots[4:8])
    before = snapshot(a)
    call, message = BAD[name]
    with pytest.raises(ValueError, match=re.escape(message)):
        call(a, slots)
    assert snapshot(a) == before


@pytest.mark.parametrize(
    ("size", "page", "need_sort", "debug", "message"),
    [
        (16, 4, False, True, "size 20, got 16"),
        (20, 2, False, True, "page_size 4, got 2"),
        (20, 4, True, True, "need_sort False, got True"),
        (20, 4, False, False, "debug True, got False"),
    ],
)
@pytest.mark.parametrize("name", ["full_attn_allocator", "swa_attn_allocator"])
def test_a_pool_that_does_not_fit_is_named(
    name: str, size: int, page: int, need_sort: bool, debug: bool, message: str
) -> None:
    pool = PagedTokenToKVPoolAllocator(size, page, torch.float16, "cpu", None, need_sort, debug=debug)
    part: dict[str, Any] = {name: pool}
    with pytest.raises(ValueError, match=f"{name} must have {message}"):
        SWA(20, 20, 4, torch.float16, "cpu", None, False, debug=True, **part)


def test_given_pools_are_those_that_are_used() -> None:
    full, window = (PagedTokenToKVPoolAllocator(20, 4, torch.float16, "cpu", None, False) for _ in range(2))
    a = SWA(20, 20, 4, torch.float16, "cpu", None, False, full_attn_allocator=full, swa_attn_allocator=window)
    got(a.alloc(8))
    assert (full.available_size(), window.available_size()) == (12, 12)


def test_a_window_without_a_page_is_refused() -> None:
    with pytest.raises(ValueError, match="size_swa"):
        SWA(8, 2, 4, torch.float16, "cpu", None, False)


class Row:
    def __init__(self, slots: list[int], cursor: int) -> None:
        self.slots, self.cursor = slots, cursor


@settings(derandomize=True, deadline=None, max_examples=150)
@given(
    st.sampled_from([1, 2, 4]),
    st.booleans(),
    st.lists(st.tuples(st.sampled_from("ntedwfFgxbr"), st.integers(0, 11)), max_size=25),
)
def test_rows_of_requests_keep_the_law(page: int, need_sort: bool, steps: list[tuple[str, int]]) -> None:
    """Requests come (whole or with a tail), grow, decode, lose their window and leave; groups open and close."""
    a, rows, depth = swa(9, 7, page, need_sort=need_sort), list[Row](), 0
    backup: tuple[Any, Any, list[Row]] | None = None
    for step, k in steps:
        row = rows[k % len(rows)] if rows else None
        if step in "nt":
            tail = None if step == "n" else k % 5 % (k + 2)
            slots = extend(a, 0, k + 1, -1, tail)
            if slots is not None:
                rows.append(Row(slots.tolist(), 0 if tail is None else k + 1 - tail))
        elif step in "ed" and row and (row.cursor < len(row.slots) or len(row.slots) % page == 0):
            seq = len(row.slots)
            more = extend(a, seq, seq + k, row.slots[-1]) if step == "e" else decode(a, [seq + 1], [row.slots[-1]])
            row.slots += [] if more is None else more.tolist()
        elif step == "w" and row:
            cursor = max(row.cursor, (len(row.slots) - k) // page * page)
            a.free_swa(ints(*row.slots[row.cursor : cursor]))
            backup = backup if cursor == row.cursor else None
            row.cursor = cursor
        elif step in "fF" and row:
            rows.remove(row)
            known = {"row_lens": [len(row.slots)], "swa_lens": [len(row.slots) - row.cursor]} if step == "F" else {}
            a.free(ints(*row.slots), **known)
            backup = None
        elif step == "g":
            a.free_group_begin()
            depth += 1
        elif step == "x" and depth:
            backup = None if a.free_group else backup
            a.free_group_end()
            depth -= 1
        elif step == "b":
            kept = [Row(list(live.slots), live.cursor) for live in rows]
            backup = (a.backup_state(), snapshot(a), kept)
        elif step == "r" and backup and backup[1][3] == a.is_not_in_free_group:
            a.restore_state(backup[0])
            assert (snapshot(a)[0], snapshot(a)[2:]) == (backup[1][0], backup[1][2:])
            rows = [Row(list(live.slots), live.cursor) for live in backup[2]]
        holds_the_law(a)
        for live in rows:
            assert all(to == 0 for to in mapped(a, ints(*live.slots[: live.cursor])))
            assert all(to > 0 for to in mapped(a, ints(*live.slots[live.cursor :])))
    for _ in range(depth):
        a.free_group_end()
    for live in rows:
        a.free(ints(*live.slots))
    assert (a.full_available_size(), a.swa_available_size()) == (9 * page, 7 * page)


# Segments, and full pages alone.


@pytest.mark.parametrize("page", [1, 2, 4])
def test_segments_are_freed_as_their_slots_are(page: int) -> None:
    one, other = (
        swa_mapping.swa_mapping({"page_size": page, "size": 6, "size_swa": 6, "need_sort": False}) for _ in "ab"
    )
    a, b = one.engine, other.engine
    rows = [made.alloc(4 * page) for made in (a, b)]
    a.free_swa_segment(rows[0][: 2 * page], start_pos=0)
    b.free_swa(rows[1][: 2 * page])
    a.free_full(rows[0][: 2 * page])
    b.full_attn_allocator.free(rows[1][: 2 * page])
    assert one.snapshot() == other.snapshot()
    a.free_segments([(rows[0][2 * page : 3 * page], 2 * page), (rows[0][3 * page : 3 * page + 1], 3 * page)])
    b.free(rows[1][2 * page : 3 * page])
    b.free(rows[1][3 * page : 3 * page + 1])
    assert sorted(one.snapshot().full.free) == sorted(other.snapshot().full.free) == [1, 2, 3, 4, 5, 6]
    assert sorted(one.snapshot().swa.free) == sorted(other.snapshot().swa.free) == [1, 2, 3, 4, 5, 6]
    assert not any(one.snapshot().mapping)


def test_what_segments_and_full_pages_refuse() -> None:
    engine = swa_mapping.swa_mapping({"page_size": 2, "size": 4, "size_swa": 4, "need_sort": False})
    a = engine.engine
    slots = a.alloc(4)
    before = engine.snapshot()
    for call in (a.free_segment, a.free_swa_segment):
        with pytest.raises(ValueError, match="start_pos"):
            call(slots[:2], start_pos=1)
    with pytest.raises(ValueError, match="still has its SWA page"):
        a.free_full(slots[:2])
    assert engine.snapshot() == before
    a.free_segment(ints(), start_pos=0)
    a.free_full(ints())
    assert engine.snapshot() == before
    a.free_group_begin()
    a.free_swa(slots[:2])
    a.free_full(slots[:2])
    assert engine.snapshot().full.available == 4
    a.free_group_end()
    assert engine.snapshot().full.available == 6


def test_pages_are_moved_to_as_many_slots() -> None:
    a = swa(4, 4)
    given, kept = got(a.alloc(4)), got(a.alloc(8))
    a.free_swa(kept)
    before = snapshot(a)
    with pytest.raises(ValueError, match="kept"):
        a.move_swa(given, kept)
    assert snapshot(a) == before

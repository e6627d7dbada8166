"""What a caller may hand to request rows, what looking finds, and that nothing waits for the device."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_impl_session_trim import full_again, new, one, seen
from test_impl_swa_mapping import NoSync, got, ints
from torch import Tensor

from impl.allocator import PagedTokenToKVPoolAllocator
from impl.host import numbers
from impl.session_trim import LENGTHS, RequestRows

# Errors.

Call = Callable[[RequestRows], object]
# Row 0 runs with 9 tokens (8 of them given back by the window, 4 the tree's) and 3 reserved, row 1 is of session "s"
# and runs with 5, row 2 is saved in the slot of "t" with 6 tokens of 8, row 3 is leaving with 2, row 4 is idle.
BAD: dict[str, tuple[Call, str]] = {
    "no such row": (lambda r: r.decode([1, 5]), "rows[1]: expected a row in 0..4, got 5"),
    "a row below none": (lambda r: r.finish([-1]), "rows[0]: expected a row in 0..4, got -1"),
    "a row twice": (lambda r: r.extend([1, 1], [6, 7]), "rows must be different rows, got [1, 1]"),
    "an idle row": (lambda r: r.slide([1, 4]), "rows[1]: expected a row that is running, it is idle, got 4"),
    "a row in a slot": (lambda r: r.reserve([2], [9]), "expected a row that is running, it is saved"),
    "released while it runs": (lambda r: r.release([3, 1]), "rows[1]: expected a row that is leaving, it is running"),
    "one length for two rows": (lambda r: r.commit([0, 1], [9]), "to must have 2 entries"),
    "shrinking": (lambda r: r.extend([1], [4]), "to[0]: expected a length from 5 to 48"),
    "too long": (lambda r: r.reserve([1, 0], [49, 12]), "to[0]: expected a length from 5 to 48"),
    "a tail would be overwritten": (lambda r: r.extend([1, 0], [6, 13]), "rows[1]: expected a row with nothing alloc"),
    "a tail is not computed": (lambda r: r.decode([0]), "allocated 12, committed 9"),
    "uncommitted": (lambda r: r.commit([0], [8]), "to[0]: expected a length from 9 to 12"),
    "never allocated": (lambda r: r.commit([0], [13]), "to[0]: expected a length from 9 to 12"),
    "the window goes back": (lambda r: r.slide_to([0], [4]), "to[0]: expected a length from 8 to 8"),
    "the window is given back": (lambda r: r.slide_to([1], [8]), "to[0]: expected a length from 0 to 4"),
    "half a page slides": (lambda r: r.slide_to([1], [3]), "to[0]: expected whole pages of 4, got 3"),
    "half a page is donated": (lambda r: r.donate(0, 6), "upto[0]: expected whole pages of 4, got 6"),
    "the tree's part is donated": (lambda r: r.donate(0, 0), "upto[0]: expected a length from 4 to 8"),
    "a partial page is donated": (lambda r: r.donate(1, 8), "upto[0]: expected a length from 0 to 4"),
    "a copy is half a page": (lambda r: r.dedupe(1, ints(4, 5), 4), "tree_slots: the number of slots"),
    "a copy is too short": (lambda r: r.dedupe(1, ints(), 4), "tree_slots must be 4 slots"),
    "a copy is free": (lambda r: r.dedupe(1, ints(44, 45, 46, 47), 4), "page 11 is free already"),
    "a copy is the row's": (lambda r: r.dedupe(1, r.req_to_token[1, :4], 4), "tree_slots must be the tree's"),
    "a copy is out of order": (lambda r: r.dedupe(1, ints(5, 4, 6, 7), 4), "each page in order"),
    "a prefix is half a page": (lambda r: r.admit([ints(), ints(4)]), "prefixes[1]: the number of slots"),
    "a prefix is free": (lambda r: r.admit([ints(44, 45, 46, 47)]), "prefixes[0]: page 11 is free already"),
    "sessions are missing": (lambda r: r.admit([ints()], []), "sessions must be as many as prefixes, 1"),
    "a session has a row": (lambda r: r.admit([ints()], ["s"]), "sessions[0]: expected a session without a row"),
    "a session twice": (lambda r: r.admit([ints()] * 2, ["x", "x"]), "sessions must be different"),
    "no session's turn": (lambda r: r.save([1, 0], [5, 9]), "rows[1]: expected a turn of a session"),
    "less than the tree's part": (lambda r: r.restore(["t"], [3]), "prefix[0]: expected a length from 4 to 6"),
    "more than is computed": (lambda r: r.restore(["t"], [7]), "prefix[0]: expected a length from 4 to 6"),
    "a slot's tail": (lambda r: r.resume(["t"], [9]), "sessions[0]: expected a row with nothing allocated beyond"),
    "a session that runs": (lambda r: r.close(["t", "s"]), "sessions[1]: expected a session whose slot holds a row"),
    "no such session": (lambda r: r.restore(["u"], [1]), "got 'u'"),
}


def crowd(debug: bool = True) -> RequestRows:
    r = new(4, window=1, rows=5, debug=debug)
    one(r, 9)
    r.donate(0, 4)
    r.slide_to([0], [8])
    got(r.reserve([0], [12]))
    one(r, 5, "s")
    one(r, 6, "t")
    r.donate(2, 4)
    got(r.reserve([2], [8]))
    r.save([2], [8])
    one(r, 2)
    r.finish([3])
    return r


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named_and_changes_nothing(name: str) -> None:
    r, (call, message) = crowd(), BAD[name]
    before = seen(r)
    with pytest.raises(ValueError, match=re.escape(message)):
        call(r)
    assert seen(r) == before


def test_what_is_no_number_is_a_type_error() -> None:
    r = crowd()
    before = seen(r)
    floats: Any = [5.5]
    wrong: list[Call] = [lambda r: r.extend([1], floats), lambda r: r.finish([True]), lambda r: r.close("t")]
    for call in wrong:
        with pytest.raises(TypeError, match=r"^(to|rows|sessions) must"):
            call(r)
    assert seen(r) == before


@pytest.mark.parametrize("name", LENGTHS)
def test_debug_finds_a_length_that_was_changed_from_outside(name: str) -> None:
    r = crowd()
    r.check()
    getattr(r, name)[2] -= 5
    with pytest.raises(AssertionError, match="row 2"):
        r.check()


# Waiting.


def a_day(r: RequestRows, prefix: Tensor) -> None:
    rows = r.admit([prefix, prefix[:0]], ["a", None]) or []
    page = r.page_size
    got(r.extend(rows, torch.tensor([4 * page, 6 * page])))
    got(r.decode(rows))
    got(r.reserve(rows, [6 * page + 2, 7 * page]))
    r.commit(rows, [6 * page, 7 * page])
    r.slide(rows)
    r.save(rows[:1], [5 * page])
    r.restore(["a"], [5 * page - 1])
    r.resume(["a"], [6 * page])
    given = r.donate(rows[1], 2 * page)
    r.finish(rows)
    r.dedupe(rows[0], given[page:], 2 * page)
    r.release(rows)
    r.allocator.free(torch.cat([prefix, given]), row_lens=[page, 2 * page], swa_lens=[page, 0])


@pytest.mark.parametrize("page", [2, 4])
def test_nothing_waits_for_the_device(page: int) -> None:
    """As on CUDA without debug: no value of a device tensor is read."""
    r = new(page, full=32, swa=32, debug=False)
    pools = (r.pools, r.pools.full_attn_allocator, r.pools.swa_attn_allocator)
    for part in (r, *pools):
        part._check_content = False
    with NoSync():  # type: ignore[no-untyped-call]
        a_day(r, got(r.pools.alloc(page)))
    assert full_again(r)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_cuda_nothing_waits() -> None:
    r = new(4, full=32, swa=32, debug=False, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        a_day(r, got(r.pools.alloc(4)))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert full_again(r)
    assert not r.pools.full_to_swa_index_mapping[:-1].any()


def test_looking_finds_two_rows_with_one_swa_page() -> None:
    r = new(4)
    first, second = one(r, 4), one(r, 4)
    mapping, slots = r.pools.full_to_swa_index_mapping, r.req_to_token
    mapping[slots[second, :4].long()] = mapping[slots[first, :4].long()]
    with pytest.raises(AssertionError, match="SWA pages that rows own, and of different ones"):
        r.check()


def test_rows_over_one_pool_hold_no_swa_slots() -> None:
    pool = PagedTokenToKVPoolAllocator(16, 4, torch.float16, "cpu", None, False, debug=True)
    r = RequestRows(pool, 2, 16, 3, "cpu")
    one(r, 5)
    assert r.session_held_swa_tokens() == 0


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_numbers_of_a_caller_become_64_bit_numbers(dtype: torch.dtype) -> None:
    found = numbers("rows", torch.tensor([3, 1], dtype=dtype))
    assert (found.tolist(), found.dtype) == ([3, 1], torch.int64)

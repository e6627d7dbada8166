"""What a device does in one launch leaves every table as plain torch leaves it: frees of rows, windows and trims."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from impl.allocator import PagedTokenToKVPoolAllocator, SlotAllocator, TokenToKVPoolAllocator
from impl.rows import RUNNING, SAVED
from impl.session_trim import RequestRows
from impl.swa_mapping import SWATokenToKVPoolAllocator

pytest.importorskip("triton")

SIZE, WINDOW, MOST = 160, 4, 40
ACTIONS = ("admit", "extend", "reserve", "decode", "slide", "roll back", "save", "close", "release")


def pools(page: int, windowed: bool, need_sort: bool, *, fused: bool) -> Any:
    """Pools on a CPU that check nothing, as on a device. ``fused``: with Triton's interpreter."""
    common: tuple[Any, ...] = (torch.bfloat16, "cpu", None, need_sort)
    backend = "triton" if fused else "torch"
    made: SlotAllocator
    if windowed:
        made = SWATokenToKVPoolAllocator(SIZE, SIZE, page, *common, backend=backend)
    elif page == 1:
        made = TokenToKVPoolAllocator(SIZE, *common, backend=backend)
    else:
        made = PagedTokenToKVPoolAllocator(SIZE, page, *common, backend=backend)
    for pool in each_pool(made):
        pool._check_content, pool.fused = False, fused
    made._check_content = False
    made.clear()
    return made


def each_pool(made: Any) -> list[Any]:
    return [made.full_attn_allocator, made.swa_attn_allocator] if made.windowed else [made]


def tables(made: Any, rows: RequestRows) -> list[Any]:
    """All that is on the device, in the order in which it will be handed out."""
    free = [pool.all_free().tolist() for pool in each_pool(made)]
    mapping = made.full_to_swa_index_mapping
    return [free, None if mapping is None else mapping.tolist(), rows.lengths.tolist(), rows.token_slots.table.tolist()]


@pytest.mark.parametrize("need_sort", [False, True])
@pytest.mark.parametrize(("page", "windowed"), [(1, True), (4, True), (8, True), (1, False), (4, False)])
def test_rows_of_requests(page: int, windowed: bool, need_sort: bool) -> None:
    both = [pools(page, windowed, need_sort, fused=fused) for fused in (False, True)]
    assert [made.frees_in_one_launch for made in both] == [False, True]
    rows = [RequestRows(made, 4, MOST, WINDOW if windowed else 0, "cpu") for made in both]
    draws, done, wanted = random.Random(page), set(), {*ACTIONS} - (set() if windowed else {"slide"})
    for step in range(500):
        run = [row for row in range(4) if int(rows[0].phase[row]) == RUNNING]
        some = draws.sample(run, draws.randint(1, len(run))) if run else []
        action, more = draws.choice(ACTIONS), draws.randint(1, 16)
        did = [act(one, action, some, more, f"session {step}") for one in rows]
        done |= {action} if all(did) else set()
        assert tables(both[0], rows[0]) == tables(both[1], rows[1]), action
        both[1].check_frees()
        if step > 100 and done == wanted:
            return
    assert done == wanted


def act(one: RequestRows, action: str, some: list[int], more: int, session: str) -> bool:
    """Calls what can be called now; True if anything was."""
    committed, allocated = (one.lengths[at, some].tolist() for at in (2, 3))
    saved = [name for name, row in one.slot.items() if one.phase[row] == SAVED]
    if action == "admit" and one.available_size():
        started = one.admit([torch.zeros(0, dtype=torch.int64)], [session])
        return started is not None and one.extend(started, [more]) is not None
    if action == "close" and saved:
        one.close(saved[:2])
        return True
    if not some or action in ("admit", "close"):
        return False
    if action == "reserve":
        return one.reserve(some, [min(n + more, MOST) for n in allocated]) is not None
    if action == "extend":
        return committed == allocated and one.extend(some, [min(n + more, MOST) for n in allocated]) is not None
    if action == "decode":
        return committed == allocated and max(allocated) < MOST and one.decode(some) is not None
    if action == "slide":
        return bool(one.window) and bool(one.slide(some).any())
    if action == "roll back":
        one.roll_back(some, committed)
    elif action == "save":
        one.save(some, [max(n - more % 2, 1) for n in committed])
    elif action == "release":
        one.finish(some)
        one.release(some)
    return True


def test_more_than_was_handed_out_is_refused_and_nothing_changes() -> None:
    made = pools(4, windowed=True, need_sort=False, fused=True)
    slots = made.alloc(8)
    before = [pool.all_free().tolist() for pool in each_pool(made)], made.full_to_swa_index_mapping.tolist()
    with pytest.raises(ValueError, match="more pages freed than were handed out"):
        made.free(torch.cat([slots, slots]), row_lens=[8, 8], swa_lens=[0, 0])
    made.swa_attn_allocator.clear()
    with pytest.raises(RuntimeError, match="more given back than were handed out"):
        made.free(slots, row_lens=[8], swa_lens=[8])
    assert before[1] == made.full_to_swa_index_mapping.tolist()
    assert before[0][0] == made.full_attn_allocator.all_free().tolist()


def test_what_is_freed_in_an_open_group_waits() -> None:
    made = pools(1, windowed=False, need_sort=False, fused=True)
    slots = made.alloc(3)
    made.free_group_begin()
    made.free(slots, row_lens=[3])
    assert made.available_size() == SIZE - 3
    made.free_group_end()
    assert made.available_size() == SIZE


def granted(slots: torch.Tensor | None) -> torch.Tensor:
    assert slots is not None
    return slots


def free_rows(made: Any, slots: torch.Tensor) -> None:
    made.free(slots, row_lens=[len(slots)], swa_lens=[len(slots)])


def free_in_a_group(made: Any, slots: torch.Tensor) -> None:
    made.free_group_begin()
    free_rows(made, slots)
    made.free_group_end()


FREES = {"by rows": free_rows, "unsorted": lambda made, slots: made.free(slots), "in a group": free_in_a_group}


@pytest.mark.parametrize("need_sort", [False, True])
@pytest.mark.parametrize("again", FREES)
@pytest.mark.parametrize("first", FREES)
@pytest.mark.parametrize(("page", "windowed"), [(1, True), (4, True), (1, False), (4, False)])
def test_what_is_freed_twice_is_found_on_the_device(
    page: int, windowed: bool, first: str, again: str, need_sort: bool
) -> None:
    """Slots of a second row are handed out, so no number of pages tells."""
    made = pools(page, windowed, need_sort, fused=True)
    slots, others = granted(made.alloc(8 * page)), granted(made.alloc(8 * page))
    FREES[first](made, slots[: 2 * page])
    FREES[first](made, others[: 4 * page])
    made.check_frees()
    FREES[again](made, slots[page : 3 * page])
    made.merge_and_sort_free()
    with pytest.raises(RuntimeError, match="free already"):
        made.check_frees()
    if page > 1:
        with pytest.raises(RuntimeError, match="free already"):
            made.free(others[4 * page :])  # it waits for the device, so it asks
    made.clear()
    made.check_frees()


@pytest.mark.parametrize("page", [1, 4])
def test_a_page_that_is_in_two_rows_of_one_free_is_found_on_the_device(page: int) -> None:
    made = pools(page, windowed=True, need_sort=False, fused=True)
    slots = granted(made.alloc(8 * page))
    made.free(torch.cat([slots[:page], slots[:page]]), row_lens=[page, page], swa_lens=[page, page])
    with pytest.raises(RuntimeError, match=r"full pages: .* 1$"):
        made.check_frees()


@pytest.mark.parametrize("page", [1, 4])
def test_a_window_that_is_freed_twice_is_found_on_the_device(page: int) -> None:
    made = pools(page, windowed=True, need_sort=False, fused=True)
    slots = granted(made.alloc(8 * page))
    made.free_swa(slots[: 2 * page], row_lens=[2 * page])
    made.check_frees()
    made.free_swa(slots[page : 3 * page], row_lens=[2 * page])
    with pytest.raises(RuntimeError, match=r"SWA pages: .* 1$"):
        made.check_frees()


def test_pages_that_come_back_otherwise_are_not_taken_for_freed_ones() -> None:
    """A backup that is restored, free pages that a subclass sets, pages that are taken and freed again and again."""
    made = pools(1, windowed=False, need_sort=False, fused=True)
    kept = made.backup_state()
    slots = granted(made.alloc(5))
    made.restore_state(kept)
    made.free(granted(made.alloc(5)))
    made.free_pages = made.free_pages.flip(0)[:-3]
    made._serial = (1 << 31) - 3  # frees are numbered from the start again
    for _ in range(3):
        slots = granted(made.alloc(40))
        made.free(slots.flip(0))
    made.check_frees()
    with pytest.raises(RuntimeError):
        made.free(made.free_pages[-2:].clone()), made.check_frees()

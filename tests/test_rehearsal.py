"""A rehearsed allocation: the allocator's own answer, on a copy."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conformance.engines.sglang.driving import rehearsal


class Pool:
    """An allocator of slots: ``alloc_extend`` fails where no page is free, as a kernel that reads an empty list."""

    page_size = 2

    def __init__(self, pages: int) -> None:
        self.free_pages = torch.arange(1, pages + 1)

    def alloc(self, pages: int) -> Any:
        """So many pages, or ``None``."""
        if pages > len(self.free_pages):
            return None
        taken, self.free_pages = self.free_pages[:pages], self.free_pages[pages:]
        return taken

    def alloc_extend(self, pages: int) -> Any:
        """As ``alloc``, but the first free page is read in any case."""
        self.free_pages[0].item()
        return self.alloc(pages)


@pytest.mark.parametrize(("pages", "room"), [(1, True), (2, True), (3, False)])
def test_the_copy_answers_and_the_allocator_keeps_its_pages(pages: int, room: bool) -> None:
    pool = Pool(2)
    assert rehearsal.granted(pool, lambda: pool.alloc(pages), fragile=False) is room
    assert pool.free_pages.tolist() == [1, 2]
    assert "alloc" not in vars(pool), "its own calls are back"


def test_code_after_the_allocation_does_not_run() -> None:
    pool, written = Pool(2), list[int]()

    def call() -> None:
        written.extend(pool.alloc(1).tolist())

    assert rehearsal.granted(pool, call, fragile=False)
    assert not written


def test_an_empty_list_is_no_room_and_other_errors_stay_errors() -> None:
    empty = Pool(0)
    assert not rehearsal.granted(empty, lambda: empty.alloc_extend(0), fragile=False)
    with pytest.raises(ZeroDivisionError):
        rehearsal.granted(Pool(1), lambda: 1 // 0, fragile=False)


def test_a_fragile_call_is_not_made() -> None:
    pool = Pool(0)
    pool.free_pages = torch.zeros(0, dtype=torch.int64)
    assert not rehearsal.granted(pool, lambda: pool.alloc_extend(0), fragile=True)

"""The worked example of an engine: a paged allocator in plain Python, for the stem ``allocator`` alone.

Write such a class for your engine, register it under a name, and run ``slotproof check NAME``. CONTRIBUTING.md says
how, see "Add an engine".
"""

from __future__ import annotations

from collections.abc import Sequence

from conformance.driver.protocol import Json
from conformance.engines.registry import SimplePlugin
from conformance.stems.allocator.protocol import AllocatorSnapshot


class ToyAllocator:
    """One free list of pages. With ``leaks`` it has a bug: a free of several pages forgets the last of them."""

    fragile = False
    lacks = ("alloc", "begin_group", "end_group", "backup", "restore", "bad")

    def __init__(self, pages: int, page_size: int, leaks: bool = False) -> None:
        self.pages, self.page_size, self.leaks = pages, page_size, leaks
        self.clear()

    def extend(self, before: Sequence[int], after: Sequence[int], last: Sequence[int]) -> list[int] | None:
        """Slots for rows that grow, ``None`` if out of memory. A row fills its last page before it takes a new one."""
        size = self.page_size
        if sum(-(-b // size) - -(-a // size) for a, b in zip(before, after, strict=True)) > len(self.free_pages):
            return None
        slots: list[int] = []
        for first, end, previous in zip(before, after, last, strict=True):
            slot = previous
            for position in range(first, end):
                slot = slot + 1 if position % size else self.free_pages.pop(0) * size
                slots.append(slot)
        return slots

    def decode(self, after: Sequence[int], last: Sequence[int]) -> list[int] | None:
        """One slot for each row, ``None`` if out of memory."""
        return self.extend([n - 1 for n in after], after, last)

    def free(self, slots: Sequence[int]) -> None:
        """Puts the pages of these slots on the free list."""
        pages = list(dict.fromkeys(slot // self.page_size for slot in slots))
        self.free_pages += pages[:-1] if self.leaks and len(pages) > 1 else pages

    def clear(self) -> None:
        """Puts every page on the free list. Page 0 is padding and never there."""
        self.free_pages = list(range(1, self.pages + 1))

    def snapshot(self) -> AllocatorSnapshot:
        """The free list, an empty release list, and the available size in tokens."""
        return AllocatorSnapshot(list(self.free_pages), [], len(self.free_pages) * self.page_size)


def allocator(config: Json) -> ToyAllocator:
    """A fresh allocator of ``size`` pages."""
    return ToyAllocator(config["size"], config["page_size"])


PLUGIN = SimplePlugin("toy", {"allocator": allocator})

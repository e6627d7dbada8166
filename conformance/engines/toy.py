"""The worked example: a paged allocator in plain Python as an engine of the stem ``allocator``.

Write such a class for your engine, register it, and run ``slotproof check toy``. See CONTRIBUTING.md, "Add an engine".
"""

from __future__ import annotations

from collections.abc import Sequence

from conformance.engines.protocol import Json, PoolSnapshot
from conformance.engines.registry import SimplePlugin


class ToyAllocator:
    """A free list of pages. ``leaks``: a free of several pages forgets the last of them."""

    fragile = False
    lacks = ("alloc", "begin_group", "end_group", "backup", "restore", "bad")

    def __init__(self, pages: int, page_size: int, leaks: bool = False) -> None:
        self.pages, self.page_size, self.leaks = pages, page_size, leaks
        self.clear()

    def extend(self, before: Sequence[int], after: Sequence[int], last: Sequence[int]) -> list[int] | None:
        """Slots for rows that grow; a row fills the page of its last slot before it takes another one."""
        size = self.page_size
        if sum(-(-b // size) - -(-a // size) for a, b in zip(before, after, strict=True)) > len(self.free_pages):
            return None
        slots: list[int] = []
        for first, end, slot in zip(before, after, last, strict=True):
            for position in range(first, end):
                slot = slot + 1 if position % size else self.free_pages.pop(0) * size
                slots.append(slot)
        return slots

    def decode(self, after: Sequence[int], last: Sequence[int]) -> list[int] | None:
        """One slot for each row."""
        return self.extend([n - 1 for n in after], after, last)

    def free(self, slots: Sequence[int]) -> None:
        """The pages of these slots are free."""
        pages = list(dict.fromkeys(slot // self.page_size for slot in slots))
        self.free_pages += pages[:-1] if self.leaks and len(pages) > 1 else pages

    def clear(self) -> None:
        """Every page is free; page 0 is padding."""
        self.free_pages = list(range(1, self.pages + 1))

    def snapshot(self) -> PoolSnapshot:
        """The free list; there is no release list."""
        return PoolSnapshot(list(self.free_pages), [], len(self.free_pages) * self.page_size)


def allocator(config: Json) -> ToyAllocator:
    """The allocator of a drawn size; ``size`` counts pages."""
    return ToyAllocator(config["size"], config["page_size"])


PLUGIN = SimplePlugin("toy", {"allocator": allocator})

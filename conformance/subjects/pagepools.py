"""Plain slot pools for our prefix tree: free pages of the full and the SWA side, free states, and who maps where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Fresh:
    """What a caller was given for a row: full slots (SWA slots come with them), and a state where the tree has any."""

    slots: list[int]
    mamba: int | None


@dataclass
class Pools:
    """``free``: pages of ``full`` and ``swa`` and slots of ``mamba``, as far as the tree has them."""

    page_size: int
    free: dict[str, list[int]]
    swa_page: dict[int, int] = field(default_factory=dict)  # full page -> SWA page

    @classmethod
    def of(cls, components: Sequence[str], page_size: int, sizes: dict[str, int]) -> Pools:
        """Every page is free; page 0 is padding."""
        return cls(page_size, {name: list(range(1, sizes[name] + 1)) for name in components})

    def take_row(self, tokens: int, out_of_window: int, with_state: bool) -> Fresh | None:
        """Slots for whole pages of tokens; the first ``out_of_window`` have given their SWA side back already."""
        need = {"full": tokens // self.page_size, "swa": tokens // self.page_size, "mamba": int(with_state)}
        if any(len(pages) < need[name] for name, pages in self.free.items()):
            return None
        pages = [self.free["full"].pop(0) for _ in range(need["full"])]
        if "swa" in self.free:
            self.swa_page.update((page, self.free["swa"].pop(0)) for page in pages)
        slots = [page * self.page_size + offset for page in pages for offset in range(self.page_size)]
        self.give_swa(slots[:out_of_window])
        return Fresh(slots, self.free["mamba"].pop(0) if with_state else None)

    def give(self, name: str, pages: Sequence[int | None]) -> None:
        """Pages of one pool come back."""
        self.free[name] += [page for page in pages if page is not None]

    def give_row(self, slots: Sequence[int]) -> None:
        """Whole pages come back, with the SWA side that they still have."""
        self.give_swa(slots)
        self.give("full", self._pages(slots))

    def give_swa(self, slots: Sequence[int]) -> None:
        """The SWA side of these full slots comes back, where it is still there."""
        if "swa" in self.free:
            self.give("swa", [self.swa_page.pop(p) for p in self._pages(slots) if p in self.swa_page])

    def swa_of(self, slots: Sequence[int]) -> list[int]:
        """The SWA slots of full slots."""
        pairs = (divmod(slot, self.page_size) for slot in slots)
        return [self.swa_page.get(page, 0) * self.page_size + offset for page, offset in pairs]

    def _pages(self, slots: Sequence[int]) -> list[int]:
        return list(dict.fromkeys(slot // self.page_size for slot in slots))

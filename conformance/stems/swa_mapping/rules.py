"""The machine that draws runs of ``swa_mapping``: the rules of ``conformance.stems.pools.rules``, and rules that treat
the two pools differently.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from conformance.stems.machine import started
from conformance.stems.pools.rules import PoolRules, busy, counts, few, rows
from conformance.stems.swa_mapping.exclusions import SwaMappingExclusion as Exclusion
from spec.pool import PADDING, held, length


class SwaMappingMachine(PoolRules):
    """Rows of slots over a full pool and an SWA pool."""

    def room(self, row: int, more: int) -> bool:
        """The row can grow in both pools: the page that it would fill first must have its SWA page too."""
        now = length(self.pool, row)
        mapped = not now.rest or self.run.pair.swa.table(row, now.pages) != PADDING
        return bool(mapped) and super().room(row, more)

    def slides(self) -> bool:
        """SWA pages may be given back alone now."""
        return not (self.run.law.state.group and self.excludes(Exclusion.SWA_IN_GROUP))

    def give_up(self, row: int, drawn: int) -> None:
        """A row with tokens gives back something by a drawn number: the window moves on, and full pages may follow."""
        if drawn % 4 < 2:
            super().give_up(row, drawn)
        else:
            self.evict(row, 0, 2)
            if drawn % 4 == 3:
                self.free_full(row, 0, 1)

    @rule(row=rows, first=counts, pages=few)
    @precondition(busy)
    def evict(self, row: int, first: int, pages: int) -> None:
        """The window moves past whole pages."""
        row, first = self.some(row), self.index(row, first)
        last = min(first + pages, self.whole_pages(row))
        if first < last and self.owns(row, first, last) and self.slides():
            self.do("evict", row=row, first=first, last=last)

    @rule(row=rows, tokens=st.integers(1, 12), tail=st.integers(0, 12))
    @precondition(started)
    def tail(self, row: int, tokens: int, tail: int) -> None:
        """Disaggregated decode allocates a prompt of which only the window was transferred."""
        tail = min(tail, tokens)
        empty = [r for r in (row, *self.calls.slots) if not self.calls.tokens(r) and self.room(r, tokens)]
        if self.offers("tail") and empty and not self._excluded(tokens, tail):
            self.do("tail", row=empty[0], tokens=tokens, tail=tail)

    def _excluded(self, tokens: int, tail: int) -> bool:
        inside = (tokens - tail) % self.calls.page_size != 0
        return (
            (self.excludes(Exclusion.TAIL) and tail < tokens)
            or (self.excludes(Exclusion.EMPTY_TAIL) and not tail)
            or (self.excludes(Exclusion.TAIL_INSIDE_PAGE) and tail > 0 and inside)
        )

    @rule(row=rows, first=counts, pages=few)
    @precondition(busy)
    def free_swa_segment(self, row: int, first: int, pages: int) -> None:
        """The window moves past whole pages, which are freed as a segment of the row."""
        row, first = self.some(row), self.index(row, first)
        last = min(first + pages, self.whole_pages(row))
        whole = first < last and self.is_segment(row, first, last)
        if whole and self.slides() and self.offers("free_swa_segment"):
            self.do("free_swa_segment", row=row, first=first, last=last)

    @rule(row=rows, first=counts, pages=few)
    @precondition(busy)
    def free_full(self, row: int, first: int, pages: int) -> None:
        """A tree frees full pages whose SWA pages it freed before."""
        row, first = self.some(row), self.index(row, first)
        last = min(first + pages, self.whole_pages(row))
        full = self.run.pair.full
        owned = [p for i in range(first, last) if (p := full.table(row, i)) and held(full, p)]
        if owned and not any(map(self.run.has_swa, owned)):
            self.do("free_full", row=row, first=first, last=last)

    @rule(row=rows, to=counts)
    @precondition(busy)
    def slide(self, row: int, to: int) -> None:
        """The window of a row moves on."""
        row = self.some(row)
        to = min(to, self.whole_pages(row))
        if self.owns(row, 0, to) and self.slides():
            self.do("slide", row=row, to=to)

    @rule(row=rows, first=counts, pages=few)
    @precondition(busy)
    def free_pages(self, row: int, first: int, pages: int) -> None:
        """A row frees whole pages that are duplicates of the tree's."""
        row, first = self.some(row), self.index(row, first)
        last = min(first + pages, self.whole_pages(row))
        if first < last and self.owns(row, first, last):
            self.do("free_pages", row=row, first=first, last=last)

    @rule(row=rows, to=rows, first=counts, pages=few)
    @precondition(busy)
    def hand_over(self, row: int, to: int, first: int, pages: int) -> None:
        """Whole pages go to another row, which may be empty and then begins with a prefix that it does not own."""
        row, first = self.some(row), self.index(row, first)
        last = min(first + pages, self.whole_pages(row))
        whole = not length(self.pool, to).rest
        if row != to and first < last and whole and not self.owns(to, first, last):
            self.do("hand_over", row=row, to=to, first=first, last=last)

    @rule(row=rows, pages=few)
    @precondition(started)
    def adopt(self, row: int, pages: int) -> None:
        """A row begins with a cached prefix that it does not own."""
        if not self.calls.tokens(row) and self.pool.indices.has(pages):
            self.do("adopt", row=row, pages=pages)

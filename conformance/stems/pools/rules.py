"""The rules that draw runs of a caller with rows of slots, for ``allocator`` (one pool) and ``swa_mapping`` (two
pools).
"""

from __future__ import annotations

from typing import Any, get_args

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from conformance.driver.protocol import Json
from conformance.stems.allocator.exclusions import AllocatorExclusion as Exclusion
from conformance.stems.machine import StemMachine, started
from conformance.stems.pools.calls import BadCall
from conformance.stems.pools.contents import HOLE
from spec.lengths import in_pages, touched
from spec.pool import PADDING, Pool, length

ROWS = 3
rows = st.integers(0, ROWS - 1)
batches = st.lists(rows, min_size=1, max_size=ROWS, unique=True)
counts = st.integers(0, 9)
few = st.integers(1, 3)
SIZES = {
    "page_size": st.integers(0, 11),  # an index into ``page_sizes`` of the machine
    "size": st.integers(1, 6),  # pages
    "size_swa": st.integers(1, 4),
    "need_sort": st.booleans(),
}
MOST = {"size": 6, "size_swa": 4}  # for an engine that refuses smaller pools
BAD = get_args(BadCall)


def busy(machine: Any) -> bool:
    """A row has tokens."""
    return machine.run is not None and any(machine.calls.tokens(r) for r in machine.calls.slots)


class PoolRules(StemMachine):
    """The rules that ``allocator`` and ``swa_mapping`` share."""

    @initialize(config=st.fixed_dictionaries(SIZES))
    def start(self, config: Json) -> None:
        """Makes an engine of a drawn size and the law. Sizes count pages."""
        page_size = self.page_sizes[config["page_size"] % len(self.page_sizes)]
        first = {**{name: config[name] for name in SIZES}, "page_size": page_size, "rows": ROWS}
        kinds = [{"page_size": size, "need_sort": sorts} for size in self.page_sizes for sorts in (False, True)]
        self.begin_one_of(first, [{**first, **more, **kind} for more in ({}, MOST) for kind in kinds])

    # What a caller can send now.

    @property
    def calls(self) -> Any:
        """The caller's side of the run."""
        return self.run.calls

    @property
    def pool(self) -> Pool:
        """The pool in which the rows have their length."""
        pool: Pool = self.calls.pool
        return pool

    def some(self, row: int) -> int:
        """A row with tokens: ``row`` itself if it has some."""
        ready = [r for r in self.calls.slots if self.calls.tokens(r)]
        return row if row in ready else ready[row % len(ready)]

    def index(self, row: int, drawn: int) -> int:
        """A drawn page index of the row that ``some`` returns."""
        return int(drawn % touched(length(self.pool, self.some(row))))

    def room(self, row: int, more: int) -> bool:
        """The row can grow by ``more`` tokens: it is not too long, and it owns the page that it would fill first."""
        pool, now = self.pool, length(self.pool, row)
        to = in_pages(self.calls.tokens(row) + more, self.calls.page_size)
        return bool(pool.indices.has(touched(to))) and (not now.rest or pool.table(row, now.pages) != PADDING)

    def whole_pages(self, row: int) -> int:
        """How many pages of the row are full."""
        return int(length(self.pool, row).pages)

    def owns(self, row: int, first: int, last: int) -> bool:
        """The row owns a page at an index in ``[first, last)``."""
        return bool(self.calls.page_slots(row, first, last))

    def is_segment(self, row: int, first: int, last: int) -> bool:
        """The row owns every slot of its pages ``[first, last)``, and each page is whole."""
        slots = self.calls.slots[row][first * self.calls.page_size : last * self.calls.page_size]
        return HOLE not in slots and all(self.run.is_whole(s // self.calls.page_size) for s in slots)

    def affordable(self, batch: list[int], more: int, difference: Exclusion) -> bool:
        """The batch may be sent: it fits, or the engine's way to refuse it is not a known difference."""
        return not self.excludes(difference) or self.calls.fits("", self.calls.grown(batch, [more] * len(batch)))

    # Rules.

    @rule(row=rows, more=st.integers(1, 5))
    def extend(self, row: int, more: int) -> None:
        """Prefill of one request. It has no precondition, since Hypothesis needs one rule that is always possible."""
        if self.run is not None:
            self.extend_batch([row], more)

    @rule(batch=batches)
    @precondition(busy)
    def decode(self, batch: list[int]) -> None:
        """One more token for each request of a batch that has tokens."""
        ready = [r for r in dict.fromkeys(map(self.some, batch)) if self.room(r, 1)]
        if ready and self.offers("decode") and self.affordable(ready, 1, Exclusion.SHORT_DECODE):
            self.do("decode", rows=ready)

    @rule(row=rows, first=counts, pages=few)
    @precondition(busy)
    def free(self, row: int, first: int, pages: int) -> None:
        """Frees a range of a row's pages."""
        row, first = self.some(row), self.index(row, first)
        if self.owns(row, first, first + pages):
            self.do("free", row=row, first=first, last=first + pages)

    @rule(row=rows, first=counts, pages=few)
    @precondition(busy)
    def free_segment(self, row: int, first: int, pages: int) -> None:
        """Frees a range of a row's pages as a segment of the row."""
        row, first = self.some(row), self.index(row, first)
        if self.is_segment(row, first, first + pages) and self.offers("free_segment"):
            self.do("free_segment", row=row, first=first, last=first + pages)

    @rule(row=rows, more=st.integers(1, 5))
    @precondition(started)
    def roll_back(self, row: int, more: int) -> None:
        """A caller fails between an allocation and its use."""
        more *= self.calls.page_size if "extend" in self.run.lacks else 1
        whole = "extend" not in self.run.lacks or not length(self.pool, row).rest
        if whole and self.room(row, more) and self.affordable([row], more, Exclusion.SHORT_EXTEND):
            self.do("roll_back", row=row, more=more)

    @rule(sure=st.booleans())
    @precondition(busy)
    def overwrite(self, sure: bool) -> None:
        """The caller's table is overwritten where it had freed slots, in some runs."""
        if sure and not self.excludes(Exclusion.OVERWRITE) and self.offers("overwrite"):
            self.do("overwrite")

    @rule(row=rows, overrun=st.integers(0, 5))
    @precondition(busy)
    def finish(self, row: int, overrun: int) -> None:
        """A request ends. Speculative decoding may have run ahead of what was committed."""
        row, overrun = self.some(row), 0 if self.excludes(Exclusion.OVERRUN) else overrun
        self.do("finish", row=row, committed=max(self.calls.tokens(row) - overrun, 0))

    @rule(batch=batches, more=st.integers(1, 5))
    @precondition(started)
    def extend_batch(self, batch: list[int], more: int) -> None:
        """Prefill of several requests."""
        ready = [r for r in batch if self.room(r, more)]
        if ready and self.offers("extend") and self.affordable(ready, more, Exclusion.SHORT_EXTEND):
            self.do("extend", rows=ready, more=[more] * len(ready))

    @rule(row=rows, pages=few)
    @precondition(started)
    def alloc(self, row: int, pages: int) -> None:
        """Whole pages for one row."""
        if self.offers("alloc") and not length(self.pool, row).rest and self.room(row, pages * self.calls.page_size):
            self.do("alloc", row=row, pages=pages)

    @rule(row=rows, keep=counts)
    @precondition(busy)
    def trim(self, row: int, keep: int) -> None:
        """A row is cut, as after a rejected draft."""
        row = self.some(row)
        keep -= keep % self.calls.page_size if self.excludes(Exclusion.OVERRUN) else 0
        if keep < self.calls.tokens(row):
            self.do("trim", row=row, tokens=keep)

    @rule(pick=counts)
    @precondition(started)
    def group(self, pick: int) -> None:
        """A free group ends or begins, also inside another group."""
        state, deepest = self.run.law.state, 1 if self.excludes(Exclusion.NESTED_GROUP) else 3
        self.pick(pick, {"end_group": state.group > 0, "begin_group": state.group < deepest})

    @rule(batch=batches, drawn=st.integers(0, 63))
    @precondition(busy)
    def results(self, batch: list[int], drawn: int) -> None:
        """An engine processes the results of a batch in a free group: rows give back what ``give_up`` draws; then rows
        grow, and the caller's table is overwritten, in some runs.
        """
        if self.run.law.state.group or not (self.offers("begin_group") and self.offers("end_group")):
            return
        self.do("begin_group")
        for row in batch:
            if self.calls.tokens(row):
                self.give_up(row, drawn)
                drawn //= 2
        if drawn % 3 == 0:
            self.overwrite(True)
        if drawn % 2:
            self.extend(batch[0], self.calls.page_size)
            self.alloc(batch[0], 1)
        self.do("end_group")

    def give_up(self, row: int, drawn: int) -> None:
        """A row with tokens gives back something by a drawn number."""
        if drawn % 2:
            self.finish(row, 0)
        else:
            self.free(row, 0, 2)

    @rule(sure=st.booleans())
    @precondition(started)
    def stray_end(self, sure: bool) -> None:
        """A free group ends though none is open, as after a flush within a group, in some runs."""
        stray = not self.run.law.state.group and not self.excludes(Exclusion.STRAY_END)
        if sure and stray and self.offers("end_group"):
            self.do("end_group")

    @rule(pick=counts)
    @precondition(started)
    def draft(self, pick: int) -> None:
        """A backup is taken before draft slots are handed out, or restored to take them back."""
        usable = not self.excludes(Exclusion.RESTORE)
        self.pick(pick, {"restore": usable and self.run.law.state.backed_up, "backup": usable})

    @rule(sure=st.booleans())
    @precondition(busy)
    def clear(self, sure: bool) -> None:
        """The cache is flushed, in some runs."""
        if sure:
            self.do("clear")

    @rule(kind=st.sampled_from(BAD), row=rows)
    @precondition(lambda self: started(self) and "bad" not in self.run.lacks)
    def bad(self, kind: str, row: int) -> None:
        """Bad input, for engines that promise to answer it."""
        self.do("bad", kind=kind, row=row)

"""Hypothesis draws the runs: rules from simple to complex over tiny pools, so that exhaustion is common and a failing
run shrinks to few steps. A rule sends whatever a caller of the engine can send, and nothing else; what does not apply
in the current state is skipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from conformance.machine import Finding, Json, LockStep, Trace
from spec.lengths import in_pages, touched
from spec.pool import PADDING, held, length

ROWS = 3
rows = st.integers(0, ROWS - 1)
batches = st.lists(rows, min_size=1, max_size=ROWS, unique=True)
counts = st.integers(0, 9)
few = st.integers(1, 3)
SIZES = {
    "page_size": st.integers(0, 11),  # an index into the page sizes that are asked for
    "size": st.integers(1, 6),
    "size_swa": st.integers(1, 4),
    "need_sort": st.booleans(),
}

BAD = ("free_again", "free_padding", "alloc_negative", "free_outside", "end")


@dataclass
class Sink:
    """What a check keeps of its runs: how often each transition was done and refused, and the last failing run."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    steps: int = 0
    failure: tuple[Finding, Trace] | None = None
    latent: tuple[Finding, Trace] | None = None


def busy(machine: Any) -> bool:
    """A row has tokens."""
    return machine.run is not None and any(machine.run.tokens(r) for r in machine.run.slots)


class Machine(RuleBasedStateMachine):
    """What every machine does with a run: operations, what to look past, what is counted."""

    make: ClassVar[Callable[[Json], Any]]
    run_class: ClassVar[type[LockStep]]
    sink: ClassVar[Sink]
    strict: ClassVar[bool] = True
    avoid: ClassVar[Iterable[str]] = ()
    page_sizes: ClassVar[tuple[int, ...]] = (1, 2, 4)

    run: Any = None

    def do(self, op: str, **arguments: Any) -> None:
        """One operation, with its finding kept."""
        self.sink.steps += 1
        try:
            self.run.do(op, **arguments)
        except Finding as finding:
            self.sink.failure = (finding, self.run.trace)
            raise
        if self.run.latent and not self.sink.latent:
            self.sink.latent = (self.run.latent, self.run.trace)

    def teardown(self) -> None:
        """Counts what this run did."""
        if self.run is not None:
            self.sink.counts.update(self.run.counts)

    def avoids(self, difference: str) -> bool:
        """The run has to look past a known difference."""
        return difference in self.run.avoid

    def pick(self, drawn: int, possible: dict[str, bool]) -> None:
        """One of the operations that are possible."""
        names = [name for name, can in possible.items() if can]
        if names:
            self.do(names[drawn % len(names)])

    def offered(self, name: str) -> bool:
        """The engine has the call at this page size; where it has not, the rule is skipped and counted."""
        has = bool(self.run.offers(name))
        if not has:
            self.run.counts[name, "not offered"] += 1
        return has


class Runs(Machine):
    """The rules that every stem with rows of slots shares."""

    @initialize(config=st.fixed_dictionaries(SIZES))
    def start(self, config: Json) -> None:
        """A subject and a spec of a drawn size; sizes count pages."""
        page_size = self.page_sizes[config["page_size"] % len(self.page_sizes)]
        known = {**{name: config[name] for name in SIZES}, "page_size": page_size, "rows": ROWS}
        self.run = self.run_class(type(self).make(known), known, self.strict, self.avoid)

    # What a caller can send now.

    def some(self, row: int) -> int:
        """A row with tokens, ``row`` itself if it has some."""
        ready = [r for r in self.run.slots if self.run.tokens(r)]
        return row if row in ready else ready[row % len(ready)]

    def index(self, row: int, drawn: int) -> int:
        """An index among the pages of the row that ``some`` names."""
        return int(drawn % touched(length(self.run.pool, self.some(row))))

    def room(self, row: int, more: int) -> bool:
        """The row still owns the page it would fill, and has room for ``more`` tokens."""
        pool, now = self.run.pool, length(self.run.pool, row)
        to = in_pages(self.run.tokens(row) + more, self.run.page_size)
        return bool(pool.indices.has(touched(to))) and (not now.rest or pool.table(row, now.pages) != PADDING)

    def whole_pages(self, row: int) -> int:
        """How many pages of the row are full."""
        return int(length(self.run.pool, row).pages)

    def owns(self, row: int, first: int, last: int) -> bool:
        """The row owns a page among ``[first, last)``."""
        return bool(self.run.page_slots(row, first, last))

    @rule(row=rows, more=st.integers(1, 5))
    def extend(self, row: int, more: int) -> None:
        """Prefill of one request."""
        self.extend_batch([row], more)

    @rule(batch=batches)
    @precondition(busy)
    def decode(self, batch: list[int]) -> None:
        """One token for each request that has one already."""
        ready = [r for r in dict.fromkeys(map(self.some, batch)) if self.room(r, 1)]
        if ready and self.offered("alloc_decode") and self.affordable(ready, 1, "short_decode"):
            self.do("decode", rows=ready)

    @rule(row=rows, first=counts, pages=few)
    @precondition(busy)
    def free(self, row: int, first: int, pages: int) -> None:
        """A range of a row's pages, to the row's end if it reaches that far."""
        row, first = self.some(row), self.index(row, first)
        if self.owns(row, first, first + pages):
            self.do("free", row=row, first=first, last=first + pages)

    @rule(row=rows, overrun=st.integers(0, 5))
    @precondition(busy)
    def finish(self, row: int, overrun: int) -> None:
        """A request ends; speculative decoding may have run ahead of what was committed."""
        row, overrun = self.some(row), 0 if self.avoids("overrun") else overrun
        self.do("finish", row=row, committed=max(self.run.tokens(row) - overrun, 0))

    @rule(batch=batches, more=st.integers(1, 5))
    def extend_batch(self, batch: list[int], more: int) -> None:
        """Prefill of several requests."""
        ready = [r for r in batch if self.room(r, more)]
        if ready and self.offered("alloc_extend") and self.affordable(ready, more, "short_extend"):
            self.do("extend", rows=ready, more=[more] * len(ready))

    @rule(row=rows, pages=few)
    def alloc(self, row: int, pages: int) -> None:
        """Whole pages."""
        if self.offered("alloc") and not length(self.run.pool, row).rest and self.room(row, pages * self.run.page_size):
            self.do("alloc", row=row, pages=pages)

    @rule(row=rows, keep=counts)
    @precondition(busy)
    def trim(self, row: int, keep: int) -> None:
        """A row is cut, as after a rejected draft or an overshoot."""
        row = self.some(row)
        keep -= keep % self.run.page_size if self.avoids("overrun") else 0
        if keep < self.run.tokens(row):
            self.do("trim", row=row, tokens=keep)

    @rule(pick=counts)
    def group(self, pick: int) -> None:
        """A free group ends or begins, also within another."""
        state, deepest = self.run.state, 1 if self.avoids("nested_group") else 3
        self.pick(pick, {"end": state.group > 0, "begin": state.group < deepest})

    @rule(pick=counts)
    def draft(self, pick: int) -> None:
        """Draft slots are taken back, or a backup is taken before they are handed out."""
        usable = not self.avoids("restore")
        self.pick(pick, {"restore": usable and self.run.state.backed_up, "backup": usable})

    @rule(sure=st.booleans())
    @precondition(busy)
    def clear(self, sure: bool) -> None:
        """The cache is flushed, now and then."""
        if sure:
            self.do("clear")

    @rule(kind=st.sampled_from(BAD), row=rows)
    @precondition(lambda self: self.run is not None and self.run.subject.traits.rejects)
    def bad(self, kind: str, row: int) -> None:
        """Bad input, for subjects that promise to answer it."""
        self.do("bad", kind=kind, row=row)

    def affordable(self, batch: list[int], more: int, difference: str) -> bool:
        """The batch fits, unless no difference is known in how the engine refuses it."""
        return not self.avoids(difference) or self.run.fits("", self.run.grown(batch, [more] * len(batch)))


class AllocatorRuns(Runs):
    """The allocator alone."""


class SwaMappingRuns(Runs):
    """The allocator's rules on two pools, and those that tell the pools apart."""

    def room(self, row: int, more: int) -> bool:
        """The page that is filled further must have its SWA page too."""
        now = length(self.run.pool, row)
        mapped = not now.rest or self.run.pair.swa.table(row, now.pages) != PADDING
        return bool(mapped) and super().room(row, more)

    @rule(row=rows, first=counts, pages=few)
    @precondition(busy)
    def evict(self, row: int, first: int, pages: int) -> None:
        """The window moves past whole pages."""
        row, first = self.some(row), self.index(row, first)
        last = min(first + pages, self.whole_pages(row))
        if first < last and self.owns(row, first, last):
            self.do("evict", row=row, first=first, last=last)

    @rule(row=rows, tokens=st.integers(1, 12), tail=st.integers(0, 12))
    def tail(self, row: int, tokens: int, tail: int) -> None:
        """Disaggregated decode allocates a prompt whose window alone was transferred."""
        tail = min(tail, tokens)
        empty = [r for r in (row, *self.run.slots) if not self.run.tokens(r) and self.room(r, tokens)]
        if self.offered("alloc_extend_swa_tail") and empty and not self._avoided(tokens, tail):
            self.do("tail", row=empty[0], tokens=tokens, tail=tail)

    def _avoided(self, tokens: int, tail: int) -> bool:
        inside = (tokens - tail) % self.run.page_size != 0
        return (
            (self.avoids("tail") and tail < tokens)
            or (self.avoids("empty_tail") and not tail)
            or (self.avoids("tail_inside_page") and tail > 0 and inside)
        )

    @rule(row=rows, first=counts, pages=few)
    @precondition(busy)
    def free_full(self, row: int, first: int, pages: int) -> None:
        """A tree gives back the full side of pages whose SWA side it tombstoned before."""
        row, first = self.some(row), self.index(row, first)
        last = min(first + pages, self.whole_pages(row))
        pair = self.run.pair
        owned = [p for i in range(first, last) if (p := pair.full.table(row, i)) and held(pair.full, p)]
        mapped = any(pair.to_page(p, o) for p in owned for o in pair.full.offsets.items())
        if owned and not mapped:
            self.do("free_full", row=row, first=first, last=last)

    @rule(row=rows, to=counts)
    @precondition(busy)
    def slide(self, row: int, to: int) -> None:
        """The window of a row moves on."""
        row = self.some(row)
        to = min(to, self.whole_pages(row))
        if self.owns(row, 0, to):
            self.do("slide", row=row, to=to)

    @rule(row=rows, first=counts, pages=few)
    @precondition(busy)
    def free_pages(self, row: int, first: int, pages: int) -> None:
        """A row gives back whole pages that are duplicates."""
        row, first = self.some(row), self.index(row, first)
        last = min(first + pages, self.whole_pages(row))
        if first < last and self.owns(row, first, last):
            self.do("free_pages", row=row, first=first, last=last)

    @rule(row=rows, to=rows, first=counts, pages=few)
    @precondition(busy)
    def hand_over(self, row: int, to: int, first: int, pages: int) -> None:
        """Whole pages go to another row, which may be empty and begin after them."""
        row, first = self.some(row), self.index(row, first)
        last = min(first + pages, self.whole_pages(row))
        whole = not length(self.run.pool, to).rest
        if row != to and first < last and whole and not self.owns(to, first, last):
            self.do("hand_over", row=row, to=to, first=first, last=last)

    @rule(row=rows, pages=few)
    def adopt(self, row: int, pages: int) -> None:
        """A row begins after pages of others."""
        if not self.run.tokens(row) and self.run.pool.indices.has(pages):
            self.do("adopt", row=row, pages=pages)

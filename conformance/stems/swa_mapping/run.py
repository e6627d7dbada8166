"""A run of the stem ``swa_mapping``: a full pool, an SWA pool and their mapping beside the law."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from conformance.driver.diff import FieldDifference
from conformance.driver.lockstep import Calls, EngineCall, Ignores, Law, nothing
from conformance.driver.operations import operation, operations_of
from conformance.driver.protocol import Json, Misuse, lacking
from conformance.driver.shadow import Shadow
from conformance.stems.allocator.projection import lists_released
from conformance.stems.pools.calls import PoolCalls, row_pages, send_each
from conformance.stems.pools.contents import HOLE, Growth
from conformance.stems.swa_mapping.projection import (
    is_read,
    pair_problems,
    project_pair,
    settled_swa,
    sorted_sides,
    swa_slot,
)
from conformance.stems.swa_mapping.protocol import SwaMappingEngine, SwaMappingSnapshot
from spec import swa_mapping as law
from spec.finite import Seq
from spec.lengths import in_pages, touched
from spec.logic import but
from spec.pair import Pair, swa_page
from spec.pool import Pool, some_open


class SwaMappingRun:
    """The operations of ``PoolCalls`` on both pools, and operations that treat the two pools differently."""

    def __init__(self, engine: SwaMappingEngine, config: Json, strict: bool = True, ignores: Ignores = nothing) -> None:
        self.engine: SwaMappingEngine = engine
        self.lacks: Collection[str] = lacking(engine)
        sizes = (config["page_size"], config["size"], config["size_swa"], config["rows"], config["need_sort"])
        self.shadow = Shadow()
        self.law = Law(law.stem, law.initial(*sizes), strict, ignores)
        self.page_size: int = config["page_size"]
        self.calls = PoolCalls(self, config)
        self.operations = operations_of(self.calls, self)
        self.seen: SwaMappingSnapshot = engine.snapshot()

    @property
    def pair(self) -> Pair:
        """The law's two pools and mapping."""
        pair: Pair = self.law.state.now
        return pair

    def pool_of(self, state: Any) -> Pool:
        """The full pool: the rows have their length in it."""
        pool: Pool = state.now.full
        return pool

    def some_pages(self, state: Any, need: int) -> tuple[Seq, ...]:
        """Any ``need`` free pages of each pool."""
        return some_open(state.now.full, need), some_open(state.now.swa, need)

    def chosen_pages(self, chosen: list[int]) -> tuple[Seq, ...]:
        """The full pages that the engine chose, and the SWA pages to which it mapped them."""
        size, mapping = self.page_size, self.seen.mapping
        return Seq(chosen), Seq(swa_slot(mapping, page * size) // size for page in chosen)

    def sorted_as_now(self, before: Any) -> Any:
        """The pools ``before``; sorted where the engine has sorted a release list since."""
        now = self.pair
        for of_swa, was, pool in ((False, before.now.full, now.full), (True, before.now.swa, now.swa)):
            if lists_released(was) and not lists_released(pool):
                before = law.merge_and_sort_free(before, of_swa).then
        return before

    def swa_slot(self, slot: int) -> int:
        """The SWA slot that the engine shows for a full slot, 0 for none."""
        return swa_slot(self.seen.mapping, slot)

    def has_swa_slot(self, slot: int) -> bool:
        """The law's mapping has an SWA slot for a full slot."""
        return slot != HOLE and bool(self.pair.to_page(*divmod(slot, self.page_size)))

    def has_swa(self, page: int) -> bool:
        """A held full page has its SWA page, as the law has it now."""
        return bool(swa_page(self.pair, page))

    def is_whole(self, page: int) -> bool:
        """The first slot of a held full page is mapped: segment frees look there alone."""
        return self.has_swa(page) and bool(self.pair.to_page(page, 0))

    def freeing(self, *parts: list[int]) -> Callable[[], None]:
        """Each part is freed by ``free``; an engine that may not get slots without an SWA page gets them by
        ``free_full``.
        """
        if "free_unmapped" not in self.lacks:
            return send_each(self.engine.free, parts)
        dead = [[s for s in part if not self.has_swa(s // self.page_size)] for part in parts]
        alive = [[s for s in part if self.has_swa(s // self.page_size)] for part in parts]
        first, then = send_each(self.engine.free_full, dead), send_each(self.engine.free, alive)

        def send() -> None:
            first()
            then()

        return send

    def _freeing_swa(self, slots: list[int]) -> Callable[[], None]:
        """As ``freeing``, for the SWA pages alone."""
        every = "free_unmapped" not in self.lacks
        sent = [s for s in slots if every or self.has_swa(s // self.page_size)]
        return send_each(self.engine.free_swa, [sent])

    # Growing.

    @operation
    def tail(self, row: int, tokens: int, tail: int) -> Calls:
        """A new row, of which only the last ``tail`` tokens get SWA slots (disaggregated decode)."""
        self.calls.must_have(row)
        if tail > tokens:
            raise Misuse(f"a tail of {tail} tokens is longer than its row of {tokens}")
        if self.calls.tokens(row):
            raise Misuse(f"row {row} has tokens, and a row with a tail is new")
        name = "alloc_extend_swa_tail"
        start, to = in_pages(tokens - tail, self.page_size), in_pages(tokens, self.page_size)
        need_swa = touched(to) - start.pages if tail else 0
        lawful = some_open(self.pair.full, touched(to)), some_open(self.pair.swa, need_swa)
        step = law.alloc_extend_swa_tail(self.law.state, row, start, to, *lawful)
        self.law.must_keep(name, step)
        fits = bool(step.fits)
        answer = yield EngineCall(name, lambda: self.engine.tail(tokens, tail), risky=self.engine.fragile and not fits)
        if answer is None:
            self.law.refused(name, fits)
            return
        self.law.must_fit(name, fits)
        (slots,) = self.calls.split(answer, [tokens], name)
        self.calls.passes.grow([Growth(row, [], slots)])
        chosen = row_pages(self.pair.full, row, 0, slots)
        self.law.caller_step(name, row, start, to, Seq(chosen), Seq(self._tail_pages(slots, tokens - tail)))
        self.calls.slots[row] = slots

    def _tail_pages(self, slots: list[int], start: int) -> list[int]:
        """The SWA pages to which the engine mapped a tail: one for each full page, read at the page's first token of
        the tail.
        """
        firsts = [t for t in range(start, len(slots)) if t == start or t % self.page_size == 0]
        return [swa_slot(self.seen.mapping, slots[t]) // self.page_size for t in firsts]

    # Freeing.

    @operation
    def evict(self, row: int, first: int, last: int) -> Calls:
        """The window moved past the whole pages ``[first, last)`` of a row: their SWA pages are freed."""
        self.calls.must_have_pages(row, first, last)
        slots = self.calls.page_slots(row, first, last)
        send = self._freeing_swa(slots)
        self.law.caller_step("free_swa", *self.calls.named(slots))
        yield EngineCall("free_swa", send)

    @operation
    def free_swa_segment(self, row: int, first: int, last: int) -> Calls:
        """The window moved past the whole pages ``[first, last)`` of a row, which have their SWA pages: these are freed
        as one segment of the row.
        """
        slots = self.calls.segment(row, first, last)
        if len(slots) != (last - first) * self.page_size:
            raise Misuse("a page in the window keeps its SWA page")
        self.law.caller_step("free_swa", *self.calls.named(slots))
        yield EngineCall("free_swa_segment", lambda: self.engine.free_swa_segment(slots, first * self.page_size))

    @operation
    def free_full(self, row: int, first: int, last: int) -> Calls:
        """Frees full pages whose SWA pages are gone, as a tree evicts a tombstone."""
        self.calls.must_have_pages(row, first, last)
        slots = self.calls.page_slots(row, first, last)
        gone, named = self.calls.named(slots)
        self.law.must_keep("free_full", law.free_full(self.law.state, gone, named, False))
        yield EngineCall("free_full", lambda: self.engine.free_full(slots))
        waits = self.law.state.group > 0 and not {*self.seen.full.free, *self.seen.full.released} & {*gone.items()}
        self.law.caller_step("free_full", gone, named, waits)
        self.calls.forget(slots)

    # What a caller does with whole pages of its rows.

    @operation
    def slide(self, row: int, to: int) -> Calls:
        """The window of a row moved past its whole pages below index ``to``: their SWA pages are freed."""
        self.calls.must_have(row)
        slots = self.calls.page_slots(row, 0, to)
        send = self._freeing_swa(slots)
        self.law.caller_step("free_swa", *self.calls.named(slots))
        yield EngineCall("free_swa", send)

    @operation
    def free_pages(self, row: int, first: int, last: int) -> Calls:
        """Frees whole pages of a row in both pools, since they are duplicates of the tree's."""
        self.calls.must_have_pages(row, first, last)
        slots = self.calls.page_slots(row, first, last)
        send = self.freeing(slots)
        self.law.caller_step("free", *self.calls.named(slots))
        yield EngineCall("free", send)
        self.calls.forget(slots)

    @operation
    def adopt(self, row: int, pages: int) -> Calls:
        """An empty row begins with a cached prefix that it does not own. The engine gets no call for this."""
        self.calls.must_have(row)
        self.law.caller_step("adopt", row, pages)
        self.calls.slots[row] = [HOLE] * (pages * self.page_size)
        self.calls.passes.adopt(row, pages * self.page_size)
        yield from ()

    @operation
    def hand_over(self, row: int, to: int, first: int, last: int) -> Calls:
        """Whole pages go from one row to another. The engine gets no call for this."""
        self.calls.must_have_pages(row, first, last)
        self.calls.must_have(to)
        cuts = first * self.page_size, last * self.page_size
        self.law.caller_step("hand_over", row, to, first, last)
        given, taken = self.calls.slots[row], self.calls.slots[to]
        taken = taken + [HOLE] * (cuts[1] - len(taken))
        moved = [max(pair) for pair in zip(taken[slice(*cuts)], given[slice(*cuts)], strict=True)]
        self.calls.slots[to] = [*taken[: cuts[0]], *moved, *taken[cuts[1] :]]
        self.calls.slots[row] = [*given[: cuts[0]], *([HOLE] * (cuts[1] - cuts[0])), *given[cuts[1] :]]
        self.calls.passes.hand_over(row, to, *cuts)
        yield from ()

    # What the driver needs.

    def snapshot(self) -> SwaMappingSnapshot:
        """Both pools and the mapping."""
        return self.engine.snapshot()

    def follow(self) -> None:
        """An engine may sort a release list into its free list at any time, and need not wait with SWA pages for the
        end of a group. The law takes these steps when the snapshot shows them.
        """
        for ended in settled_swa(self.pair, self.seen):
            self.law.caller_step("settle_swa", *ended)
        for of_swa in sorted_sides(self.pair, self.seen):
            self.law.caller_step("merge_and_sort_free", of_swa)

    def project(self) -> Any:
        """Both pools as their lists show them, and the mapping."""
        pair = project_pair(self.pair, self.seen)
        return self.law.state if pair is self.pair else but(self.law.state, now=pair)

    def hidden(self, change: FieldDifference) -> bool:
        """The mapping of a slot that no row uses is hidden from callers."""
        return change.field == "to_page" and not is_read(self.pair, *change.key)

    def beyond_state(self) -> list[str]:
        """Pages that are listed twice, and available sizes that are wrong."""
        return pair_problems(self.pair, self.seen)

    def judge(self) -> None:
        """Nothing to add: the invariants say everything."""

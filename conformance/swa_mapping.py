"""The SWA mapping in lock-step: the allocator's operations on two pools, window eviction, tails, tree-style frees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from conformance.allocator import AllocatorRun
from conformance.machine import Json
from conformance.pair_seen import observed_pair, pair_differences, stale_entries
from conformance.pools import HOLE, PoolRun, lists_released
from conformance.subjects.adapter import Lists, SwaSubject
from spec import swa_mapping as law
from spec.finite import Seq
from spec.lengths import in_pages, touched
from spec.logic import but
from spec.pair import Pair
from spec.pool import Pool, some_open


class SwaMappingRun(AllocatorRun):
    """Two pools and their mapping beside the spec."""

    stem = law.stem
    subject: SwaSubject

    def __init__(self, subject: SwaSubject, config: Json, strict: bool = True, avoid: Sequence[str] = ()) -> None:
        PoolRun.__init__(self, subject, config, strict, avoid)
        sizes = (config["page_size"], config["size"], config["size_swa"], config["rows"], config["need_sort"])
        self.state = law.initial(*sizes)

    @property
    def pair(self) -> Pair:
        """The two pools and the mapping."""
        pair: Pair = self.state.now
        return pair

    def pool_of(self, state: Any) -> Pool:
        """Rows are measured in the full pool."""
        pool: Pool = state.now.full
        return pool

    def offers(self, name: str) -> bool:
        """Some engines hand out whole pages at page size 1 alone, and some have no tail allocation."""
        traits = self.subject.traits
        if name == "alloc":
            return self.page_size == 1 or traits.paged_at_one
        if name == "alloc_extend_swa_tail":
            return traits.tail and super().offers("alloc_extend")
        return super().offers(name)

    # Growing.

    def some_pages(self, state: Any, need: int) -> tuple[Seq, ...]:
        """Any lawful pages of both pools."""
        return some_open(state.now.full, need), some_open(state.now.swa, need)

    def chosen_pages(self, chosen: list[int]) -> tuple[Seq, ...]:
        """The full pages that the subject chose, and the SWA pages that it mapped them to."""
        mapping = self.subject.mapping()
        return Seq(chosen), Seq(mapping[p * self.page_size] // self.page_size for p in chosen)

    def op_tail(self, row: int, tokens: int, tail: int) -> None:
        """A new row, of which only the last ``tail`` tokens get SWA slots."""
        name = "alloc_extend_swa_tail"
        self.must_offer(name)
        start, to = in_pages(tokens - tail, self.page_size), in_pages(tokens, self.page_size)
        need_swa = touched(to) - start.pages if tail else 0
        lawful = some_open(self.pair.full, touched(to)), some_open(self.pair.swa, need_swa)
        step = law.alloc_extend_swa_tail(self.state, row, start, to, *lawful)
        self.must_keep(name, step)
        answer = self.ask(name, lambda: self.subject.tail(tokens, tail), self.subject.traits.fragile and not step.fits)
        if answer is None:
            self.judge_refusal(name, step.fits)
            return
        self.judge_grant(name, step.fits)
        (slots,) = self.split(answer, [tokens], name)
        chosen = self.new_pages(row, 0, slots)
        self.step(name, row, start, to, Seq(chosen), Seq(self._tail_pages(slots, tokens - tail)))
        self.slots[row] = slots

    def _tail_pages(self, slots: list[int], start: int) -> list[int]:
        """The SWA pages that the subject mapped a tail to: one for each full page, read at its first tail token."""
        mapping = self.subject.mapping()
        firsts = [t for t in range(start, len(slots)) if t == start or t % self.page_size == 0]
        return [mapping[slots[t]] // self.page_size for t in firsts]

    def op_alloc(self, row: int, pages: int) -> None:
        """Whole pages in both pools; some engines have that at page size 1 alone."""
        self.must_offer("alloc")
        super().op_alloc(row, pages)

    # Giving back.

    def op_evict(self, row: int, first: int, last: int) -> None:
        """The window moved past the whole pages ``[first, last)`` of a row."""
        slots = self.page_slots(row, first, last)
        self.step("free_swa", *self.named(slots))
        self.ask("free_swa", lambda: self.subject.free_swa(slots))

    def op_free_full(self, row: int, first: int, last: int) -> None:
        """The full side alone of pages whose SWA side is gone, as a tree evicts a tombstoned node."""
        slots = self.page_slots(row, first, last)
        self.step("free_full", *self.named(slots))
        self.ask("full_attn_allocator.free", lambda: self.subject.free_full(slots))
        self.forget(slots)

    # What a caller of many rows does with them.

    def op_slide(self, row: int, to: int) -> None:
        """The window of a row moved past its whole pages below index ``to``."""
        slots = self.page_slots(row, 0, to)
        self.step("slide", row, to)
        self.ask("free_swa", lambda: self.subject.free_swa(slots))

    def op_free_pages(self, row: int, first: int, last: int) -> None:
        """Whole pages of a row are duplicates."""
        slots = self.page_slots(row, first, last)
        self.step("free_pages", row, first, last)
        self.ask("free", lambda: self.subject.free(slots))
        self.forget(slots)

    def op_adopt(self, row: int, pages: int) -> None:
        """An empty row begins after pages of others; the pools do not learn of it."""
        self.step("adopt", row, pages)
        self.slots[row] = [HOLE] * (pages * self.page_size)

    def op_hand_over(self, row: int, to: int, first: int, last: int) -> None:
        """Whole pages change their owner; the pools do not learn of it."""
        cuts = first * self.page_size, last * self.page_size
        self.step("hand_over", row, to, first, last)
        given, taken = self.slots[row], self.slots[to]
        taken += [HOLE] * (cuts[1] - len(taken))
        moved = [max(pair) for pair in zip(taken[slice(*cuts)], given[slice(*cuts)], strict=True)]
        self.slots[to] = [*taken[: cuts[0]], *moved, *taken[cuts[1] :]]
        self.slots[row] = [*given[: cuts[0]], *([HOLE] * (cuts[1] - cuts[0])), *given[cuts[1] :]]

    # What can be observed.

    def compare(self, op: str) -> None:
        """Merging a release list is the subject's own affair; the spec follows when it sees it."""
        for of_swa, pool, lists in self._both():
            if lists_released(pool) and not lists.released:
                self.step("merge_and_sort_free", of_swa)
        PoolRun.compare(self, op)

    def _both(self) -> list[tuple[bool, Pool, Lists]]:
        return [
            (False, self.pair.full, self.subject.lists()),
            (True, self.pair.swa, self.subject.swa_lists()),
        ]

    def observed(self) -> Any:
        """Both pools as their lists show them, and the mapping tensor."""
        lists = self.subject.lists(), self.subject.swa_lists()
        return but(self.state, now=observed_pair(self.pair, *lists, self.subject.mapping()))

    def differences(self, seen: Any) -> str:
        """Lists, available sizes, and the mapping of every slot that a row uses."""
        return "; ".join(pair_differences(self.pair, seen.now, self.subject.lists(), self.subject.swa_lists()))

    def details(self, seen: Any) -> str:
        """The mapping of the slots that nobody may read."""
        return stale_entries(self.pair, seen.now) or super().details(seen)

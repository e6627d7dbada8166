"""The SWA mapping in lock-step: the allocator's operations on two pools, window eviction, tails, tree-style frees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import immutables

from conformance.allocator import AllocatorRun
from conformance.machine import Json
from conformance.pools import PoolRun, list_differences, lists_released, live_slots, observed_pool
from conformance.subjects.adapter import Lists, SwaSubject
from spec import swa_mapping as law
from spec.finite import Map, Seq
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
        full, swa = (observed_pool(pool, lists.free, lists.released) for _, pool, lists in self._both())
        entries = [(divmod(s, self.page_size), e) for s, e in enumerate(self.subject.mapping()) if e]
        page = Map(2, 0, immutables.Map({k: e // self.page_size for k, e in entries}))
        offset = Map(2, 0, immutables.Map({k: e % self.page_size for k, e in entries}))
        return but(self.state, now=but(self.pair, full=full, swa=swa, to_page=page, to_offset=offset))

    def differences(self, seen: Any) -> str:
        """Lists, available sizes, and the mapping of every slot that a row uses."""
        found = []
        for of_swa, pool, lists in self._both():
            name = "SWA" if of_swa else "full"
            found += list_differences(name, pool, lists.free, lists.released)
            if lists.available != pool.available * self.page_size:
                want = pool.available * self.page_size
                found.append(f"{name.lower()}_available_size is {lists.available}, not {want}")
        return "; ".join(found + self._mapping_differences(seen.now))

    def details(self, seen: Any) -> str:
        """The mapping of the slots that nobody may read."""
        live = set(live_slots(self.pair.full))
        entries = [(p, o, s) for (p, o), s in seen.now.to_page.items() if s and (p, o) not in live]
        stale = [f"full slot {p * self.page_size + o} still maps to SWA page {s}" for p, o, s in sorted(entries)]
        return "; ".join(stale) or super().details(seen)

    def _mapping_differences(self, seen: Pair) -> list[str]:
        found = []
        for p, o in live_slots(self.pair.full):
            want = self.pair.to_page(p, o) * self.page_size + self.pair.to_offset(p, o)
            have = seen.to_page(p, o) * self.page_size + seen.to_offset(p, o)
            if want != have:
                slot = p * self.page_size + o
                found.append(f"full slot {slot} maps to SWA slot {have}, the law has {want or 'nothing'}")
        return found

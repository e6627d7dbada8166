"""Free groups, as engines may lawfully do them in different ways; beside each way a wrong one that is found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from driven import SOAK
from torch import Tensor

from conformance.driver.diff import changes
from conformance.driver.protocol import Json
from conformance.driver.trace import Trace
from conformance.engines.ours import swa_mapping
from conformance.search.check import Search, check
from conformance.stems.swa_mapping import faults as faults
from conformance.traces.outcome import Outcome, outcome
from impl.swa_mapping import SWATokenToKVPoolAllocator
from spec import swa_mapping as law
from spec.finite import Seq, Set
from spec.lengths import in_pages
from spec.pool import FREE, HELD, PENDING

SIZES: Json = {"page_size": 2, "size": 3, "size_swa": 3, "rows": 3, "need_sort": False}
ONE_ROW = {"op": "extend", "rows": [0], "more": [2]}
BEGIN, END = {"op": "begin_group"}, {"op": "end_group"}
PAGE = {"row": 0, "first": 0, "last": 1}


class Defers(SWATokenToKVPoolAllocator):
    """In a free group, SWA pages that are given back alone wait for its end. ``unmaps``: their slots are unmapped at
    once, not at the end.
    """

    unmaps = True

    def _forget(self) -> None:
        super()._forget()
        self.late: list[int] = []

    def free_swa(self, free_index: Tensor, *, row_lens: Sequence[int] | None = None) -> None:
        """Looks up at once which SWA pages are given back."""
        if self.is_not_in_free_group:
            super().free_swa(free_index, row_lens=row_lens)
            return
        full = torch.unique(free_index // self.page_size)
        found = {int(page) for page in self._swa_pages(full)} - {0, *self.late}
        self.late += sorted(found)
        if self.unmaps:
            self.unmap(full)

    def free_full(self, free_index: Tensor) -> None:
        """At once, and unmapped, also within a group."""
        self.full_attn_allocator.free(free_index)
        self.unmap(torch.unique(free_index // self.page_size))

    def free_group_end(self) -> None:
        """Gives back what waits, and unmaps what still maps there."""
        if self._depth == 1 and self.late:
            late, self.late = torch.tensor(self.late), []
            mapping = self.full_to_swa_index_mapping
            mapping[torch.isin(mapping // self.page_size, late) & (mapping > 0)] = 0
            self._put_swa(late)
        super().free_group_end()


class DefersAndKeepsMapping(Defers):
    """As ``Defers``; the mapping stays until the end of the group."""

    unmaps = False


class Twice(Defers):
    """A page whose SWA page is given back twice in a group is given back twice at its end."""

    unmaps = False

    def free_swa(self, free_index: Tensor, *, row_lens: Sequence[int] | None = None) -> None:
        """Does not see that the SWA page waits already."""
        if self.is_not_in_free_group:
            super().free_swa(free_index, row_lens=row_lens)
        else:
            full = torch.unique(free_index // self.page_size)
            self.late += [int(page) for page in self._swa_pages(full) if page]

    def _put_swa(self, pages: Tensor) -> None:
        swa = self.swa_attn_allocator
        swa._stack = torch.cat([swa._stack[: swa._top], pages, swa._stack[swa._top :]])
        swa.mark(pages, held=False)


class Declines(SWATokenToKVPoolAllocator):
    """Groups do not nest, and a second begin says so."""

    words = "a free group is open"

    def free_group_begin(self) -> None:
        """Refuses where a group is open."""
        if not self.is_not_in_free_group:
            raise AssertionError(self.words)
        super().free_group_begin()


class DeclinesWithoutAWord(Declines):
    """As ``Declines``, but it does not say why."""

    words = ""


class DeclinesEach(SWATokenToKVPoolAllocator):
    """No free group opens."""

    def free_group_begin(self) -> None:
        """Refuses."""
        raise RuntimeError("there are no free groups")


class IgnoresStrayEnd(SWATokenToKVPoolAllocator):
    """The end of a group where none is open does nothing."""

    def free_group_end(self) -> None:
        """Ends a group if there is one."""
        if not self.is_not_in_free_group:
            super().free_group_end()


def engine(kind: type, lacks: Sequence[str] = ("bad",)) -> Callable[[Json], Any]:
    return lambda config: swa_mapping.swa_mapping(config, lacks=lacks, kind=kind)


def shows(kind: type, *steps: Json) -> Outcome:
    return outcome(Trace("swa_mapping", SIZES, [dict(step) for step in steps]), engine(kind))


LAWFUL = (SWATokenToKVPoolAllocator, Defers, DefersAndKeepsMapping, Declines, IgnoresStrayEnd)


@pytest.mark.parametrize("kind", LAWFUL, ids=lambda kind: kind.__name__)
def test_drawn_runs_find_nothing_in_what_is_lawful(kind: type) -> None:
    found = check("swa_mapping", engine(kind), Search(60 if SOAK else 25))
    assert (found.law, found.detail) == (None, None)


# What the law refused before: the engine may choose. Beside each choice stands what is wrong.

EVICT = {"op": "evict", **PAGE}
MAPPED_ANEW = (ONE_ROW, BEGIN, EVICT, {"op": "free_full", **PAGE}, {"op": "extend", "rows": [1], "more": [2]}, END)
SENT_AGAIN = (ONE_ROW, BEGIN, EVICT, EVICT, END, {"op": "extend", "rows": [1, 2], "more": [2, 2]})
NESTED = (ONE_ROW, BEGIN, BEGIN, {"op": "finish", "row": 0, "committed": 2}, END)
ROLLED_BACK = (ONE_ROW, BEGIN, {"op": "roll_back", "row": 0, "more": 3}, END, {"op": "roll_back", "row": 0, "more": 4})


@pytest.mark.parametrize(
    ("steps", "lawful", "wrong", "broken"),
    [
        (MAPPED_ANEW, (Defers, DefersAndKeepsMapping), faults.LooksUpAtEnd, "one_owner"),
        (SENT_AGAIN, (Defers, DefersAndKeepsMapping), Twice, "available_counts"),
        (NESTED, (SWATokenToKVPoolAllocator, Declines), DeclinesWithoutAWord, "lawful_call_is_answered"),
        ((BEGIN,), (SWATokenToKVPoolAllocator, Declines), DeclinesEach, "lawful_call_is_answered"),
        ((BEGIN, {"op": "clear"}, END), (SWATokenToKVPoolAllocator, IgnoresStrayEnd), None, ""),
        ((END, BEGIN, *NESTED[:1], *NESTED[3:]), (IgnoresStrayEnd,), faults.CountsStrayEnd, "free"),
        (ROLLED_BACK, (SWATokenToKVPoolAllocator, Defers), faults.RollsBackHalf, "no_leak"),
    ],
)
def test_a_choice_is_lawful_and_the_wrong_one_beside_it_is_not(
    steps: tuple[Json, ...], lawful: tuple[type, ...], wrong: type | None, broken: str
) -> None:
    for kind in lawful:
        assert shows(kind, *steps).verdict == "conforms", kind
    if wrong is not None:
        found = shows(wrong, *steps).first
        assert found is not None
        assert found.law == broken


# The law itself, on numbers.


def one_row(group: bool) -> law.SwaMappingState:
    """Row 0 has the full page 1 and the SWA page 1; a free group is open or not."""
    state = law.initial(2, 3, 3, 2, False)
    state = law.alloc_extend(state, 0, in_pages(2, 2), Seq([1]), Seq([1])).then
    return law.free_group_begin(state, True).then if group else state


NAMED = (Set([1]), Set([(1, 0), (1, 1)]))


@pytest.mark.parametrize("at_once", [False, True])
def test_the_end_gives_back_what_was_mapped_when_it_was_freed(at_once: bool) -> None:
    waits = law.free_swa(one_row(True), *NAMED).then
    assert (waits.now.swa.place(1), waits.now.to_page(1, 0)) == (PENDING, 1)
    if at_once:
        waits = law.settle_swa(waits, Set([1]), True).then
        assert (waits.now.swa.place(1), waits.now.to_page(1, 0), waits.now.swa.available) == (FREE, 0, 3)
    anew = law.free_full(waits, *NAMED, False).then
    anew = law.alloc_extend(anew, 1, in_pages(2, 2), Seq([1]), Seq([2])).then
    ended = law.free_group_end(anew).then
    assert (ended.now.swa.place(1), ended.now.swa.place(2), ended.now.to_page(1, 0)) == (FREE, HELD, 2)
    assert ended.now.swa.available == 2


def test_a_page_that_is_given_back_again_is_given_back_once() -> None:
    once = law.free_swa(one_row(True), *NAMED)
    again = law.free_swa(once.then, *NAMED)
    assert again.granted
    assert law.free_group_end(again.then).then.now.swa.available == law.free_group_end(once.then).then.now.swa.available
    outside = law.free_swa(law.free_swa(one_row(False), *NAMED).then, *NAMED)
    assert (outside.granted, outside.then.now.swa.available) == (True, 3)


def test_what_settle_swa_may_not_do() -> None:
    held = law.settle_swa(one_row(True), Set([1]), True)
    assert held.broken() == ["each of these SWA pages waits for the end of the group"]
    freed = law.settle_swa(law.free(one_row(True), *NAMED).then, Set([1]), True)
    assert freed.broken() == ["no full page that waits maps into one of them"]


def test_free_full_waits_only_in_a_group_and_only_without_an_swa_page() -> None:
    mapped = law.free_full(one_row(True), *NAMED, True)
    assert mapped.broken() == ["no slot of a freed page maps into an SWA page that is held"]
    alone = law.free_full(law.free_swa(one_row(False), *NAMED).then, *NAMED, True)
    assert alone.broken() == ["pages wait only while a free group is open"]
    waits = law.free_full(law.free_swa(one_row(True), *NAMED).then, *NAMED, True)
    assert (waits.granted, waits.then.now.full.place(1)) == (True, PENDING)


def test_a_begin_may_be_refused_only_within_a_group() -> None:
    assert law.free_group_begin(one_row(False), False).broken() == ["a free group opens where none is open"]
    refused = law.free_group_begin(one_row(True), False)
    assert (refused.granted, changes(refused.then, one_row(True))) == (True, [])


def test_a_rolled_back_allocation_leaves_all_as_it_was() -> None:
    state = one_row(False)
    back = law.roll_back(state, 1, in_pages(4, 2), Seq([2, 3]), Seq([3, 2]))
    assert (back.granted, changes(back.then, state)) == (True, [])
    taken = law.roll_back(state, 1, in_pages(4, 2), Seq([1, 2]), Seq([2, 3]))
    assert taken.broken() == ["the full pages handed out were free"]
    assert not law.roll_back(state, 1, in_pages(6, 2), Seq([]), Seq([])).fits

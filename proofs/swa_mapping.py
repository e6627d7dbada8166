"""What the provers need for the SWA mapping: a small world, calls to try, mutants and proof hints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from proofs import answers
from proofs.allocator import IDLERS, begins, cuts, frees, growths, nothing, unheld
from proofs.hints import COMMON, Hints, Mutant, altered, idlers, unasked, unchosen
from spec import pair as pairs
from spec import swa_mapping as law
from spec.finite import Seq, Set
from spec.lengths import Length, in_pages, in_tokens, next_token, touched
from spec.logic import Number, Slots, Step, Truth, but, ite
from spec.pool import FREE, HELD, PADDING, PENDING, RELEASED, cut, drop, held, length, resting, some_open, take, waiting
from spec.swa_mapping import SwaMappingState

SIZES = {"page_size": 2, "rows": 2, "indices": 3, "full.pages": 3, "swa.pages": 2}


def small() -> tuple[SwaMappingState, ...]:
    """Three full and two SWA pages of two slots, and two rows, with and without release lists.

    The last is a model without sliding-window layers, which uses no SWA page.
    """
    shapes = ((True, True), (False, True), (False, False))
    return tuple(
        law.initial(page_size=2, size=3, size_swa=2, rows=2, need_sort=sorts, windowed=windowed)
        for sorts, windowed in shapes
    )


def _pages(st: SwaMappingState, need: int, need_swa: int) -> tuple[Seq, Seq]:
    return some_open(st.now.full, need), some_open(st.now.swa, need_swa if st.windowed else 0)


def _alloc(st: SwaMappingState) -> Iterator[tuple[Any, ...]]:
    yield from ((r, n, *_pages(st, n, n)) for r in st.now.full.rows.items() for n in (1, 2))


def _decode(st: SwaMappingState) -> Iterator[tuple[Any, ...]]:
    full = st.now.full
    for row in full.rows.items():
        need = touched(next_token(length(full, row), full.page_size)) - touched(length(full, row))
        yield row, *_pages(st, need, need)


def _tail(st: SwaMappingState) -> Iterator[tuple[Any, ...]]:
    full = st.now.full
    for row, to, need in growths(full):
        if full.whole(row) or full.rest(row):
            continue  # lawful behind whole pages too: ``session_trim`` tries that, and here it would slow the search
        for tokens in range(in_tokens(to, full.page_size) + 1):
            start = in_pages(tokens, full.page_size)
            swa_need = touched(to) - start.pages if start != to else 0
            yield row, start, to, *_pages(st, need, swa_need)


def _hand_over(st: SwaMappingState) -> Iterator[tuple[int, int, int, int]]:
    full = st.now.full
    for row in full.rows.items():
        for to in full.rows.items():
            yield from ((row, to, 0, last) for last in range(1, full.whole(row) + 1))


def _grown(st: SwaMappingState) -> Iterator[tuple[Any, ...]]:
    """Longer rows with the SWA pages that they need; without a window also with SWA pages, which the law refuses."""
    for row, to, need in growths(st.now.full):
        yield row, to, *_pages(st, need, need)
        if not st.windowed:
            yield row, to, some_open(st.now.full, need), some_open(st.now.swa, need)


def settled(pair: pairs.Pair) -> Iterator[tuple[Set, bool]]:
    """Each SWA page by itself, unmapped alone, and available; the law accepts those that wait for a group's end."""
    for page in pair.swa.pages.items():
        yield from ((Set([page]), available) for available in (False, True))


MOVES = {
    "alloc": _alloc,
    "alloc_extend": _grown,
    "roll_back": _grown,
    "alloc_decode": _decode,
    "alloc_extend_swa_tail": _tail,
    "free_swa": lambda st: frees(st.now.full),
    "free": lambda st: frees(st.now.full),
    "settle_swa": lambda st: settled(st.now),
    "free_full": lambda st: ((*named, later) for named in frees(st.now.full) for later in (False, True)),
    "shorten": lambda st: cuts(st.now.full),
    "adopt": lambda st: ((r, 1) for r in st.now.full.rows.items()),
    "hand_over": _hand_over,
    "hand_over_swa": _hand_over,
    "free_group_begin": begins,
    "free_group_end": nothing,
    "backup_state": nothing,
    "restore_state": nothing,
    "merge_and_sort_free": lambda _: [(False,), (True,)],
    "clear": nothing,
}


# Mutants: what each transition would do without one line of the law.


def _with(step: Step[SwaMappingState], **wrong: Any) -> Step[SwaMappingState]:
    return replace(step, then=replace(step.then, now=replace(step.then.now, **wrong)))


def _wrong_full(step: Step[SwaMappingState], **wrong: Any) -> Step[SwaMappingState]:
    return _with(step, full=replace(step.then.now.full, **wrong))


def loses_place(st: SwaMappingState, gone: Set, slots: Slots) -> Step[SwaMappingState]:
    """A full page that is freed within a group goes to a place that does not exist."""
    step = law.free(st, gone, slots)
    after = step.then.now.full.place
    lost = after.where(lambda p: gone.has(p) & (after(p) == PENDING), PENDING + 1, gone.items)
    return _wrong_full(step, place=lost)


def keeps_reference(st: SwaMappingState, gone: Set, slots: Slots, later: Truth) -> Step[SwaMappingState]:
    """A row gives back its full pages, and keeps them in its table."""
    return _wrong_full(law.free_full(st, gone, slots, later), table=st.now.full.table)


def forgets_page(st: SwaMappingState, gone: Set, slots: Slots, later: Truth) -> Step[SwaMappingState]:
    """A row drops its full page, and the page is not given back."""
    full = st.now.full
    return _wrong_full(law.free_full(st, gone, slots, later), place=full.place, available=full.available)


def keeps_pages(st: SwaMappingState, row: Number, to: Length) -> Step[SwaMappingState]:
    """A row becomes shorter, and its caller has not freed the pages beyond."""
    return unasked(law.shorten(st, row, to), "the row owns no page without a token below the new length")


def forgets_count(st: SwaMappingState, gone: Set, slots: Slots) -> Step[SwaMappingState]:
    """A free does not count the full pages that it gives back as available."""
    return _wrong_full(law.free(st, gone, slots), available=st.now.full.available)


def always_releases(st: SwaMappingState, gone: Set, slots: Slots) -> Step[SwaMappingState]:
    """An evicted SWA page goes to the release list even in a pool that does not sort."""
    step, swa = law.free_swa(st, gone, slots), st.now.swa
    left = pairs.unmap(st.now, gone, True)
    released = drop(swa, pairs.mapped_from(st.now, gone), RELEASED)
    return _with(step, swa=released, to_page=left.to_page, to_offset=left.to_offset)


def keeps_mapping(st: SwaMappingState, gone: Set, slots: Slots) -> Step[SwaMappingState]:
    """A free leaves the mapping of its pages behind (which SGLang PR 25805 met)."""
    step = law.free(st, gone, slots)
    return _with(step, to_page=st.now.to_page, to_offset=st.now.to_offset)


def keeps_live_mapping(st: SwaMappingState, gone: Set, slots: Slots) -> Step[SwaMappingState]:
    """A window eviction frees the SWA page at once, and the held full page still maps into it."""
    step, swa = law.free_swa(st, gone, slots), st.now.swa
    early = drop(swa, pairs.mapped_from(st.now, gone), resting(swa))
    return _with(step, swa=early, to_page=st.now.to_page, to_offset=st.now.to_offset)


def moves_pages_alone(
    st: SwaMappingState, row: Number, to: Number, first: Number, last: Number
) -> Step[SwaMappingState]:
    """SWA pages go to another row, and the mapping still leads to them from the full pages of the giver."""
    step = law.hand_over_swa(st, row, to, first, last)
    return _with(step, to_page=st.now.to_page, to_offset=st.now.to_offset)


def numbers_from_tail(
    st: SwaMappingState, row: Number, start: Length, to: Length, full_pages: Seq, swa_pages: Seq
) -> Step[SwaMappingState]:
    """The SWA slots of a tail are numbered from the start of the tail instead of the start of its page."""
    step = law.alloc_extend_swa_tail(st, row, start, to, full_pages, swa_pages)
    pair = step.then.now

    def tail_slots() -> list[tuple[int, int]]:
        return [(p, o) for p in full_pages.items() for o in pair.full.offsets.items()]

    first = pair.to_offset.where(
        lambda p, o: full_pages.has(p) & (pair.to_page(p, o) != 0), lambda _, o: o - start.rest, tail_slots
    )
    return _with(step, to_offset=first)


def leaks_swa(st: SwaMappingState, gone: Set, slots: Slots) -> Step[SwaMappingState]:
    """A window eviction unmaps its pages, and the SWA pages are not given back."""
    step, left = law.free_swa(st, gone, slots), pairs.unmap(st.now, gone, True)
    return _with(step, swa=st.now.swa, to_page=left.to_page, to_offset=left.to_offset)


def frees_swa_early(st: SwaMappingState, gone: Set, slots: Slots) -> Step[SwaMappingState]:
    """Within a group the full pages wait, but their SWA pages are available at once."""
    step = law.free(st, gone, slots)
    early = drop(st.now.swa, pairs.mapped_from(st.now, gone), resting(st.now.swa))
    return _with(step, swa=early)


def cuts_one_side(st: SwaMappingState, row: Number, to: Length) -> Step[SwaMappingState]:
    """A cut changes the length of the row in the full pool alone."""
    step = law.shorten(st, row, to)
    swa = step.then.now.swa
    return _with(step, swa=cut(swa, row, length(st.now.swa, row)))


def never_settles(st: SwaMappingState) -> Step[SwaMappingState]:
    """The end of the outermost group leaves its pages waiting."""
    step = law.free_group_end(st)
    return replace(step, then=replace(step.then, now=st.now, backed_up=False))


def keeps_mapping_after_end(st: SwaMappingState) -> Step[SwaMappingState]:
    """The end of a group makes SWA pages available, and full slots of rows still map into them."""
    step = law.free_group_end(st)
    return _with(step, to_page=st.now.to_page, to_offset=st.now.to_offset)


def gives_back_what_stands_there(st: SwaMappingState) -> Step[SwaMappingState]:
    """The end of a group looks up again what it gives back: not the SWA page that was freed, but the one that stands
    at its row and index by then (SGLang 0.5.18 reads the mapping at the end).
    """
    step, swa = law.free_group_end(st), st.now.swa

    def replaced(s: Number) -> Truth:
        return swa.pages.any(
            lambda old: (
                (st.group == 1)
                & pairs.waits(swa, old)
                & held(swa, s)
                & (swa.owner(old) == swa.owner(s))
                & (swa.index(old) == swa.index(s))
            )
        )

    wrong = swa.pages.such(replaced, swa.pages.items)
    now = step.then.now.swa
    return _with(step, swa=replace(now, place=now.place.where(wrong.has, resting(swa), wrong.items)))


def settles_under_waiting_page(st: SwaMappingState, done: Set, available: Truth) -> Step[SwaMappingState]:
    """SWA pages become available before the end of the group though a full page that waits maps into them."""
    step = unchosen(law.settle_swa(st, done, available), "no full page that waits maps into one of them")
    full, now = st.now.full, step.then.now

    def waiting_slots() -> list[tuple[int, int]]:
        return [(p, o) for p in waiting(full, True).items() for o in full.offsets.items()]

    def stays(p: Number, _: Number) -> Truth:
        return full.place(p) == PENDING

    return _with(
        step,
        to_page=now.to_page.where(stays, st.now.to_page, waiting_slots),
        to_offset=now.to_offset.where(stays, st.now.to_offset, waiting_slots),
    )


def settles_what_is_held(st: SwaMappingState, done: Set, available: Truth) -> Step[SwaMappingState]:
    """An engine makes SWA pages available that nobody gave back."""
    step = law.settle_swa(st, done, available)
    return unchosen(step, "each of these SWA pages waits for the end of the group")


def waits_without_group(st: SwaMappingState, gone: Set, slots: Slots, later: Truth) -> Step[SwaMappingState]:
    """Full pages that are given back alone wait for the end of a free group, and none is open."""
    return unchosen(law.free_full(st, gone, slots, later), "pages wait only while a free group is open")


def waits_though_freed_at_once(st: SwaMappingState, gone: Set, slots: Slots, later: Truth) -> Step[SwaMappingState]:
    """Full pages that are to be handed out again at once wait for the end of the free group."""
    return altered(law.free_full(st, gone, slots, later), now=law.free_full(st, gone, slots, st.group > 0).then.now)


def frees_mapped_page(st: SwaMappingState, gone: Set, slots: Slots, later: Truth) -> Step[SwaMappingState]:
    """A full page is given back alone while its slots still map into an SWA page that is held."""
    step = law.free_full(st, gone, slots, later)
    return replace(step, promises=step.promises[:-1])


def keeps_mapping_of_full(st: SwaMappingState, gone: Set, slots: Slots, later: Truth) -> Step[SwaMappingState]:
    """A full page is given back at once within a group, and keeps its mapping until the group ends."""
    step = law.free_full(st, gone, slots, later)
    return _with(step, to_page=st.now.to_page, to_offset=st.now.to_offset)


def keeps_rolled_back(
    st: SwaMappingState, row: Number, to: Length, full_pages: Seq, swa_pages: Seq
) -> Step[SwaMappingState]:
    """A caller fails before it uses its new slots: the full pages are given back, and the SWA pages are lost."""
    step = law.roll_back(st, row, to, full_pages, swa_pages)
    swa = step.then.now.swa
    lost = replace(
        swa,
        place=swa.place.where(swa_pages.has, HELD, swa_pages.items),
        available=st.now.swa.available - swa_pages.length,
    )
    return _with(step, swa=lost)


def frees_at_once(st: SwaMappingState, gone: Set, slots: Slots) -> Step[SwaMappingState]:
    """A free makes its pages available though a free group is open."""
    return altered(law.free(st, gone, slots), now=law.free(but(st, group=0), gone, slots).then.now)


def frees_swa_at_once(st: SwaMappingState, gone: Set, slots: Slots) -> Step[SwaMappingState]:
    """A window that moves on makes its SWA pages available though a free group is open."""
    return altered(law.free_swa(st, gone, slots), now=law.free_swa(but(st, group=0), gone, slots).then.now)


def closes_the_group(st: SwaMappingState, gone: Set, slots: Slots) -> Step[SwaMappingState]:
    """A free closes the free group that is open."""
    return altered(law.free(st, gone, slots), group=0)


def refuses_the_first_group(st: SwaMappingState, opens: Truth) -> Step[SwaMappingState]:
    """An engine refuses to open a free group where none is open, so that freed pages do not wait."""
    return unchosen(law.free_group_begin(st, opens), "a free group opens where none is open")


def fills_a_missing_page(
    st: SwaMappingState, row: Number, to: Length, full_pages: Seq, swa_pages: Seq
) -> Step[SwaMappingState]:
    """A row grows though its partial page was freed: the new tokens have no slot there."""
    grown = law.alloc_extend(st, row, to, full_pages, swa_pages)
    return unasked(grown, "the row owns the partial page that the new tokens fill")


def grows_without_swa(
    st: SwaMappingState, row: Number, to: Length, full_pages: Seq, swa_pages: Seq
) -> Step[SwaMappingState]:
    """A row grows as in a model without sliding-window layers: its new tokens have no SWA slots."""
    grown = law.alloc_extend(but(st, windowed=False), row, to, full_pages, swa_pages)
    return altered(grown, windowed=st.windowed)


def frees_twice(st: SwaMappingState, gone: Set, slots: Slots) -> Step[SwaMappingState]:
    """A caller frees full pages that nobody holds, since they were freed before."""
    return unheld(law.free(st, gone, slots))


def frees_full_twice(st: SwaMappingState, gone: Set, slots: Slots, later: Truth) -> Step[SwaMappingState]:
    """A caller frees full pages alone that nobody holds, since they were freed before."""
    return unheld(law.free_full(st, gone, slots, later))


def frees_swa_twice(st: SwaMappingState, gone: Set, slots: Slots) -> Step[SwaMappingState]:
    """A window eviction frees every SWA page that the mapping names, also those that wait since they were freed."""
    step, pair = law.free_swa(st, gone, slots), st.now

    def named(s: Number) -> Truth:
        return pair.full.pages.any(
            lambda p: gone.has(p) & pair.full.offsets.any(lambda o: pair.to_page(p, o) == s),
        )

    gone_swa = pair.swa.pages.such(named, pair.swa.pages.items)
    return _with(step, swa=drop(pair.swa, gone_swa, ite(st.group > 0, PENDING, resting(pair.swa))))


def takes_unused_swa(
    st: SwaMappingState, row: Number, to: Length, full_pages: Seq, swa_pages: Seq
) -> Step[SwaMappingState]:
    """A model without sliding-window layers takes SWA pages for the tokens of a row, as if it had such layers."""
    step = law.alloc_extend(replace(st, windowed=True), row, to, full_pages, swa_pages)
    return replace(step, then=replace(step.then, windowed=st.windowed))


def keeps_backup(st: SwaMappingState, gone: Set, slots: Slots) -> Step[SwaMappingState]:
    """A backup can still be restored after a free."""
    step = law.free(st, gone, slots)
    return replace(step, then=replace(step.then, backed_up=st.backed_up))


def keeps_what_it_was_granted(
    st: SwaMappingState, row: Number, to: Length, full_pages: Seq, swa_pages: Seq
) -> Step[SwaMappingState]:
    """A caller fails before it uses its new slots, and the row keeps them."""
    return law.alloc_extend(st, row, to, full_pages, swa_pages)


def rolls_back_at_once(
    st: SwaMappingState, row: Number, to: Length, full_pages: Seq, swa_pages: Seq
) -> Step[SwaMappingState]:
    """What is rolled back within a free group does not wait for the end of the group."""
    at_once = law.roll_back(but(st, group=0), row, to, full_pages, swa_pages)
    return altered(law.roll_back(st, row, to, full_pages, swa_pages), now=at_once.then.now)


def frees_unsorted(st: SwaMappingState, gone: Set, slots: Slots) -> Step[SwaMappingState]:
    """In a pool that sorts, a freed page is on the free list at once."""
    step = law.free(st, gone, slots)
    full = step.then.now.full
    unsorted = full.place.where(lambda p: gone.has(p) & (full.place(p) == RELEASED), FREE, gone.items)
    return altered(step, now=but(step.then.now, full=but(full, place=unsorted)))


def grows_without_pages(
    st: SwaMappingState, row: Number, to: Length, full_pages: Seq, swa_pages: Seq
) -> Step[SwaMappingState]:
    """A row grows, and takes none of the pages that are handed out to it."""
    longer = but(st.now, full=cut(st.now.full, row, to), swa=cut(st.now.swa, row, to))
    return altered(law.alloc_extend(st, row, to, full_pages, swa_pages), now=longer)


def hands_over_past_the_end(
    st: SwaMappingState, row: Number, to: Number, first: Number, last: Number
) -> Step[SwaMappingState]:
    """A row hands over one SWA page more than it may, of a page that has room for more tokens."""
    step = law.hand_over_swa(st, row, to, first, last)
    return but(step, then=law.hand_over_swa(st, row, to, first, last + 1).then)


def _next_to_a_growing_page(st: SwaMappingState) -> Iterator[tuple[int, int, int, int]]:
    """Calls that hand over nothing, and end where the giver has a page that has room for more tokens."""
    full, swa = st.now.full, st.now.swa
    for row in full.rows.items():
        at = full.whole(row)
        grows = full.rest(row) > 0 and swa.table(row, at) != PADDING
        others = (r for r in full.rows.items() if full.table(r, at) != PADDING and swa.table(r, at) == PADDING)
        yield from ((row, to, at, at) for to in others if grows)


def restores_once(st: SwaMappingState) -> Step[SwaMappingState]:
    """A backup is gone after its first restore."""
    return altered(law.restore_state(st), backed_up=False)


GROWING_PAGE = {
    "moves": {**MOVES, "hand_over_swa": _next_to_a_growing_page},
    "routes": {"hand_over_swa": "alloc free_swa alloc_extend"},
}
MUTANTS = (
    Mutant("restores_once", "restore_state", "backup_stays", restores_once),
    *idlers(
        law.stem,
        **IDLERS,
        free_swa="frees_the_swa_pages_of_what_is_named",
        hand_over="pages_go_to_the_receiver",
        hand_over_swa="a_range_is_passed_on",
    ),
    Mutant("frees_unsorted", "free", "freed_page_waits_to_be_sorted", frees_unsorted),
    Mutant("rolls_back_at_once", "roll_back", "rolled_back_pages_are_free_again", rolls_back_at_once),
    Mutant("keeps_what_it_was_granted", "roll_back", "rows_keep_their_lengths", keeps_what_it_was_granted),
    Mutant("grows_without_pages", "alloc_extend", "row_gets_the_chosen_pages", grows_without_pages),
    Mutant(
        "hands_over_past_the_end",
        "hand_over_swa",
        "a_growing_page_keeps_its_swa_page",
        hands_over_past_the_end,
        GROWING_PAGE,
    ),
    Mutant("loses_place", "free", "places", loses_place),
    Mutant("keeps_reference", "free_full", "one_owner", keeps_reference),
    Mutant("forgets_page", "free_full", "no_leak", forgets_page),
    Mutant("keeps_pages", "shorten", "row_ends", keeps_pages),
    Mutant("forgets_count", "free", "available_counts", forgets_count),
    Mutant("always_releases", "free_swa", "released_if_sorted", always_releases),
    Mutant("keeps_mapping", "free", "free_maps_to_nothing", keeps_mapping),
    Mutant("keeps_live_mapping", "free_swa", "mapping_is_live", keeps_live_mapping),
    Mutant("moves_pages_alone", "hand_over_swa", "mapping_is_live", moves_pages_alone),
    Mutant("numbers_from_tail", "alloc_extend_swa_tail", "mapping_keeps_offset", numbers_from_tail),
    Mutant("leaks_swa", "free_swa", "swa_is_reached", leaks_swa),
    Mutant("frees_swa_early", "free", "pending_together", frees_swa_early),
    Mutant("cuts_one_side", "shorten", "same_lengths", cuts_one_side),
    Mutant("never_settles", "free_group_end", "pending_in_group", never_settles),
    Mutant("keeps_mapping_after_end", "free_group_end", "mapping_is_live", keeps_mapping_after_end),
    Mutant("gives_back_what_stands_there", "free_group_end", "one_owner", gives_back_what_stands_there),
    Mutant("settles_under_waiting_page", "settle_swa", "pending_together", settles_under_waiting_page),
    Mutant("settles_what_is_held", "settle_swa", "available_counts", settles_what_is_held),
    Mutant("frees_mapped_page", "free_full", "swa_is_reached", frees_mapped_page),
    Mutant("keeps_mapping_of_full", "free_full", "free_maps_to_nothing", keeps_mapping_of_full),
    Mutant("keeps_rolled_back", "roll_back", "no_leak", keeps_rolled_back),
    Mutant("frees_at_once", "free", "freed_page_waits", frees_at_once),
    Mutant("frees_swa_at_once", "free_swa", "freed_swa_page_waits", frees_swa_at_once),
    Mutant("closes_the_group", "free", "groups_are_counted", closes_the_group),
    Mutant("refuses_the_first_group", "free_group_begin", "a_group_is_open", refuses_the_first_group),
    Mutant("fills_a_missing_page", "alloc_extend", "new_token_has_a_slot", fills_a_missing_page),
    Mutant("grows_without_swa", "alloc_extend", "new_token_has_an_swa_slot", grows_without_swa),
    Mutant("frees_twice", "free", "freed_exactly_once", frees_twice),
    Mutant("frees_full_twice", "free_full", "freed_exactly_once", frees_full_twice),
    Mutant("frees_swa_twice", "free_swa", "freed_exactly_once", frees_swa_twice),
    Mutant("takes_unused_swa", "alloc_extend", "no_swa_without_window", takes_unused_swa),
    Mutant("keeps_backup", "free", "backup_still_holds", keeps_backup),
    Mutant("waits_without_group", "free_full", "pending_in_group", waits_without_group),
    Mutant("waits_though_freed_at_once", "free_full", "freed_page_waits_as_chosen", waits_though_freed_at_once),
)


# Wrong transitions of known bugs; the faults of conformance use them.


def loses_what_waits(st: SwaMappingState) -> Step[SwaMappingState]:
    """The end of a group no longer finds the full pages that wait: what it has kept of them was overwritten."""
    step, full = law.free_group_end(st), st.now.full
    lost = waiting(full, st.group == 1)
    now = step.then.now.full
    return _wrong_full(step, place=now.place.where(lost.has, HELD, lost.items), available=full.available)


def counts_stray_end(st: SwaMappingState) -> Step[SwaMappingState]:
    """An end closes a group where none is open, so that the next group never opens."""
    step = law.free_group_end(st)
    return replace(step, then=replace(step.then, group=st.group - 1))


def restores_pools_alone(st: SwaMappingState) -> Step[SwaMappingState]:
    """A restore brings back both pools, and leaves the mapping of the pages that it takes back (SGLang PR 25805)."""
    step = law.restore_state(st)
    stale = replace(st.saved, to_page=st.now.to_page, to_offset=st.now.to_offset)
    return replace(step, then=replace(st, now=stale))


def keeps_pages_of_refused_decode(
    st: SwaMappingState, row: Number, full_pages: Seq, swa_pages: Seq
) -> Step[SwaMappingState]:
    """A decode that the SWA pool refuses has taken its full pages, and keeps them."""
    step = law.alloc_decode(st, row, full_pages, swa_pages)
    full = st.now.full
    half = take(full, row, touched(length(full, row)), next_token(length(full, row), full.page_size), full_pages)
    return replace(step, otherwise=replace(st, now=replace(st.now, full=half)))


def forgets_outer_group(st: SwaMappingState, opens: Truth) -> Step[SwaMappingState]:
    """A free group that begins within another one loses the full pages that wait for the end of the outer group."""
    step = law.free_group_begin(st, opens)
    full = st.now.full
    lost = waiting(full, st.group > 0)
    forgotten = replace(full, place=full.place.where(lost.has, HELD, lost.items))
    return replace(step, then=replace(step.then, now=replace(st.now, full=forgotten), backed_up=False))


# Transitions whose first granted call, or whose first bug, is many calls away; the search finds all others by trying
# every call.
ROUTES = {
    "restore_state": "backup_state alloc",
    "merge_and_sort_free": "alloc free_swa",
    "hand_over_swa": "alloc free_swa alloc",
    "free_swa": "alloc free_group_begin free_swa",
    "alloc_extend": "alloc",
    "alloc_extend granted": "alloc_extend free",
    "settle_swa": "alloc free_group_begin free alloc free_swa",
    "free_full": "alloc free_group_begin free_swa",
    "free_group_end": "alloc free_group_begin free_swa",
    "free_group_end granted": "alloc free_group_begin roll_back",
}
RELEVANT_LAWS = {
    "no_leak": "row_ends same_lengths",
    "row_ends": "same_lengths one_owner",
    "shorten row_ends": "same_lengths one_owner swa_is_reached",
    "mapping_is_live": "one_owner no_leak row_ends same_lengths free_maps_to_nothing",
    "swa_is_reached": "one_owner no_leak row_ends same_lengths free_maps_to_nothing mapping_is_live pending_together",
    "pending_together": "one_owner no_leak mapping_is_live",
    "roll_back pending_together": "one_owner no_leak mapping_is_live free_maps_to_nothing pending_in_group",
    "frees_the_swa_pages_of_what_is_named": "one_owner no_leak",
    "roll_back available_counts": "pending_in_group places released_if_sorted",
    "pending_in_group": "backup_still_holds",
    "backup_still_holds": "same_lengths no_leak row_ends",
}

ANSWERS = {
    "alloc": answers.pages_of_pair(answers.whole_pages),
    "alloc_decode": answers.pages_of_pair(answers.one_more),
    **dict.fromkeys(("alloc_extend", "roll_back"), answers.pages_of_pair(answers.asked)),
    "alloc_extend_swa_tail": lambda pick, st, given: answers.tail(
        pick, st.now, length(st.now.full, given["row"]).pages, given["start"], given["to"]
    ),
    "settle_swa": lambda _, st, __: answers.settles_nothing(st),
    "free_full": lambda *_: {"later": False},
    "free_group_begin": answers.opens,
}

HINTS = Hints(
    stem=law.stem,
    over={
        "full_pages": lambda st: st.now.full.pages,
        "swa_pages": lambda st: st.now.swa.pages,
        "done": lambda st: st.now.swa.pages,
        "gone": lambda st: st.now.full.pages,
        "slots": lambda st: st.now.full.pages,
    },
    sizes=SIZES,
    small=small,
    moves=MOVES,
    refusable=frozenset({"alloc", "alloc_extend", "alloc_decode", "alloc_extend_swa_tail", "roll_back"}),
    routes=ROUTES,
    relevant_laws=RELEVANT_LAWS,
    answers=ANSWERS,
    mutants=MUTANTS,
    assumptions=COMMON,
)

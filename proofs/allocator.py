"""What the provers need for the allocator: a small world, calls to try, mutants and proof hints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from proofs import answers
from proofs.hints import COMMON, Hints, Mutant, altered, idlers, unasked, unchosen
from spec import allocator as law
from spec.allocator import AllocatorState
from spec.finite import Set
from spec.lengths import Length, in_pages, in_tokens, next_token, touched
from spec.logic import Number, Seq, Slots, Step, Truth, but
from spec.pool import FREE, HELD, PENDING, RELEASED, Pool, cut, filled, held, length, some_open

SIZES = {"page_size": 2, "rows": 2, "indices": 3, "pages": 3}


def small() -> tuple[AllocatorState, ...]:
    """Three pages of two slots and two rows, with and without a release list."""
    return tuple(law.initial(page_size=2, size=3, rows=2, need_sort=sorts) for sorts in (True, False))


def growths(pool: Pool) -> Iterator[tuple[int, Length, int]]:
    """Rows, lengths that are one to three tokens longer, and how many new pages each needs."""
    for row in pool.rows.items():
        old = length(pool, row)
        for more in (1, 2, 3):
            to = in_pages(in_tokens(old, pool.page_size) + more, pool.page_size)
            if touched(to) <= pool.indices.high + 1:
                yield row, to, touched(to) - touched(old)


def cuts(pool: Pool) -> Iterator[tuple[int, Length]]:
    """Rows, and lengths that are shorter; the law accepts those whose pages beyond were freed."""
    for row in pool.rows.items():
        for tokens in range(in_tokens(length(pool, row), pool.page_size)):
            yield row, in_pages(tokens, pool.page_size)


def frees(pool: Pool) -> Iterator[tuple[Set, Set]]:
    """Each page by itself, with all its used slots, and the pages of each row; the law accepts those that are held."""
    of_rows = ([p for p in pool.pages.items() if held(pool, p) and pool.owner(p) == r] for r in pool.rows.items())
    for pages in (*([page] for page in pool.pages.items()), *(pages for pages in of_rows if len(pages) > 1)):
        yield Set(pages), Set((page, o) for page in pages for o in range(filled(pool, page)))


def _alloc(st: AllocatorState) -> Iterator[tuple[Any, ...]]:
    yield from ((r, n, some_open(st.now, n)) for r in st.now.rows.items() for n in (1, 2))


def _decode(st: AllocatorState) -> Iterator[tuple[Any, ...]]:
    for row in st.now.rows.items():
        old = length(st.now, row)
        yield row, some_open(st.now, touched(next_token(old, st.now.page_size)) - touched(old))


def nothing(_: Any) -> list[tuple[Any, ...]]:
    """The only call of a transition without arguments."""
    return [()]


def grown(st: AllocatorState) -> Iterator[tuple[Any, ...]]:
    """Rows, longer lengths and any pages that may be handed out for them."""
    yield from ((r, to, some_open(st.now, n)) for r, to, n in growths(st.now))


def begins(_: Any) -> list[tuple[Any, ...]]:
    """A group that opens, and a begin that is refused."""
    return [(True,), (False,)]


MOVES = {
    "alloc": _alloc,
    "alloc_extend": grown,
    "roll_back": grown,
    "alloc_decode": _decode,
    "free": lambda st: frees(st.now),
    "shorten": lambda st: cuts(st.now),
    "free_group_begin": begins,
    "free_group_end": nothing,
    "backup_state": nothing,
    "restore_state": nothing,
    "merge_and_sort_free": nothing,
    "clear": nothing,
}


# Mutants: what each transition would do without one line of the law.


def _free(st: AllocatorState, gone: Set, slots: Slots, **wrong: Any) -> Step[AllocatorState]:
    step = law.free(st, gone, slots)
    return replace(step, then=replace(step.then, now=replace(step.then.now, **wrong)))


def keeps_reference(st: AllocatorState, gone: Set, slots: Slots) -> Step[AllocatorState]:
    """A row frees a page, and keeps it in its table."""
    return _free(st, gone, slots, table=st.now.table)


def forgets_page(st: AllocatorState, gone: Set, slots: Slots) -> Step[AllocatorState]:
    """A row drops its page, and the page is not given back."""
    return _free(st, gone, slots, place=st.now.place, available=st.now.available)


def forgets_count(st: AllocatorState, gone: Set, slots: Slots) -> Step[AllocatorState]:
    """A free does not count the pages that it gives back as available."""
    return _free(st, gone, slots, available=st.now.available)


def always_releases(st: AllocatorState, gone: Set, slots: Slots) -> Step[AllocatorState]:
    """A freed page goes to the release list even in a pool that does not sort."""
    step = law.free(st, gone, slots)
    after = step.then.now.place
    released = after.where(lambda p: gone.has(p) & (after(p) == FREE), RELEASED, gone.items)
    return replace(step, then=replace(step.then, now=replace(step.then.now, place=released)))


def loses_place(st: AllocatorState, gone: Set, slots: Slots) -> Step[AllocatorState]:
    """A page that is freed within a group goes to a place that does not exist."""
    step = law.free(st, gone, slots)
    after = step.then.now.place
    lost = after.where(lambda p: gone.has(p) & (after(p) == PENDING), PENDING + 1, gone.items)
    return replace(step, then=replace(step.then, now=replace(step.then.now, place=lost)))


def frees_at_once(st: AllocatorState, gone: Set, slots: Slots) -> Step[AllocatorState]:
    """A free makes its pages available though a free group is open."""
    return altered(law.free(st, gone, slots), now=law.free(but(st, group=0), gone, slots).then.now)


def closes_the_group(st: AllocatorState, gone: Set, slots: Slots) -> Step[AllocatorState]:
    """A free closes the free group that is open."""
    return altered(law.free(st, gone, slots), group=0)


def refuses_the_first_group(st: AllocatorState, opens: Truth) -> Step[AllocatorState]:
    """An engine refuses to open a free group where none is open, so that freed pages do not wait."""
    return unchosen(law.free_group_begin(st, opens), "a free group opens where none is open")


def fills_a_missing_page(st: AllocatorState, row: Number, to: Length, chosen: Seq) -> Step[AllocatorState]:
    """A row grows though its partial page was freed: the new tokens have no slot there."""
    return unasked(law.alloc_extend(st, row, to, chosen), "the row owns the partial page that the new tokens fill")


def unheld(step: Step[Any]) -> Step[Any]:
    """The step of a free whose pages need not be held; so nothing is asked of their used slots, either."""
    return unasked(unasked(step, "every freed page is held by a row"), "every used slot of a freed page is freed")


def frees_twice(st: AllocatorState, gone: Set, slots: Slots) -> Step[AllocatorState]:
    """A caller frees pages that nobody holds, since they were freed before."""
    return unheld(law.free(st, gone, slots))


def keeps_backup(st: AllocatorState, gone: Set, slots: Slots) -> Step[AllocatorState]:
    """A backup can still be restored after a free."""
    step = law.free(st, gone, slots)
    return replace(step, then=replace(step.then, backed_up=st.backed_up))


def keeps_pages(st: AllocatorState, row: Number, to: Length) -> Step[AllocatorState]:
    """A row becomes shorter, and its caller has not freed the pages beyond."""
    return unasked(law.shorten(st, row, to), "the row owns no page without a token below the new length")


def never_settles(st: AllocatorState) -> Step[AllocatorState]:
    """The end of the outermost group leaves its pages waiting."""
    step = law.free_group_end(st)
    return replace(step, then=replace(step.then, now=st.now, backed_up=False))


def counts_stray_end(st: AllocatorState) -> Step[AllocatorState]:
    """An end closes a group where none is open, so that the next group never opens."""
    step = law.free_group_end(st)
    return replace(step, then=replace(step.then, group=st.group - 1))


def keeps_rolled_back(st: AllocatorState, row: Number, to: Length, chosen: Seq) -> Step[AllocatorState]:
    """A caller fails before it uses its new slots, and nobody gives the new pages back."""
    step = law.roll_back(st, row, to, chosen)
    lost = step.then.now.place.where(chosen.has, HELD, chosen.items)
    now = replace(step.then.now, place=lost, available=st.now.available - chosen.length)
    return replace(step, then=replace(step.then, now=now))


def keeps_what_it_was_granted(st: AllocatorState, row: Number, to: Length, chosen: Seq) -> Step[AllocatorState]:
    """A caller fails before it uses its new slots, and the row keeps them."""
    return law.alloc_extend(st, row, to, chosen)


def rolls_back_at_once(st: AllocatorState, row: Number, to: Length, chosen: Seq) -> Step[AllocatorState]:
    """What is rolled back within a free group does not wait for the end of the group."""
    return altered(law.roll_back(st, row, to, chosen), now=law.roll_back(but(st, group=0), row, to, chosen).then.now)


def frees_unsorted(st: AllocatorState, gone: Set, slots: Slots) -> Step[AllocatorState]:
    """In a pool that sorts, a freed page is on the free list at once."""
    step = law.free(st, gone, slots)
    after = step.then.now.place
    unsorted = after.where(lambda p: gone.has(p) & (after(p) == RELEASED), FREE, gone.items)
    return altered(step, now=but(step.then.now, place=unsorted))


def grows_without_pages(st: AllocatorState, row: Number, to: Length, chosen: Seq) -> Step[AllocatorState]:
    """A row grows, and takes none of the pages that are handed out to it."""
    return altered(law.alloc_extend(st, row, to, chosen), now=cut(st.now, row, to))


# Which law refutes a call that does nothing, of one pool and of two.
IDLERS = {
    "free_group_begin": "a_group_is_open",
    "alloc": "row_gets_its_pages",
    "alloc_extend": "row_gets_its_length",
    "alloc_decode": "row_gets_its_token",
    "shorten": "row_is_cut",
    "free": "frees_what_is_named",
    "merge_and_sort_free": "release_list_is_sorted_in",
    "backup_state": "backup_is_taken",
    "restore_state": "backup_is_restored",
}


def restores_once(st: AllocatorState) -> Step[AllocatorState]:
    """A backup is gone after its first restore."""
    return altered(law.restore_state(st), backed_up=False)


MUTANTS = (
    Mutant("restores_once", "restore_state", "backup_stays", restores_once),
    *idlers(law.stem, **IDLERS),
    Mutant("frees_unsorted", "free", "freed_page_waits_to_be_sorted", frees_unsorted),
    Mutant("rolls_back_at_once", "roll_back", "rolled_back_pages_are_free_again", rolls_back_at_once),
    Mutant("keeps_what_it_was_granted", "roll_back", "rows_keep_their_lengths", keeps_what_it_was_granted),
    Mutant("grows_without_pages", "alloc_extend", "row_gets_the_chosen_pages", grows_without_pages),
    Mutant("loses_place", "free", "places", loses_place),
    Mutant("keeps_reference", "free", "one_owner", keeps_reference),
    Mutant("forgets_page", "free", "no_leak", forgets_page),
    Mutant("keeps_pages", "shorten", "row_ends", keeps_pages),
    Mutant("forgets_count", "free", "available_counts", forgets_count),
    Mutant("always_releases", "free", "released_if_sorted", always_releases),
    Mutant("never_settles", "free_group_end", "pending_in_group", never_settles),
    Mutant("counts_stray_end", "free_group_end", "pending_in_group", counts_stray_end),
    Mutant("keeps_rolled_back", "roll_back", "no_leak", keeps_rolled_back),
    Mutant("frees_at_once", "free", "freed_page_waits", frees_at_once),
    Mutant("closes_the_group", "free", "groups_are_counted", closes_the_group),
    Mutant("refuses_the_first_group", "free_group_begin", "a_group_is_open", refuses_the_first_group),
    Mutant("fills_a_missing_page", "alloc_extend", "new_token_has_a_slot", fills_a_missing_page),
    Mutant("frees_twice", "free", "freed_exactly_once", frees_twice),
    Mutant("keeps_backup", "free", "backup_still_holds", keeps_backup),
)

RELEVANT_LAWS = {
    "no_leak": "row_ends",
    "row_ends": "one_owner",
    "pending_in_group": "backup_still_holds",
    "backup_still_holds": "no_leak row_ends",
}

ANSWERS = {
    "alloc": answers.pages_of_pool(answers.whole_pages),
    "alloc_decode": answers.pages_of_pool(answers.one_more),
    **dict.fromkeys(("alloc_extend", "roll_back"), answers.pages_of_pool(answers.asked)),
    "free_group_begin": answers.opens,
}

HINTS = Hints(
    stem=law.stem,
    over={"chosen": lambda st: st.now.pages, "gone": lambda st: st.now.pages, "slots": lambda st: st.now.pages},
    sizes=SIZES,
    small=small,
    moves=MOVES,
    refusable=frozenset({"alloc", "alloc_extend", "alloc_decode", "roll_back"}),
    relevant_laws=RELEVANT_LAWS,
    answers=ANSWERS,
    mutants=MUTANTS,
    assumptions=COMMON,
)

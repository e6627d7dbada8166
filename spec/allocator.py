"""The paged allocator: rows take pages and give them back; free groups delay frees; a backup can be restored."""

from __future__ import annotations

from dataclasses import dataclass

from spec import pool_effects
from spec.lengths import Length, at_most, formed, next_token, same, touched
from spec.logic import (
    Number,
    Part,
    Requirement,
    Seq,
    Set,
    Slots,
    Stem,
    Step,
    Truth,
    but,
    implies,
    ite,
    no,
    number,
    requires,
    truth,
)
from spec.pool import (
    LAWS,
    LEDGERS,
    PADDING,
    PENDING,
    Pool,
    cut,
    drop,
    emptied,
    filled,
    grows_whole,
    handed_back,
    held,
    length,
    merged,
    new_pool,
    open_to,
    resting,
    settle,
    take,
    waiting,
)

stem = Stem("allocator")


@dataclass(frozen=True)
class AllocatorState:
    """One pool, a copy of the pool from the last backup, and how deep free groups are nested."""

    now: Pool
    saved: Pool
    backed_up: Truth = truth()
    group: Number = number()


def initial(page_size: int, size: int, rows: int, need_sort: bool) -> AllocatorState:
    """All ``size`` pages are free, and ``rows`` rows are empty (finite reading)."""
    pool = new_pool(page_size, size, rows, need_sort)
    return start(AllocatorState(now=pool, saved=pool, backed_up=False, group=0))


def start(st: AllocatorState) -> AllocatorState:
    """Before the first call: all pages are free, all rows are empty, no free group is open, there is no backup."""
    blank = emptied(st.now)
    return AllocatorState(now=blank, saved=blank, backed_up=False, group=0)


stem.state, stem.start = AllocatorState, start


# Promises and choices that several transitions share; ``spec.swa_mapping`` uses them, too.


def lawful_choice(pool: Pool, chosen: Seq, need: Number, what: str) -> tuple[Requirement, ...]:
    """The implementation may hand out any ``need`` different pages of the free list and the release list."""
    return (
        requires(chosen.length == need, f"as many {what} are handed out as the call needs"),
        requires(chosen.all(lambda p: open_to(pool, p)), f"the {what} handed out were free"),
        requires(chosen.distinct(), f"the {what} handed out are all different"),
    )


def growing(pool: Pool, row: Number, to: Length) -> tuple[Requirement, ...]:
    """What a caller promises that lets ``row`` grow to ``to`` tokens."""
    now = length(pool, row)
    fills = (now.rest > 0) & no_shorter(now, to)
    return (
        requires(pool.rows.has(row), "the row number is a row of the pool"),
        requires(formed(to, pool.page_size), "the new length is well formed"),
        requires(at_most(now, to), "the new length is at least the row's length"),
        requires(pool.indices.has(touched(to)), "the row has room for the new length"),
        requires(
            implies(fills, pool.table(row, now.pages) != PADDING),
            "the row owns the partial page that the new tokens fill",
        ),
    )


def shrinking(pool: Pool, row: Number, to: Length) -> tuple[Requirement, ...]:
    """What a caller promises that cuts ``row`` to ``to`` tokens."""
    return (
        requires(pool.rows.has(row), "the row number is a row of the pool"),
        requires(formed(to, pool.page_size), "the new length is well formed"),
        requires(at_most(to, length(pool, row)), "the new length is at most the row's length"),
        requires(
            pool.indices.all(lambda i: implies(i >= touched(to), pool.table(row, i) == PADDING)),
            "the row owns no page without a token below the new length",
        ),
    )


def no_shorter(now: Length, to: Length) -> Truth:
    """``to`` has at least one token more than ``now``."""
    return at_most(now, to) & no(same(now, to))


def naming(pool: Pool, gone: Set, slots: Slots) -> tuple[Requirement, ...]:
    """What a caller promises that frees ``slots``: their pages are ``gone``, and all are held."""
    return (
        requires(gone.all(lambda p: held(pool, p)), "every freed page is held by a row"),
        requires(
            slots.all(lambda p, o: gone.has(p) & pool.offsets.has(o)),
            "every freed slot is a slot of a freed page",
        ),
    )


def closed(pool: Pool, gone: Set, slots: Slots) -> tuple[Requirement, ...]:
    """What a caller promises that frees ``slots``: it names all used slots of a page, since pages are freed whole."""
    return (
        *naming(pool, gone, slots),
        requires(
            gone.all(lambda p: pool.offsets.all(lambda o: implies(o < filled(pool, p), slots.has(p, o)))),
            "every used slot of a freed page is freed",
        ),
    )


def must_open(group: Number, opens: Truth) -> Requirement:
    """The implementation may refuse to open a free group only where one is open: it nests groups or it does not."""
    return requires(opens | (group > 0), "a free group opens where none is open")


def group_after_end(group: Number) -> Number:
    """How many free groups are open after one ends: no fewer than none."""
    return ite(group > 0, group - 1, 0)


# The transitions.


@stem.transition
def alloc(st: AllocatorState, row: Number, count: Number, chosen: Seq) -> Step[AllocatorState]:
    """A row whose last page is full takes ``count`` whole pages; a call without enough pages changes nothing."""
    now = length(st.now, row)
    grown = alloc_extend(st, row, Length(now.pages + count, now.rest), chosen)
    full = requires(now.rest == 0, "the row has no partial page")
    return but(grown, promises=(*grown.promises, full))


@stem.transition
def alloc_extend(st: AllocatorState, row: Number, to: Length, chosen: Seq) -> Step[AllocatorState]:
    """A row grows to ``to`` tokens: it fills its partial page, then takes new pages.

    A call without enough pages changes nothing.
    """
    first = touched(length(st.now, row))
    need = touched(to) - first
    return Step(
        promises=growing(st.now, row, to),
        choice=lawful_choice(st.now, chosen, need, "pages"),
        fits=need <= st.now.available,
        then=but(st, now=take(st.now, row, first, to, chosen)),
    )


@stem.transition
def alloc_decode(st: AllocatorState, row: Number, chosen: Seq) -> Step[AllocatorState]:
    """A row grows by one token; a call without a page that it needs changes nothing."""
    return alloc_extend(st, row, next_token(length(st.now, row), st.now.page_size), chosen)


@stem.transition
def free(st: AllocatorState, gone: Set, slots: Slots) -> Step[AllocatorState]:
    """The pages of the freed slots are given back: at once, or when the open free group ends."""
    place = ite(st.group > 0, PENDING, resting(st.now))
    return Step(
        promises=closed(st.now, gone, slots),
        then=but(st, now=drop(st.now, gone, place), backed_up=st.backed_up & (gone.size == 0)),
    )


@stem.transition
def shorten(st: AllocatorState, row: Number, to: Length) -> Step[AllocatorState]:
    """A row is cut to ``to`` tokens: its caller freed the pages that keep no token. The allocator gets no call."""
    return Step(
        promises=shrinking(st.now, row, to),
        then=but(st, now=cut(st.now, row, to), backed_up=st.backed_up & same(length(st.now, row), to)),
    )


@stem.transition
def roll_back(st: AllocatorState, row: Number, to: Length, chosen: Seq) -> Step[AllocatorState]:
    """A row is granted what it needs to grow to ``to`` tokens, and its caller fails before it uses the new slots.

    The caller gives the new pages back; then all is as it was: no row has changed, and the pages can be handed out
    again, at once or when the open free group ends.
    """
    place = ite(st.group > 0, PENDING, resting(st.now))
    return but(
        alloc_extend(st, row, to, chosen),
        then=but(st, now=handed_back(st.now, chosen, place), backed_up=st.backed_up & (chosen.length == 0)),
    )


@stem.transition
def free_group_begin(st: AllocatorState, opens: Truth) -> Step[AllocatorState]:
    """A free group begins: freed pages wait until the outermost open group ends.

    An engine may refuse to open a group within a group; then nothing changes.
    """
    return Step(choice=(must_open(st.group, opens),), then=but(st, group=st.group + ite(opens, 1, 0)))


@stem.transition
def free_group_end(st: AllocatorState) -> Step[AllocatorState]:
    """A free group ends: the end of the outermost group makes the waiting pages available.

    An end changes nothing where no group is open, as after a ``clear`` within a group.
    """
    done = waiting(st.now, st.group == 1)
    return Step(
        then=but(
            st, now=settle(st.now, done), backed_up=st.backed_up & (done.size == 0), group=group_after_end(st.group)
        ),
    )


@stem.transition
def backup_state(st: AllocatorState) -> Step[AllocatorState]:
    """The pool is saved; it can be restored as long as no page is given back."""
    return Step(then=but(st, saved=st.now, backed_up=True))


@stem.transition
def restore_state(st: AllocatorState) -> Step[AllocatorState]:
    """The saved pool is restored: every page that was handed out since the backup is free again."""
    return Step(
        promises=(requires(st.backed_up, "a backup was taken, and no page was given back since"),),
        then=but(st, now=st.saved),
    )


@stem.transition
def merge_and_sort_free(st: AllocatorState) -> Step[AllocatorState]:
    """All pages of the release list go to the free list; nothing else changes."""
    return Step(then=but(st, now=merged(st.now, True)))


@stem.transition
def clear(st: AllocatorState) -> Step[AllocatorState]:
    """The allocator is again as before the first call."""
    return Step(then=start(st))


# The laws.


def pools(st: AllocatorState) -> tuple[Part, ...]:
    """The parts of the state that are pools."""
    return (("now", st.now), ("saved", st.saved))


for _law in LAWS:
    stem.invariant(pools, ledger=_law in LEDGERS)(_law)


def none_waits(pool: Pool) -> Truth:
    """No page waits for the end of a free group."""
    return pool.pages.all(lambda p: pool.place(p) != PENDING)


def still_holds(saved: Pool, now: Pool) -> Truth:
    """Each page that was held at the backup is still held by its row, at its index.

    No row became shorter since, and exactly the pages that waited then wait now.
    """
    return saved.pages.all(
        lambda p: (
            ((now.place(p) == PENDING) == (saved.place(p) == PENDING))
            & implies(
                held(saved, p),
                held(now, p) & (now.owner(p) == saved.owner(p)) & (now.index(p) == saved.index(p)),
            )
        )
    ) & saved.rows.all(lambda r: at_most(length(saved, r), length(now, r)))


@stem.invariant()
def pending_in_group(st: AllocatorState) -> Truth:
    """Pages are pending only while a free group is open."""
    return (st.group >= 0) & implies(st.group == 0, none_waits(st.now))


@stem.invariant()
def backup_still_holds(st: AllocatorState) -> Truth:
    """While a backup can be restored, every row still holds the pages that it held at the backup.

    So a restore takes back only pages that were handed out since.
    """
    return implies(st.backed_up, still_holds(st.saved, st.now))


# The laws of two states.


def waits_for_the_end(was: Pool, now: Pool, open_before: Number, open_after: Number) -> Truth:
    """A page that was held, or that waited, is available after the call only where no group is open any more.

    ``open_before``, ``open_after``: how many free groups are open.
    """
    ended = (open_before == 0) | (open_after == 0)
    return ended | was.pages.all(lambda p: implies(open_to(now, p), open_to(was, p)))


@stem.change(besides=("restore_state",))
def freed_page_waits(was: AllocatorState, now: AllocatorState) -> Truth:
    """While a free group is open no page becomes available: what is freed waits until the outermost group ends.

    Only a restore may give back at once the pages that were handed out since the backup.
    """
    return waits_for_the_end(was.now, now.now, was.group, now.group)


@stem.change(besides=("free_group_begin", "free_group_end", "clear"))
def groups_are_counted(was: AllocatorState, now: AllocatorState) -> Truth:
    """Only the beginning and the end of a group, and a clear, change how many groups are open."""
    return was.group == now.group


@stem.change(only=("free_group_begin",))
def a_group_is_open(was: AllocatorState, now: AllocatorState, opens: Truth) -> Truth:
    """After the beginning of a free group a group is open: one more than before, or the outer one alone."""
    return pool_effects.opens(was.group, now.group, opens)


@stem.change(besides=("alloc", "alloc_extend", "alloc_decode", "shorten", "restore_state", "clear"))
def rows_keep_their_lengths(was: AllocatorState, now: AllocatorState) -> Truth:
    """No row gets longer or shorter, but by a call that is asked for it, a restore or a clear."""
    return pool_effects.keeps_lengths(was.now, now.now)


@stem.change(only=("alloc",))
def row_gets_its_pages(was: AllocatorState, now: AllocatorState, row: Number, count: Number) -> Truth:
    """A row of whole pages that is granted ``count`` pages has so many more, and no other row changes its length."""
    return pool_effects.grows_by_pages(was.now, now.now, row, count)


@stem.change(only=("alloc_extend",))
def row_gets_its_length(was: AllocatorState, now: AllocatorState, row: Number, to: Length) -> Truth:
    """A row that is granted ``to`` tokens has so many, no fewer than before, and no other row changes its length."""
    return pool_effects.grows(was.now, now.now, row, to)


@stem.change(only=("alloc_decode",))
def row_gets_its_token(was: AllocatorState, now: AllocatorState, row: Number) -> Truth:
    """A row that decodes has one token more, and no other row changes its length."""
    return pool_effects.grows_by_a_token(was.now, now.now, row)


@stem.change(only=("shorten",))
def row_is_cut(was: AllocatorState, now: AllocatorState, row: Number, to: Length) -> Truth:
    """A row that is cut to ``to`` tokens has so many, no more than before, and no other row changes its length."""
    return pool_effects.shrinks(was.now, now.now, row, to)


@stem.change(only=("alloc", "alloc_extend", "alloc_decode"))
def row_gets_the_chosen_pages(was: AllocatorState, now: AllocatorState, row: Number, chosen: Seq) -> Truth:
    """A row that grows gets exactly the pages that the implementation hands out."""
    return pool_effects.takes_chosen(was.now, now.now, row, chosen)


@stem.change()
def new_token_has_a_slot(was: AllocatorState, now: AllocatorState) -> Truth:
    """A row that grows owns a page at each page index at which it has a new token: no token is written to nowhere."""
    return grows_whole(was.now, now.now)


@stem.change(only=("free",))
def frees_what_is_named(was: AllocatorState, now: AllocatorState, gone: Set, slots: Slots) -> Truth:
    """Exactly the pages whose slots a free names are given back: it names every used slot of them, and no other."""
    return pool_effects.gives_back(was.now, now.now, gone, slots)


@stem.change(only=("merge_and_sort_free",))
def release_list_is_sorted_in(was: AllocatorState, now: AllocatorState) -> Truth:
    """After the release list was sorted into the free list, no page is on the release list."""
    return pool_effects.sorts(was.now, now.now)


@stem.change(only=("roll_back",))
def rolled_back_pages_are_free_again(was: AllocatorState, now: AllocatorState, chosen: Seq) -> Truth:
    """The pages of a call that is rolled back can be handed out again, at once or when the open free group ends.

    Every other page is where it was.
    """
    return pool_effects.wait_or_rest(was.now, now.now, chosen, was.group > 0)


@stem.change(only=("backup_state",))
def backup_is_taken(was: AllocatorState, now: AllocatorState) -> Truth:
    """After a backup the pool can be restored as it is: each page where it is, each row with its pages."""
    return now.backed_up & pool_effects.is_copied(was.now, now.saved)


@stem.change(only=("restore_state",))
def backup_is_restored(was: AllocatorState, now: AllocatorState) -> Truth:
    """After a restore the pool is as it was saved: each page where it was, each row with the pages that it had."""
    return was.backed_up & pool_effects.is_copied(was.saved, now.now)


@stem.change(only=("alloc", "alloc_extend", "alloc_decode", "restore_state", "merge_and_sort_free", "free_group_begin"))
def backup_stays(was: AllocatorState, now: AllocatorState) -> Truth:
    """A backup stays as it was taken while pages are only handed out, and it can be restored more than once."""
    return (was.backed_up == now.backed_up) & pool_effects.is_copied(was.saved, now.saved)


@stem.change(besides=("merge_and_sort_free", "restore_state", "clear"))
def freed_page_waits_to_be_sorted(was: AllocatorState, now: AllocatorState) -> Truth:
    """In a pool that sorts, what is given back is on the release list until this list is sorted into the free list."""
    return pool_effects.waits_to_be_sorted(was.now, now.now)

"""The paged allocator: pages handed out to rows, given back, held over in free groups, restored from a backup."""

from __future__ import annotations

from dataclasses import dataclass

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
    PADDING,
    PENDING,
    Pool,
    beyond,
    cut,
    drop,
    emptied,
    filled,
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
class Allocator:
    """One pool, the pool as it was at the last backup, and how deep the free groups are nested."""

    now: Pool
    saved: Pool
    backed_up: Truth = truth()
    group: Number = number()


def initial(page_size: int, size: int, rows: int, need_sort: bool) -> Allocator:
    """Every page of ``size`` pages is free, and ``rows`` rows are empty (finite reading)."""
    pool = new_pool(page_size, size, rows, need_sort)
    return start(Allocator(now=pool, saved=pool, backed_up=False, group=0))


def start(st: Allocator) -> Allocator:
    """Before the first call: every page is free, every row is empty, no group is open, no backup can be restored."""
    blank = emptied(st.now)
    return Allocator(now=blank, saved=blank, backed_up=False, group=0)


stem.state, stem.start = Allocator, start


# The words in which transitions state their conditions; ``spec.swa_mapping`` uses them too.


def lawful_choice(pool: Pool, chosen: Seq, need: Number, what: str) -> tuple[Requirement, ...]:
    """The implementation may answer with any ``need`` different pages that are open to be handed out."""
    return (
        requires(chosen.length == need, f"as many {what} are handed out as the call needs"),
        requires(chosen.all(lambda p: open_to(pool, p)), f"the {what} handed out were free"),
        requires(chosen.distinct(), f"no page is handed out twice among the {what}"),
    )


def growing(pool: Pool, row: Number, to: Length) -> tuple[Requirement, ...]:
    """What a caller that lets ``row`` grow promises."""
    now = length(pool, row)
    fills = (now.rest > 0) & no_shorter(now, to)
    return (
        requires(pool.rows.has(row), "the row is a row"),
        requires(formed(to, pool.page_size), "the new length is a length"),
        requires(at_most(now, to), "the row does not shrink"),
        requires(pool.indices.has(touched(to)), "the row has room for its new length"),
        requires(implies(fills, pool.table(row, now.pages) != PADDING), "the row still owns the page it fills"),
    )


def shrinking(pool: Pool, row: Number, to: Length) -> tuple[Requirement, ...]:
    """What a caller that cuts ``row`` promises."""
    return (
        requires(pool.rows.has(row), "the row is a row"),
        requires(formed(to, pool.page_size), "the new length is a length"),
        requires(at_most(to, length(pool, row)), "the row does not grow"),
    )


def no_shorter(now: Length, to: Length) -> Truth:
    """A token is added."""
    return at_most(now, to) & no(same(now, to))


def naming(pool: Pool, gone: Set, slots: Slots) -> tuple[Requirement, ...]:
    """``gone`` are the pages of ``slots``, and all are held."""
    return (
        requires(gone.all(lambda p: held(pool, p)), "every freed slot belongs to a held page"),
        requires(
            slots.all(lambda p, o: gone.has(p) & pool.offsets.has(o)),
            "the freed slots are slots of their pages",
        ),
    )


def closed(pool: Pool, gone: Set, slots: Slots) -> tuple[Requirement, ...]:
    """What a caller that frees ``slots`` promises: freeing a token frees its page, so no live token stays behind."""
    return (
        *naming(pool, gone, slots),
        requires(
            gone.all(lambda p: pool.offsets.all(lambda o: implies(o < filled(pool, p), slots.has(p, o)))),
            "no live slot stays behind in a page that is freed",
        ),
    )


# The transitions.


@stem.transition
def alloc(st: Allocator, row: Number, count: Number, chosen: Seq) -> Step[Allocator]:
    """A row whose last page is full takes ``count`` whole pages; out of memory changes nothing."""
    now = length(st.now, row)
    grown = alloc_extend(st, row, Length(now.pages + count, now.rest), chosen)
    full = requires(now.rest == 0, "the row's last page is full")
    return but(grown, promises=(*grown.promises, full))


@stem.transition
def alloc_extend(st: Allocator, row: Number, to: Length, chosen: Seq) -> Step[Allocator]:
    """A row grows: first the rest of its partial page, then new pages; out of memory changes nothing."""
    first = touched(length(st.now, row))
    need = touched(to) - first
    return Step(
        promises=growing(st.now, row, to),
        choice=lawful_choice(st.now, chosen, need, "pages"),
        fits=need <= st.now.available,
        then=but(st, now=take(st.now, row, first, to, chosen)),
    )


@stem.transition
def alloc_decode(st: Allocator, row: Number, chosen: Seq) -> Step[Allocator]:
    """A row grows by one token."""
    return alloc_extend(st, row, next_token(length(st.now, row), st.now.page_size), chosen)


@stem.transition
def free(st: Allocator, gone: Set, slots: Slots) -> Step[Allocator]:
    """The pages of the freed slots are given back: at once, or at the end of the free group that is open."""
    place = ite(st.group > 0, PENDING, resting(st.now))
    return Step(
        promises=closed(st.now, gone, slots),
        then=but(st, now=drop(st.now, gone, place), backed_up=st.backed_up & (gone.size == 0)),
    )


@stem.transition
def trim(st: Allocator, row: Number, to: Length) -> Step[Allocator]:
    """A row is cut to ``to`` tokens; a page that keeps a token stays, every later page is given back."""
    now = length(st.now, row)
    place = ite(st.group > 0, PENDING, resting(st.now))
    left = cut(drop(st.now, beyond(st.now, row, to), place), row, to)
    return Step(
        promises=shrinking(st.now, row, to),
        then=but(st, now=left, backed_up=st.backed_up & same(now, to)),
    )


@stem.transition
def free_group_begin(st: Allocator) -> Step[Allocator]:
    """From here on freed pages wait; groups nest, and only the end of the outermost one gives the pages back."""
    return Step(then=but(st, group=st.group + 1))


@stem.transition
def free_group_end(st: Allocator) -> Step[Allocator]:
    """The end of the outermost group gives back what waited; an inner end gives back nothing."""
    done = waiting(st.now, st.group == 1)
    return Step(
        promises=(requires(st.group > 0, "a free group is open"),),
        then=but(st, now=settle(st.now, done), backed_up=st.backed_up & (done.size == 0), group=st.group - 1),
    )


@stem.transition
def backup_state(st: Allocator) -> Step[Allocator]:
    """The pool as it is now can be restored until something is given back."""
    return Step(then=but(st, saved=st.now, backed_up=True))


@stem.transition
def restore_state(st: Allocator) -> Step[Allocator]:
    """Everything that was handed out since the backup is free again."""
    return Step(
        promises=(requires(st.backed_up, "a backup was taken and nothing was given back since"),),
        then=but(st, now=st.saved),
    )


@stem.transition
def merge_and_sort_free(st: Allocator) -> Step[Allocator]:
    """The release list goes to the free list; nothing else changes."""
    return Step(then=but(st, now=merged(st.now, True)))


@stem.transition
def clear(st: Allocator) -> Step[Allocator]:
    """All is as before the first call."""
    return Step(then=start(st))


# The laws.


def pools(st: Allocator) -> list[Part]:
    """The parts of the state that are pools."""
    return [("now", st.now), ("saved", st.saved)]


for _law in LAWS:
    stem.invariant(pools)(_law)


def none_waits(pool: Pool) -> Truth:
    """No page is pending."""
    return pool.pages.all(lambda p: pool.place(p) != PENDING)


def still_holds(saved: Pool, now: Pool) -> Truth:
    """What was held then is held now by the same row at the same index; rows only grew; the same pages wait."""
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
def pending_in_group(st: Allocator) -> Truth:
    """A page waits only while a free group is open."""
    return (st.group >= 0) & implies(st.group == 0, none_waits(st.now))


@stem.invariant()
def backup_still_holds(st: Allocator) -> Truth:
    """While a backup can be restored, a row holds all it held then: a restore takes back only what came since."""
    return implies(st.backed_up, still_holds(st.saved, st.now))

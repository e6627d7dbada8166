"""What calls do to pools of pages: laws of two states that ``spec.allocator`` and ``spec.swa_mapping`` share.

``was`` is the state before a granted call, ``now`` the state after it.
"""

from __future__ import annotations

from spec.lengths import Length, at_most, next_token, same
from spec.logic import Number, Seq, Set, Slots, Truth, implies, ite, no
from spec.pair import Pair, swa_page
from spec.pool import FREE, PADDING, PENDING, RELEASED, Pool, filled, held, length, resting


def keeps_lengths(was: Pool, now: Pool) -> Truth:
    """No row gets longer or shorter."""
    return was.rows.all(lambda r: same(length(was, r), length(now, r)))


def gets_length(was: Pool, now: Pool, row: Number, to: Length) -> Truth:
    """The row has the length ``to`` after the call, and every other row has the length that it had."""
    others = was.rows.all(lambda r: implies(r != row, same(length(was, r), length(now, r))))
    return was.rows.has(row) & same(length(now, row), to) & others


def grows(was: Pool, now: Pool, row: Number, to: Length) -> Truth:
    """The row grows to the length ``to``; every other row has the length that it had."""
    return gets_length(was, now, row, to) & at_most(length(was, row), to)


def shrinks(was: Pool, now: Pool, row: Number, to: Length) -> Truth:
    """The row is cut to the length ``to``; every other row has the length that it had."""
    return gets_length(was, now, row, to) & at_most(to, length(was, row))


def grows_by_pages(was: Pool, now: Pool, row: Number, count: Number) -> Truth:
    """A row of whole pages has ``count`` whole pages more after the call."""
    old = length(was, row)
    return (old.rest == 0) & gets_length(was, now, row, Length(old.pages + count, 0))


def grows_by_a_token(was: Pool, now: Pool, row: Number) -> Truth:
    """The row has one token more after the call."""
    return gets_length(was, now, row, next_token(length(was, row), was.page_size))


def takes_chosen(was: Pool, now: Pool, row: Number, chosen: Seq) -> Truth:
    """The pages that the row gets are exactly the pages that the implementation handed out."""

    def new(p: Number) -> Truth:
        return held(now, p) & no(held(was, p))

    mine = was.pages.all(lambda p: implies(new(p), chosen.has(p) & (now.owner(p) == row)))
    return mine & chosen.all(new)


def gives_back(was: Pool, now: Pool, gone: Set, slots: Slots) -> Truth:
    """Exactly the pages whose slots the call names are given back: it names every used slot of them, and no other."""

    def left(p: Number) -> Truth:
        return held(was, p) & no(held(now, p))

    def named(p: Number, o: Number) -> Truth:
        return implies(left(p) & (o < filled(was, p)), slots.has(p, o))

    pages = was.pages.all(lambda p: left(p) == gone.has(p))
    all_named = was.pages.all(lambda p: was.offsets.all(lambda o: named(p, o)))
    return pages & all_named & slots.all(lambda p, o: left(p) & was.offsets.has(o))


def gives_back_swa(was: Pair, now: Pair, gone: Set, slots: Slots) -> Truth:
    """Exactly the SWA pages into which the named slots map are given back, and no full page is.

    A page that loses its SWA page has each of its mapped slots named.
    """

    def lost(p: Number) -> Truth:
        return held(was.full, p) & (swa_page(was, p) != PADDING) & (swa_page(now, p) == PADDING)

    def named(p: Number, o: Number) -> Truth:
        used = (o < filled(was.full, p)) & (was.to_page(p, o) != PADDING)
        return implies(lost(p) & used, slots.has(p, o))

    full, offsets = was.full, was.full.offsets
    pages = full.pages.all(lambda p: implies(lost(p), gone.has(p)))
    all_named = full.pages.all(lambda p: offsets.all(lambda o: named(p, o)))
    gone_now = slots.all(lambda p, o: held(now.full, p) & offsets.has(o) & (swa_page(now, p) == PADDING))
    kept = full.pages.all(lambda p: held(full, p) == held(now.full, p))
    return pages & all_named & gone_now & kept


def sorts(was: Pool, now: Pool) -> Truth:
    """No page is on the release list after the call."""
    return was.pages.all(lambda p: now.place(p) != RELEASED)


def passes_on(was: Pool, now: Pool, row: Number, to: Number, first: Number, last: Number) -> Truth:
    """The pages of the row from index ``first`` to ``last`` (excluded) stand in the row ``to``, at the same indices.

    The receiver is as long as before, or as long as these pages make it.
    """

    def moved(i: Number) -> Truth:
        there = (first <= i) & (i < last)
        return implies(there, (now.table(to, i) == was.table(row, i)) & (now.table(row, i) == PADDING))

    old = length(was, to)
    longer = old.pages >= last
    shaped = same(length(now, to), Length(ite(longer, old.pages, last), ite(longer, old.rest, 0)))
    return was.indices.all(moved) & shaped


def wait_or_rest(was: Pool, now: Pool, gone: Set | Seq, waits: Truth) -> Truth:
    """These pages wait for the end of the free group (``waits``), or are where freed pages rest.

    Every other page is where it was.
    """

    def goes_to(p: Number) -> Number:
        return ite(gone.has(p), ite(waits, PENDING, resting(was)), was.place(p))

    return was.pages.all(lambda p: now.place(p) == goes_to(p))


def is_copied(was: Pool, copy: Pool) -> Truth:
    """The copy has each page where it is, and each row with its length and its pages."""

    def row(r: Number) -> Truth:
        return same(length(was, r), length(copy, r)) & was.indices.all(lambda i: was.table(r, i) == copy.table(r, i))

    return was.pages.all(lambda p: was.place(p) == copy.place(p)) & was.rows.all(row)


def opens(was: Number, now: Number, opened: Truth) -> Truth:
    """A group is open after it began: one more than before where the implementation nests it (``opened``)."""
    return (now > 0) & (now == was + ite(opened, 1, 0))


def waits_to_be_sorted(was: Pool, now: Pool) -> Truth:
    """In a pool that sorts, no page becomes free that was not: what is given back goes to the release list."""
    return implies(was.need_sort, was.pages.all(lambda p: implies(now.place(p) == FREE, was.place(p) == FREE)))


def is_a_range(was: Pool, row: Number, first: Number, last: Number) -> Truth:
    """The indices from ``first`` to ``last`` (excluded) are those of whole pages of the row."""
    return was.rows.has(row) & (first >= 0) & (first <= last) & (last <= was.whole(row))

"""One pool of pages and the rows that own them: the noun that the allocator and the SWA mapping share.

A *row* stands for whoever owns pages in order: a request, a session slot, a tree node. ``table(row, index)`` is the
page at that place of the row, 0 where there is none. ``owner`` and ``index`` are its inverse; they turn "has exactly
one owner" and "nobody leaked it" into look-ups, which is why the proofs are fast.
"""

from __future__ import annotations

from dataclasses import dataclass

from spec.finite import Domain as Range
from spec.finite import Map as FiniteMap
from spec.finite import Seq as FiniteSeq
from spec.lengths import NOTHING, Length, formed, touched
from spec.logic import (
    Domain,
    Map,
    Number,
    Seq,
    Set,
    Truth,
    but,
    constant,
    implies,
    ite,
    number,
    total,
)

FREE, RELEASED, HELD, PENDING = 0, 1, 2, 3
PADDING = 0  # the page that is never handed out; a table entry of 0 is no page


@dataclass(frozen=True)
class Pool:
    """Where each page is, and which row owns it at which index. Lengths count tokens; ``available`` counts pages."""

    page_size: Number = constant("number", shared="page_size")
    need_sort: Truth = constant("truth", shared="need_sort")
    pages: Domain = constant("pages")
    rows: Domain = constant("naturals", shared="rows")
    indices: Domain = constant("naturals", shared="indices")
    offsets: Domain = constant("offsets", shared="offsets")
    place: Map = total(1)
    owner: Map = total(1)
    index: Map = total(1)
    table: Map = total(2)
    whole: Map = total(1)
    rest: Map = total(1)
    available: Number = number()


def new_pool(page_size: int, size: int, rows: int, need_sort: bool) -> Pool:
    """A pool of ``size`` free pages and ``rows`` empty rows (finite reading)."""
    return Pool(
        page_size=page_size,
        need_sort=need_sort,
        pages=Range(1, size),
        rows=Range(0, rows - 1),
        indices=Range(0, size),
        offsets=Range(0, page_size - 1),
        place=FiniteMap(1, FREE),
        owner=FiniteMap(1),
        index=FiniteMap(1),
        table=FiniteMap(2),
        whole=FiniteMap(1),
        rest=FiniteMap(1),
        available=size,
    )


def length(pool: Pool, row: Number) -> Length:
    """How many tokens ``row`` has."""
    return Length(pool.whole(row), pool.rest(row))


def held(pool: Pool, page: Number) -> Truth:
    """A row owns ``page``."""
    return pool.pages.has(page) & (pool.place(page) == HELD)


def open_to(pool: Pool, page: Number) -> Truth:
    """``page`` may be handed out: it is free, or on the release list."""
    return pool.pages.has(page) & ((pool.place(page) == FREE) | (pool.place(page) == RELEASED))


def some_open(pool: Pool, need: int) -> FiniteSeq:
    """The first ``need`` pages that may be handed out, none where they do not suffice (finite reading)."""
    pages = [p for p in pool.pages.items() if open_to(pool, p)]
    return FiniteSeq(pages[:need] if len(pages) >= need else [])


def filled(pool: Pool, page: Number) -> Number:
    """How many tokens of ``page`` its row uses; they are its first ones."""
    row = pool.owner(page)
    return ite(pool.index(page) < pool.whole(row), pool.page_size, pool.rest(row))


def resting(pool: Pool) -> Number:
    """Where a page goes when it is freed: to the release list where the pool sorts, else to the free list."""
    return ite(pool.need_sort, RELEASED, FREE)


def take(pool: Pool, row: Number, first: Number, to: Length, chosen: Seq) -> Pool:
    """``row`` owns the ``chosen`` pages from index ``first`` on, and is ``to`` tokens long."""
    return but(
        pool,
        place=pool.place.where(chosen.has, HELD, chosen.items),
        owner=pool.owner.where(chosen.has, row, chosen.items),
        index=pool.index.where(chosen.has, lambda p: first + chosen.index(p), chosen.items),
        table=pool.table.where(
            lambda r, i: (r == row) & (first <= i) & (i < first + chosen.length),
            lambda _, i: chosen.at(i - first),
            lambda: [(row, first + k) for k in range(chosen.length)],
        ),
        whole=pool.whole.put(row, to.pages),
        rest=pool.rest.put(row, to.rest),
        available=pool.available - chosen.length,
    )


def drop(pool: Pool, gone: Set, place: Number) -> Pool:
    """No row owns the pages ``gone``; they are at ``place``. Rows keep their length, with holes."""
    return but(
        pool,
        place=pool.place.where(gone.has, place, gone.items),
        table=pool.table.where(
            lambda r, i: gone.has(pool.table(r, i)),
            PADDING,
            lambda: [(pool.owner(p), pool.index(p)) for p in gone.items()],
        ),
        available=pool.available + ite(place == PENDING, 0, gone.size),
    )


def in_range(pool: Pool, row: Number, first: Number, last: Number) -> Set:
    """The pages that stand in ``row`` at the indices from ``first`` up to ``last``."""
    return pool.pages.such(
        lambda p: held(pool, p) & (pool.owner(p) == row) & (first <= pool.index(p)) & (pool.index(p) < last),
        lambda: [pool.table(row, i) for i in range(first, min(last, touched(length(pool, row))))],
    )


def hand_over(pool: Pool, row: Number, to: Number, first: Number, last: Number) -> Pool:
    """The pages of ``row`` from index ``first`` up to ``last`` stand in the row ``to``, at the same indices."""
    moved = in_range(pool, row, first, last)
    longer = pool.whole(to) >= last
    return but(
        pool,
        owner=pool.owner.where(moved.has, to, moved.items),
        table=pool.table.where(
            lambda r, i: ((r == to) | (r == row)) & (first <= i) & (i < last),
            lambda r, i: ite(r == to, pool.table(row, i), PADDING),
            lambda: [(r, i) for i in range(first, last) for r in (to, row)],
        ),
        whole=pool.whole.put(to, ite(longer, pool.whole(to), last)),
        rest=pool.rest.put(to, ite(longer, pool.rest(to), 0)),
    )


def cut(pool: Pool, row: Number, to: Length) -> Pool:
    """``row`` is ``to`` tokens long."""
    return but(pool, whole=pool.whole.put(row, to.pages), rest=pool.rest.put(row, to.rest))


def beyond(pool: Pool, row: Number, to: Length) -> Set:
    """The pages that ``row`` owns and of which it uses no token below ``to``."""
    return pool.pages.such(
        lambda p: held(pool, p) & (pool.owner(p) == row) & (pool.index(p) >= touched(to)),
        lambda: [pool.table(row, i) for i in range(touched(to), touched(length(pool, row)))],
    )


def waiting(pool: Pool, when: Truth) -> Set:
    """The pages that wait for the end of a free group, none unless ``when``."""
    return pool.pages.such(lambda p: when & (pool.place(p) == PENDING), pool.pages.items)


def settle(pool: Pool, done: Set) -> Pool:
    """The pages ``done`` with waiting go to rest."""
    return but(
        pool,
        place=pool.place.where(done.has, resting(pool), done.items),
        available=pool.available + done.size,
    )


def merged(pool: Pool, when: Truth) -> Pool:
    """The release list is empty, its pages are on the free list, if ``when``."""
    listed = pool.place.where(lambda p: when & pool.pages.has(p) & (pool.place(p) == RELEASED), FREE, pool.pages.items)
    return but(pool, place=listed)


def emptied(pool: Pool) -> Pool:
    """Every page is free and every row is empty."""
    return but(
        pool,
        place=pool.place.all_to(FREE),
        table=pool.table.all_to(PADDING),
        whole=pool.whole.all_to(NOTHING.pages),
        rest=pool.rest.all_to(NOTHING.rest),
        available=pool.pages.size,
    )


# The laws of a pool.


def places(pool: Pool) -> Truth:
    """Every page is in one of four places: free, released, held by a row, or pending in a free group."""
    return pool.pages.all(lambda p: (pool.place(p) >= FREE) & (pool.place(p) <= PENDING))


def one_owner(pool: Pool) -> Truth:
    """A page that stands in a row is held, by that row alone and at that index alone."""

    def there(page: Number, r: Number, i: Number) -> Truth:
        return implies(page != PADDING, held(pool, page) & (pool.owner(page) == r) & (pool.index(page) == i))

    return pool.rows.all(lambda r: pool.indices.all(lambda i: there(pool.table(r, i), r, i)))


def no_leak(pool: Pool) -> Truth:
    """A page that is held stands in its owner's row: nobody forgets a page without freeing it."""
    return pool.pages.all(
        lambda p: implies(
            pool.place(p) == HELD,
            pool.rows.has(pool.owner(p))
            & pool.indices.has(pool.index(p))
            & (pool.table(pool.owner(p), pool.index(p)) == p),
        )
    )


def row_ends(pool: Pool) -> Truth:
    """A row's length is well formed, and the row owns nothing beyond the page of its last token."""

    def ends(r: Number, end: Number) -> Truth:
        return pool.indices.all(lambda i: implies(i >= end, pool.table(r, i) == PADDING))

    shaped = pool.rows.all(lambda r: formed(length(pool, r), pool.page_size))
    return shaped & pool.rows.all(lambda r: ends(r, touched(length(pool, r))))


def available_counts(pool: Pool) -> Truth:
    """The available size is the number of pages that are free or released, no more and no less."""
    return pool.available == pool.pages.count(lambda p: open_to(pool, p))


def released_if_sorted(pool: Pool) -> Truth:
    """Only a pool that sorts has a release list."""
    return pool.need_sort | pool.pages.all(lambda p: pool.place(p) != RELEASED)


LAWS = (places, one_owner, no_leak, row_ends, available_counts, released_if_sorted)

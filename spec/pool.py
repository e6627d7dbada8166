"""One pool of pages and the rows that own them: the state and the laws that ``allocator`` and ``swa_mapping`` share.

A *row* is any owner of pages in order: a request's row of ``req_to_token``, or the pages of a tree node.
``table(row, index)`` is the page that the row owns at this page index, 0 where it owns none. ``owner(page)`` and
``index(page)`` are the inverse of ``table``: with them "a page has exactly one owner" and "no page is leaked" need no
search, which keeps the proofs fast. ``place(page)`` says where a page is: on the free list, on the release list (pages
that are merged and sorted before they are used again), held by a row, or pending until a free group ends.
``owed(page)`` is the ledger: how often the page was handed out, less how often a call named it to give it back.
"""

from __future__ import annotations

from dataclasses import dataclass

from spec.finite import Domain as Range
from spec.finite import Map as FiniteMap
from spec.finite import Seq as FiniteSeq
from spec.lengths import NOTHING, Length, at_most, formed, same, touched
from spec.logic import (
    Domain,
    Map,
    Number,
    Seq,
    Set,
    Slots,
    Truth,
    but,
    constant,
    implies,
    ite,
    no,
    number,
    total,
)

FREE, RELEASED, HELD, PENDING = 0, 1, 2, 3
PADDING = 0  # page 0 is never handed out; a table entry of 0 means that there is no page


@dataclass(frozen=True)
class Pool:
    """Where each page is, which row owns it at which index, and how long each row is.

    A row has ``whole`` full pages and ``rest`` tokens in the page after them. ``available`` counts pages.
    """

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
    owed: Map = total(1)
    available: Number = number()


def new_pool(page_size: int, size: int, rows: int, need_sort: bool) -> Pool:
    """A pool of ``size`` free pages, and ``rows`` empty rows (finite reading)."""
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
        owed=FiniteMap(1),
        available=size,
    )


def length(pool: Pool, row: Number) -> Length:
    """The length of ``row`` in tokens."""
    return Length(pool.whole(row), pool.rest(row))


def held(pool: Pool, page: Number) -> Truth:
    """``page`` is owned by a row."""
    return pool.pages.has(page) & (pool.place(page) == HELD)


def open_to(pool: Pool, page: Number) -> Truth:
    """``page`` may be handed out: it is on the free list or on the release list."""
    return pool.pages.has(page) & ((pool.place(page) == FREE) | (pool.place(page) == RELEASED))


def some_open(pool: Pool, need: int) -> FiniteSeq:
    """The first ``need`` pages that may be handed out; no page if there are fewer (finite reading)."""
    pages = [p for p in pool.pages.items() if open_to(pool, p)]
    return FiniteSeq(pages[:need] if len(pages) >= need else [])


def filled(pool: Pool, page: Number) -> Number:
    """How many tokens of ``page`` its row uses; they are the first tokens of the page."""
    row = pool.owner(page)
    return ite(pool.index(page) < pool.whole(row), pool.page_size, pool.rest(row))


def used_slots(pool: Pool, pages: Set) -> Slots:
    """The slots of these pages that hold a token of a row."""
    return pages.pairs(pool.offsets, lambda p, o: o < filled(pool, p))


def resting(pool: Pool) -> Number:
    """Where a freed page goes: to the release list if the pool sorts (``need_sort``), else to the free list."""
    return ite(pool.need_sort, RELEASED, FREE)


def take(pool: Pool, row: Number, first: Number, to: Length, chosen: Seq) -> Pool:
    """The pool after ``row`` took the ``chosen`` pages, from the page index ``first`` on, and grew to ``to`` tokens."""
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
        owed=pool.owed.where(chosen.has, lambda p: pool.owed(p) + 1, chosen.items),
        available=pool.available - chosen.length,
    )


def drop(pool: Pool, gone: Set, place: Number) -> Pool:
    """The pool after the pages ``gone`` were given back to ``place``, and no row owns them.

    Rows keep their lengths, with holes. The ledger counts each named page, whoever owned it.
    """
    return but(
        pool,
        place=pool.place.where(gone.has, place, gone.items),
        table=pool.table.where(
            lambda r, i: gone.has(pool.table(r, i)),
            PADDING,
            lambda: [(pool.owner(p), pool.index(p)) for p in gone.items()],
        ),
        owed=pool.owed.where(gone.has, lambda p: pool.owed(p) - 1, gone.items),
        available=pool.available + ite(place == PENDING, 0, gone.size),
    )


def handed_back(pool: Pool, chosen: Seq, place: Number) -> Pool:
    """The pool after the ``chosen`` pages were handed out and given back to ``place``. No row has changed."""
    return but(
        pool,
        place=pool.place.where(chosen.has, place, chosen.items),
        available=pool.available - ite(place == PENDING, chosen.length, 0),
    )


def in_range(pool: Pool, row: Number, first: Number, last: Number) -> Set:
    """The pages that ``row`` owns at the page indices from ``first`` to ``last``, ``last`` excluded."""
    return pool.pages.such(
        lambda p: held(pool, p) & (pool.owner(p) == row) & (first <= pool.index(p)) & (pool.index(p) < last),
        lambda: [pool.table(row, i) for i in range(first, min(last, touched(length(pool, row))))],
    )


def hand_over(pool: Pool, row: Number, to: Number, first: Number, last: Number) -> Pool:
    """The pool after ``row`` gave its pages from index ``first`` to ``last`` (excluded) to the row ``to``.

    Each page keeps its index.
    """
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
    """The pool with the length of ``row`` set to ``to`` tokens."""
    return but(pool, whole=pool.whole.put(row, to.pages), rest=pool.rest.put(row, to.rest))


def beyond(pool: Pool, row: Number, to: Length) -> Set:
    """The pages that ``row`` owns and in which it has no token below the length ``to``."""
    return pool.pages.such(
        lambda p: held(pool, p) & (pool.owner(p) == row) & (pool.index(p) >= touched(to)),
        lambda: [pool.table(row, i) for i in range(touched(to), touched(length(pool, row)))],
    )


def waiting(pool: Pool, when: Truth) -> Set:
    """The pages that wait for the end of a free group; no page where ``when`` is false."""
    return pool.pages.such(lambda p: when & (pool.place(p) == PENDING), pool.pages.items)


def settle(pool: Pool, done: Set) -> Pool:
    """The pool after the pages ``done``, which waited for the end of a free group, became available."""
    return but(
        pool,
        place=pool.place.where(done.has, resting(pool), done.items),
        available=pool.available + done.size,
    )


def merged(pool: Pool, when: Truth) -> Pool:
    """The pool after all pages of the release list went to the free list; unchanged where ``when`` is false."""
    listed = pool.place.where(lambda p: when & pool.pages.has(p) & (pool.place(p) == RELEASED), FREE, pool.pages.items)
    return but(pool, place=listed)


def emptied(pool: Pool) -> Pool:
    """The pool with every page free and every row empty."""
    return but(
        pool,
        place=pool.place.all_to(FREE),
        table=pool.table.all_to(PADDING),
        whole=pool.whole.all_to(NOTHING.pages),
        rest=pool.rest.all_to(NOTHING.rest),
        owed=pool.owed.all_to(0),
        available=pool.pages.size,
    )


# The laws of a pool.


def places(pool: Pool) -> Truth:
    """Every page is in exactly one place: free list, release list, held by a row, or pending in a free group."""
    return pool.pages.all(lambda p: (pool.place(p) >= FREE) & (pool.place(p) <= PENDING))


def one_owner(pool: Pool) -> Truth:
    """A page that stands in a row is held by this row alone, at this index alone."""

    def there(page: Number, r: Number, i: Number) -> Truth:
        return implies(page != PADDING, held(pool, page) & (pool.owner(page) == r) & (pool.index(page) == i))

    return pool.rows.all(lambda r: pool.indices.all(lambda i: there(pool.table(r, i), r, i)))


def no_leak(pool: Pool) -> Truth:
    """A page that is held stands in the row of its owner: no page is lost without being freed."""
    return pool.pages.all(
        lambda p: implies(
            pool.place(p) == HELD,
            pool.rows.has(pool.owner(p))
            & pool.indices.has(pool.index(p))
            & (pool.table(pool.owner(p), pool.index(p)) == p),
        )
    )


def row_ends(pool: Pool) -> Truth:
    """A row owns no page beyond the page of its last token, and its length is well formed and lies in its table."""

    def ends(r: Number, end: Number) -> Truth:
        return pool.indices.all(lambda i: implies(i >= end, pool.table(r, i) == PADDING))

    def lies(r: Number, end: Number) -> Truth:
        return formed(length(pool, r), pool.page_size) & ((end == 0) | pool.indices.has(end))

    inside = pool.rows.all(lambda r: lies(r, touched(length(pool, r))))
    return inside & pool.rows.all(lambda r: ends(r, touched(length(pool, r))))


def available_counts(pool: Pool) -> Truth:
    """The available size is exactly the number of pages on the free list and on the release list."""
    return pool.available == pool.pages.count(lambda p: open_to(pool, p))


def released_if_sorted(pool: Pool) -> Truth:
    """Only a pool that sorts (``need_sort``) has pages on a release list."""
    return pool.need_sort | pool.pages.all(lambda p: pool.place(p) != RELEASED)


def freed_exactly_once(pool: Pool) -> Truth:
    """Each page that is handed out is given back exactly once before it is handed out again.

    What is given back is counted from the pages that a call names, also where nobody holds them.
    """
    return pool.pages.all(lambda p: pool.owed(p) == ite(held(pool, p), 1, 0))


LEDGERS = (freed_exactly_once,)


# What a law of two states says of a pool.


def grows_whole(was: Pool, now: Pool) -> Truth:
    """A row that has become longer owns a page at each page index at which it has a new token."""

    def there(r: Number, i: Number) -> Truth:
        old, new = length(was, r), length(now, r)
        longer = at_most(old, new) & no(same(old, new))
        return implies(longer & (old.pages <= i) & (i < touched(new)), now.table(r, i) != PADDING)

    return was.rows.all(lambda r: was.indices.all(lambda i: there(r, i)))


LAWS = (places, one_owner, no_leak, row_ends, available_counts, released_if_sorted, freed_exactly_once)

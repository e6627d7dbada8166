"""A full pool, an SWA pool and the mapping between them: the state and the laws of ``spec.swa_mapping``.

Both pools obey the laws of ``spec.pool`` and have the same rows: a full page and its SWA page stand at one index of one
row. ``to_page(p, o)`` and ``to_offset(p, o)`` are the mapping tensor (``full_to_swa_index_mapping``) of the slot at
offset ``o`` of the full page ``p``, split into SWA page and offset; a ``to_page`` of 0 means that the slot maps to
nothing. ``anchor(s)`` is an offset of a full slot that maps into the SWA page ``s``; with it the law need not search
for such a slot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spec.finite import Map as FiniteMap
from spec.lengths import Length, covers, positions, same, touched
from spec.logic import Map, Number, Seq, Set, Truth, but, implies, ite, no, total
from spec.pool import (
    PADDING,
    PENDING,
    Pool,
    drop,
    emptied,
    hand_over,
    held,
    in_range,
    length,
    new_pool,
    open_to,
    resting,
    take,
)


@dataclass(frozen=True)
class Pair:
    """The full pool, the SWA pool, and the mapping from slots of the full pool to slots of the SWA pool."""

    full: Pool
    swa: Pool
    to_page: Map = total(2)
    to_offset: Map = total(2)
    anchor: Map = total(1)


def new_pair(page_size: int, size: int, size_swa: int, rows: int, need_sort: bool) -> Pair:
    """``size`` full pages and ``size_swa`` SWA pages, all free and without a mapping (finite reading)."""
    full, swa = (new_pool(page_size, pages, rows, need_sort) for pages in (size, size_swa))
    return Pair(full, but(swa, indices=full.indices), FiniteMap(2), FiniteMap(2), FiniteMap(1))


def blank(pair: Pair) -> Pair:
    """The pair with all pages free, all rows empty, and no slot mapped."""
    return but(
        pair,
        full=emptied(pair.full),
        swa=emptied(pair.swa),
        to_page=pair.to_page.all_to(PADDING),
        to_offset=pair.to_offset.all_to(0),
    )


def swa_page(pair: Pair, page: Number) -> Number:
    """The SWA page at the row and index of the held full page ``page``, 0 where there is none."""
    return pair.swa.table(pair.full.owner(page), pair.full.index(page))


def mapped_from(pair: Pair, gone: Set) -> Set:
    """The SWA pages that belong to the full pages ``gone``."""
    return pair.swa.pages.such(
        lambda s: held(pair.swa, s) & gone.has(pair.full.table(pair.swa.owner(s), pair.swa.index(s))),
        lambda: [swa_page(pair, p) for p in gone.items()],
    )


def unmap(pair: Pair, gone: Set, when: Truth) -> Pair:
    """The pair after the slots of the full pages ``gone`` lost their mapping; unchanged where ``when`` is false."""

    def slots() -> list[tuple[int, int]]:
        return [(p, o) for p in gone.items() for o in pair.full.offsets.items()]

    def of_gone(p: Number, _: Number) -> Truth:
        return when & gone.has(p)

    return but(
        pair,
        to_page=pair.to_page.where(of_gone, PADDING, slots),
        to_offset=pair.to_offset.where(of_gone, 0, slots),
    )


def waits(pool: Pool, page: Number) -> Truth:
    """``page`` was given back in a free group, and becomes available when the group ends."""
    return pool.pages.has(page) & (pool.place(page) == PENDING)


def is_gone(pair: Pair, s: Number) -> Truth:
    """A full slot that maps to ``s`` has lost its SWA page: ``s`` is nothing, or a page that waits for its group."""
    return (s == PADDING) | waits(pair.swa, s)


def maps_into(pair: Pair, p: Number, o: Number, done: Set) -> Truth:
    """The full slot at offset ``o`` of the full page ``p`` maps into one of the SWA pages ``done``."""
    return done.has(pair.to_page(p, o))


def unmap_into(pair: Pair, done: Set) -> Pair:
    """The pair in which no full slot maps into the SWA pages ``done``."""

    def slots() -> list[tuple[int, int]]:
        return [key for key, page in pair.to_page.items() if done.has(page)]

    def of_done(p: Number, o: Number) -> Truth:
        return maps_into(pair, p, o, done)

    return but(
        pair,
        to_page=pair.to_page.where(of_done, PADDING, slots),
        to_offset=pair.to_offset.where(of_done, 0, slots),
    )


def grow(pair: Pair, row: Number, start: Length, to: Length, first: Number, full_pages: Seq, swa_pages: Seq) -> Pair:
    """The pair after ``row`` grew to ``to`` tokens; its tokens from ``start`` on are mapped, offset by offset.

    The new full pages follow the pages that the row has; the new SWA pages stand from the page index ``first`` on.
    """
    full = take(pair.full, row, touched(length(pair.full, row)), to, full_pages)
    swa = take(pair.swa, row, first, to, swa_pages)

    def slots() -> list[tuple[int, int]]:
        return [(full.table(row, i), o) for i, o in positions(start, to, full.page_size)]

    def written(p: Number, o: Number) -> Truth:
        mine = held(full, p) & (full.owner(p) == row) & full.offsets.has(o)
        index = full.index(p)
        return mine & no(covers(start, index, o)) & covers(to, index, o)

    def lowest(s: Number) -> Number:
        return ite(first + swa_pages.index(s) == start.pages, start.rest, 0)

    return Pair(
        full=full,
        swa=swa,
        to_page=pair.to_page.where(written, lambda p, _: swa.table(row, full.index(p)), slots),
        to_offset=pair.to_offset.where(written, lambda _, o: o, slots),
        anchor=pair.anchor.where(swa_pages.has, lowest, swa_pages.items),
    )


def hand_swa(pair: Pair, row: Number, to: Number, first: Number, last: Number) -> Pair:
    """The pair after ``row`` gave its SWA pages from index ``first`` to ``last`` (excluded) to the row ``to``.

    Each SWA page keeps its index. The full pages of ``to`` at these indices take over the mapping, slot by slot, and
    the full pages of ``row`` there map to nothing.
    """
    full = pair.full
    given, taken = in_range(full, row, first, last), in_range(full, to, first, last)

    def moved(p: Number, _: Number) -> Truth:
        return given.has(p) | taken.has(p)

    def slots() -> list[tuple[int, int]]:
        return [(p, o) for p in (*given.items(), *taken.items()) for o in full.offsets.items()]

    def source(p: Number) -> Number:
        return full.table(row, full.index(p))

    return but(
        pair,
        swa=hand_over(pair.swa, row, to, first, last),
        to_page=pair.to_page.where(moved, lambda p, o: ite(taken.has(p), pair.to_page(source(p), o), PADDING), slots),
        to_offset=pair.to_offset.where(moved, lambda p, o: ite(taken.has(p), pair.to_offset(source(p), o), 0), slots),
    )


def give(pair: Pair, full_gone: Set, swa_gone: Set, group: Truth) -> Pair:
    """The pair after full pages and their SWA pages were given back together.

    In a free group (``group``) the pages wait for its end, and their mapping stays until then.
    """
    place = ite(group, PENDING, resting(pair.full))
    dropped = but(pair, full=drop(pair.full, full_gone, place), swa=drop(pair.swa, swa_gone, place))
    return unmap(dropped, full_gone, no(group))


def give_swa(pair: Pair, full_pages: Set, swa_gone: Set, group: Truth) -> Pair:
    """The pair after the SWA pages of held full pages were given back; the full pages stay with their rows.

    In a free group (``group``) the SWA pages wait for its end, and their mapping stays until then.
    """
    place = ite(group, PENDING, resting(pair.swa))
    return unmap(but(pair, swa=drop(pair.swa, swa_gone, place)), full_pages, no(group))


# The laws of a pair.


def each_slot(pair: Pair, law: Callable[[Number, Number], Truth]) -> Truth:
    """``law`` holds for every slot (page and offset) of the full pool."""
    return pair.full.pages.all(lambda p: pair.full.offsets.all(lambda o: law(p, o)))


def free_maps_to_nothing(pair: Pair) -> Truth:
    """A free full slot maps to nothing, so that the next owner of its page inherits no stale SWA slot."""
    return each_slot(pair, lambda p, o: implies(open_to(pair.full, p), pair.to_page(p, o) == PADDING))


def mapping_is_live(pair: Pair) -> Truth:
    """A slot of a held full page maps to nothing, or into the held SWA page at the row and index of its full page, or
    into an SWA page that waits for the end of a free group.

    So two full pages never map into one SWA page that is held, and no slot that a row may read maps into a free page.
    """

    def live(p: Number, s: Number) -> Truth:
        mine = held(pair.swa, s) & (swa_page(pair, p) == s)
        return implies(held(pair.full, p) & (s != PADDING), mine | waits(pair.swa, s))

    return each_slot(pair, lambda p, o: live(p, pair.to_page(p, o)))


def mapping_keeps_offset(pair: Pair) -> Truth:
    """A mapped slot has the same offset in its SWA page as in its full page; an unmapped slot has the value 0.

    So a row that grows stays inside its SWA page, and an unmapped slot never points into the padding page at another
    slot than 0.
    """
    return each_slot(pair, lambda p, o: pair.to_offset(p, o) == ite(pair.to_page(p, o) != PADDING, o, 0))


def swa_is_reached(pair: Pair) -> Truth:
    """An SWA page is held only while a slot of its full page maps into it: no SWA page is leaked."""

    def reached(s: Number) -> Truth:
        page = pair.full.table(pair.swa.owner(s), pair.swa.index(s))
        mapped = pair.to_page(page, pair.anchor(s)) == s
        return (page != PADDING) & pair.full.offsets.has(pair.anchor(s)) & mapped

    return pair.swa.pages.all(lambda s: implies(held(pair.swa, s), reached(s)))


def pending_together(pair: Pair) -> Truth:
    """While a full page waits for the end of a free group, the SWA page that it maps into waits, too."""
    return each_slot(
        pair,
        lambda p, o: implies(
            (pair.full.place(p) == PENDING) & (pair.to_page(p, o) != PADDING),
            waits(pair.swa, pair.to_page(p, o)),
        ),
    )


def same_lengths(pair: Pair) -> Truth:
    """A row has the same length in both pools."""
    return pair.full.rows.all(lambda r: same(length(pair.full, r), length(pair.swa, r)))


LAWS = (
    free_maps_to_nothing,
    mapping_is_live,
    mapping_keeps_offset,
    swa_is_reached,
    pending_together,
    same_lengths,
)
LATENT = (free_maps_to_nothing,)

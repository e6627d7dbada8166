"""The SWA mapping: every token has a slot in the full pool; a token in the window also has one in the SWA pool."""

from __future__ import annotations

from dataclasses import dataclass

from spec.allocator import closed, growing, lawful_choice, naming, no_shorter, none_waits, shrinking, still_holds
from spec.lengths import NOTHING, Length, at_most, formed, next_token, same, touched
from spec.logic import (
    Number,
    Part,
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
from spec.pair import LATENT, Pair, blank, give, grow, mapped_from, new_pair, unmap
from spec.pair import LAWS as PAIR_LAWS
from spec.pool import LAWS as POOL_LAWS
from spec.pool import PADDING, beyond, cut, drop, filled, in_range, length, merged, resting, settle, waiting
from spec.pool import hand_over as moved

stem = Stem("swa_mapping")


@dataclass(frozen=True)
class SwaMapping:
    """The pair of pools, a copy of it from the last backup, and how deep free groups are nested."""

    now: Pair
    saved: Pair
    backed_up: Truth = truth()
    group: Number = number()


def initial(page_size: int, size: int, size_swa: int, rows: int, need_sort: bool) -> SwaMapping:
    """``size`` full pages and ``size_swa`` SWA pages, all free, and ``rows`` empty rows (finite reading)."""
    pair = new_pair(page_size, size, size_swa, rows, need_sort)
    return start(SwaMapping(now=pair, saved=pair, backed_up=False, group=0))


def start(st: SwaMapping) -> SwaMapping:
    """Before the first call: all pages are free, all rows are empty, no slot is mapped, there is no backup."""
    empty = blank(st.now)
    return SwaMapping(now=empty, saved=empty, backed_up=False, group=0)


stem.state, stem.start = SwaMapping, start


# The transitions.


@stem.transition
def alloc(st: SwaMapping, row: Number, count: Number, full_pages: Seq, swa_pages: Seq) -> Step[SwaMapping]:
    """A row whose last page is full takes ``count`` whole pages in both pools.

    If either pool has too few pages, nothing changes.
    """
    now = length(st.now.full, row)
    grown = alloc_extend(st, row, Length(now.pages + count, now.rest), full_pages, swa_pages)
    full = requires(now.rest == 0, "the row has no partial page")
    return but(grown, promises=(*grown.promises, full))


@stem.transition
def alloc_extend(st: SwaMapping, row: Number, to: Length, full_pages: Seq, swa_pages: Seq) -> Step[SwaMapping]:
    """A row grows to ``to`` tokens in both pools, and every new token is mapped.

    If either pool has too few pages, nothing changes.
    """
    full, swa = st.now.full, st.now.swa
    old = length(full, row)
    first = touched(old)
    need = touched(to) - first
    fills = (old.rest > 0) & no_shorter(old, to)
    return Step(
        promises=(
            *growing(full, row, to),
            requires(
                implies(fills, swa.table(row, old.pages) != PADDING),
                "the partial page that the new tokens fill has its SWA page",
            ),
        ),
        choice=(
            *lawful_choice(full, full_pages, need, "full pages"),
            *lawful_choice(swa, swa_pages, need, "SWA pages"),
        ),
        fits=(need <= full.available) & (need <= swa.available),
        then=but(st, now=grow(st.now, row, old, to, first, full_pages, swa_pages)),
    )


@stem.transition
def alloc_decode(st: SwaMapping, row: Number, full_pages: Seq, swa_pages: Seq) -> Step[SwaMapping]:
    """A row grows by one token in both pools; if either pool has too few pages, nothing changes."""
    full = st.now.full
    return alloc_extend(st, row, next_token(length(full, row), full.page_size), full_pages, swa_pages)


@stem.transition
def alloc_extend_swa_tail(
    st: SwaMapping, row: Number, start: Length, to: Length, full_pages: Seq, swa_pages: Seq
) -> Step[SwaMapping]:
    """A row grows to ``to`` tokens in the full pool, and of the new tokens only those from ``start`` on get SWA slots.

    New tokens below ``start`` map to nothing (SGLang PR 25805). A tail that starts inside a page keeps the offsets of
    its tokens. If either pool has too few pages, nothing changes.
    """
    full, swa = st.now.full, st.now.swa
    old = length(full, row)
    need = touched(to) - old.pages
    need_swa = ite(same(start, to), 0, touched(to) - start.pages)
    return Step(
        promises=(
            *growing(full, row, to),
            requires(old.rest == 0, "the row has no partial page"),
            requires(
                formed(start, full.page_size) & at_most(old, start) & at_most(start, to),
                "the start of the tail is a length within the new part of the row",
            ),
        ),
        choice=(
            *lawful_choice(full, full_pages, need, "full pages"),
            *lawful_choice(swa, swa_pages, need_swa, "SWA pages"),
        ),
        fits=(need <= full.available) & (need_swa <= swa.available),
        then=but(st, now=grow(st.now, row, start, to, start.pages, full_pages, swa_pages)),
    )


@stem.transition
def free_swa(st: SwaMapping, gone: Set, slots: Slots) -> Step[SwaMapping]:
    """The SWA pages of the given full slots are given back at once, as when the window moves on; full pages stay."""
    pair = st.now
    swa = drop(pair.swa, mapped_from(pair, gone), resting(pair.swa))
    left = requires(
        gone.all(
            lambda p: pair.full.offsets.all(
                lambda o: implies((o < filled(pair.full, p)) & (pair.to_page(p, o) != PADDING), slots.has(p, o))
            )
        ),
        "every mapped slot of a page that loses its SWA page is named",
    )
    return Step(
        promises=(*naming(pair.full, gone, slots), left),
        then=but(
            st,
            now=unmap(but(pair, swa=swa), gone, True),
            backed_up=st.backed_up & (gone.size == 0),
        ),
    )


@stem.transition
def free(st: SwaMapping, gone: Set, slots: Slots) -> Step[SwaMapping]:
    """The full pages of the freed slots and their SWA pages are given back: at once, or when the free group ends."""
    return Step(
        promises=closed(st.now.full, gone, slots),
        then=but(
            st,
            now=give(st.now, gone, mapped_from(st.now, gone), st.group > 0),
            backed_up=st.backed_up & (gone.size == 0),
        ),
    )


@stem.transition
def free_full(st: SwaMapping, gone: Set, slots: Slots) -> Step[SwaMapping]:
    """Full pages without SWA pages are given back at once, as a tree does when it evicts a tombstone."""
    full = st.now.full
    unmapped = requires(
        gone.all(lambda p: full.offsets.all(lambda o: st.now.to_page(p, o) == PADDING)),
        "no slot of a freed page is mapped",
    )
    return Step(
        promises=(*closed(full, gone, slots), unmapped),
        then=but(
            st,
            now=but(st.now, full=drop(full, gone, resting(full))),
            backed_up=st.backed_up & (gone.size == 0),
        ),
    )


@stem.transition
def trim(st: SwaMapping, row: Number, to: Length) -> Step[SwaMapping]:
    """A row is cut to ``to`` tokens in both pools: a page that still has tokens stays, later pages are given back."""
    pair = st.now
    full_gone, swa_gone = beyond(pair.full, row, to), beyond(pair.swa, row, to)
    kept = give(pair, full_gone, swa_gone, st.group > 0)
    return Step(
        promises=shrinking(pair.full, row, to),
        then=but(
            st,
            now=but(kept, full=cut(kept.full, row, to), swa=cut(kept.swa, row, to)),
            backed_up=st.backed_up & same(length(pair.full, row), to),
        ),
    )


@stem.transition
def slide(st: SwaMapping, row: Number, to: Number) -> Step[SwaMapping]:
    """The window of a row moves on: the SWA pages at page indices below ``to`` are given back at once."""
    pair = st.now
    swa_gone = in_range(pair.swa, row, 0, to)
    return Step(
        promises=(
            requires(pair.full.rows.has(row), "the row number is a row of the pool"),
            requires(to <= pair.full.whole(row), "only whole pages lose their SWA pages"),
        ),
        then=but(
            st,
            now=unmap(
                but(pair, swa=drop(pair.swa, swa_gone, resting(pair.swa))), in_range(pair.full, row, 0, to), True
            ),
            backed_up=False,
        ),
    )


@stem.transition
def free_pages(st: SwaMapping, row: Number, first: Number, last: Number) -> Step[SwaMapping]:
    """Whole pages of a row, at the indices from ``first`` to ``last`` (excluded), are given back in both pools.

    An insert does this with pages that the tree has already.
    """
    pair = st.now
    full_gone, swa_gone = in_range(pair.full, row, first, last), in_range(pair.swa, row, first, last)
    return Step(
        promises=(
            requires(pair.full.rows.has(row), "the row number is a row of the pool"),
            requires((first >= 0) & (first <= last), "the first index is at least 0 and at most the last"),
            requires(last <= pair.full.whole(row), "only whole pages are given back"),
        ),
        then=but(st, now=give(pair, full_gone, swa_gone, st.group > 0), backed_up=False),
    )


@stem.transition
def adopt(st: SwaMapping, row: Number, pages: Number) -> Step[SwaMapping]:
    """An empty row gets the length of ``pages`` whole pages that it shares and does not own: a cached prefix."""
    pair, to = st.now, Length(pages, 0)
    return Step(
        promises=(
            requires(
                pair.full.rows.has(row) & same(length(pair.full, row), NOTHING),
                "the row number is a row of the pool, and the row is empty",
            ),
            requires(pair.full.indices.has(pages), "the row has room for its new length"),
        ),
        then=but(st, now=but(pair, full=cut(pair.full, row, to), swa=cut(pair.swa, row, to)), backed_up=False),
    )


@stem.transition
def hand_over(st: SwaMapping, row: Number, to: Number, first: Number, last: Number) -> Step[SwaMapping]:
    """Whole pages of a row, at the indices from ``first`` to ``last`` (excluded), go to row ``to`` in both pools."""
    pair = st.now
    empty = pair.full.indices.all(
        lambda i: implies(
            (first <= i) & (i < last), (pair.full.table(to, i) == PADDING) & (pair.swa.table(to, i) == PADDING)
        )
    )
    return Step(
        promises=(
            requires(
                pair.full.rows.has(row) & pair.full.rows.has(to) & (row != to),
                "giver and receiver are two different rows of the pool",
            ),
            requires((first >= 0) & (first <= last), "the first index is at least 0 and at most the last"),
            requires(last <= pair.full.whole(row), "only whole pages are handed over"),
            requires(empty, "the receiver owns no page at these indices"),
        ),
        then=but(
            st,
            now=but(
                pair,
                full=moved(pair.full, row, to, first, last),
                swa=moved(pair.swa, row, to, first, last),
            ),
            backed_up=False,
        ),
    )


@stem.transition
def free_group_begin(st: SwaMapping) -> Step[SwaMapping]:
    """A free group begins: freed pages of both pools wait until the outermost open group ends."""
    return Step(then=but(st, group=st.group + 1))


@stem.transition
def free_group_end(st: SwaMapping) -> Step[SwaMapping]:
    """A free group ends: the end of the outermost group gives the waiting pages of both pools back, unmapped."""
    pair = st.now
    full_done, swa_done = waiting(pair.full, st.group == 1), waiting(pair.swa, st.group == 1)
    settled = but(pair, full=settle(pair.full, full_done), swa=settle(pair.swa, swa_done))
    return Step(
        promises=(requires(st.group > 0, "a free group is open"),),
        then=but(
            st,
            now=unmap(settled, full_done, True),
            backed_up=st.backed_up & (full_done.size == 0) & (swa_done.size == 0),
            group=st.group - 1,
        ),
    )


@stem.transition
def backup_state(st: SwaMapping) -> Step[SwaMapping]:
    """Both pools and the mapping are saved; they can be restored as long as no page is given back."""
    return Step(then=but(st, saved=st.now, backed_up=True))


@stem.transition
def restore_state(st: SwaMapping) -> Step[SwaMapping]:
    """The saved pools and mapping are restored: pages handed out since the backup are free and map to nothing."""
    return Step(
        promises=(requires(st.backed_up, "a backup was taken, and no page was given back since"),),
        then=but(st, now=st.saved),
    )


@stem.transition
def merge_and_sort_free(st: SwaMapping, of_swa: Truth) -> Step[SwaMapping]:
    """All pages on the release list of one of the pools go to its free list; nothing else changes."""
    pair = st.now
    full = but(pair, full=merged(pair.full, no(of_swa)), swa=merged(pair.swa, of_swa))
    return Step(then=but(st, now=full))


@stem.transition
def clear(st: SwaMapping) -> Step[SwaMapping]:
    """The allocator is again as before the first call."""
    return Step(then=start(st))


# The laws.


def pools(st: SwaMapping) -> list[Part]:
    """The parts of the state that are pools."""
    return [
        ("now.full", st.now.full),
        ("now.swa", st.now.swa),
        ("saved.full", st.saved.full),
        ("saved.swa", st.saved.swa),
    ]


def pairs(st: SwaMapping) -> list[Part]:
    """The parts of the state that are pairs of pools with a mapping."""
    return [("now", st.now), ("saved", st.saved)]


for _pool_law in POOL_LAWS:
    stem.invariant(pools)(_pool_law)
for _pair_law in PAIR_LAWS:
    stem.invariant(pairs, latent=_pair_law in LATENT)(_pair_law)


@stem.invariant()
def pending_in_group(st: SwaMapping) -> Truth:
    """Pages are pending only while a free group is open."""
    idle = none_waits(st.now.full) & none_waits(st.now.swa)
    return (st.group >= 0) & implies(st.group == 0, idle)


@stem.invariant()
def backup_still_holds(st: SwaMapping) -> Truth:
    """While a backup can be restored, every row still holds the pages that it held at the backup.

    So a restore takes back only pages that were handed out since.
    """
    kept = still_holds(st.saved.full, st.now.full) & still_holds(st.saved.swa, st.now.swa)
    return implies(st.backed_up, kept)

"""The SWA mapping: every token has a slot in the full pool; a token in the window also has one in the SWA pool.

A model whose layers all have a sliding window, or none of them, has one pool, the full pool (``windowed`` is false): no
token has an SWA slot.
"""

from __future__ import annotations

from dataclasses import dataclass

from spec import pool_effects
from spec.allocator import (
    closed,
    group_after_end,
    growing,
    lawful_choice,
    must_open,
    naming,
    no_shorter,
    none_waits,
    shrinking,
    still_holds,
    waits_for_the_end,
)
from spec.lengths import NOTHING, Length, at_most, formed, next_token, pick, same, touched
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
    constant,
    implies,
    ite,
    no,
    number,
    requires,
    truth,
)
from spec.pair import (
    LATENT,
    Pair,
    blank,
    each_slot,
    give,
    give_swa,
    grow,
    hand_swa,
    is_gone,
    mapped_from,
    maps_into,
    new_pair,
    unmap,
    unmap_into,
    waits,
)
from spec.pair import LAWS as PAIR_LAWS
from spec.pool import LAWS as POOL_LAWS
from spec.pool import (
    LEDGERS,
    PADDING,
    PENDING,
    cut,
    drop,
    filled,
    grows_whole,
    handed_back,
    held,
    length,
    merged,
    open_to,
    resting,
    settle,
    waiting,
)
from spec.pool import hand_over as moved

stem = Stem("swa_mapping")


@dataclass(frozen=True)
class SwaMappingState:
    """The pair of pools, a copy of it from the last backup, and how deep free groups are nested.

    ``windowed``: the model has layers with a sliding window and others, and so two pools.
    """

    now: Pair
    saved: Pair
    windowed: Truth = constant("truth", shared="windowed")
    backed_up: Truth = truth()
    group: Number = number()


def initial(
    page_size: int, size: int, size_swa: int, rows: int, need_sort: bool, windowed: bool = True
) -> SwaMappingState:
    """``size`` full pages and ``size_swa`` SWA pages, all free, and ``rows`` empty rows (finite reading)."""
    pair = new_pair(page_size, size, size_swa, rows, need_sort)
    return start(SwaMappingState(now=pair, saved=pair, windowed=windowed, backed_up=False, group=0))


def start(st: SwaMappingState) -> SwaMappingState:
    """Before the first call: all pages are free, all rows are empty, no slot is mapped, there is no backup."""
    empty = blank(st.now)
    return but(st, now=empty, saved=empty, backed_up=False, group=0)


stem.state, stem.start = SwaMappingState, start


# The transitions.


@stem.transition
def alloc(st: SwaMappingState, row: Number, count: Number, full_pages: Seq, swa_pages: Seq) -> Step[SwaMappingState]:
    """A row whose last page is full takes ``count`` whole pages in both pools.

    If either pool has too few pages, nothing changes.
    """
    now = length(st.now.full, row)
    grown = alloc_extend(st, row, Length(now.pages + count, now.rest), full_pages, swa_pages)
    full = requires(now.rest == 0, "the row has no partial page")
    return but(grown, promises=(*grown.promises, full))


@stem.transition
def alloc_extend(
    st: SwaMappingState, row: Number, to: Length, full_pages: Seq, swa_pages: Seq
) -> Step[SwaMappingState]:
    """A row grows to ``to`` tokens in both pools, and every new token is mapped.

    In a model with one pool no new token is mapped. If either pool has too few pages, nothing changes.
    """
    full, swa = st.now.full, st.now.swa
    old = length(full, row)
    first = touched(old)
    need = touched(to) - first
    choice, fits = room(st.now, need, ite(st.windowed, need, 0), full_pages, swa_pages)
    fills = (old.rest > 0) & no_shorter(old, to) & st.windowed
    return Step(
        promises=(
            *growing(full, row, to),
            requires(
                implies(fills, swa.table(row, old.pages) != PADDING),
                "the partial page that the new tokens fill has its SWA page",
            ),
        ),
        choice=choice,
        fits=fits,
        then=but(st, now=grow(st.now, row, pick(st.windowed, old, to), to, first, full_pages, swa_pages)),
    )


@stem.transition
def alloc_decode(st: SwaMappingState, row: Number, full_pages: Seq, swa_pages: Seq) -> Step[SwaMappingState]:
    """A row grows by one token in both pools; if either pool has too few pages, nothing changes."""
    full = st.now.full
    return alloc_extend(st, row, next_token(length(full, row), full.page_size), full_pages, swa_pages)


@stem.transition
def alloc_extend_swa_tail(
    st: SwaMappingState, row: Number, start: Length, to: Length, full_pages: Seq, swa_pages: Seq
) -> Step[SwaMappingState]:
    """A row grows to ``to`` tokens in the full pool, and of the new tokens only those from ``start`` on get SWA slots.

    New tokens below ``start`` map to nothing (SGLang PR 25805). A tail that starts inside a page keeps the offsets of
    its tokens. If either pool has too few pages, nothing changes.
    """
    full = st.now.full
    old = length(full, row)
    choice, fits = tail_room(st.now, old.pages, start, to, full_pages, swa_pages)
    return Step(
        promises=(
            *growing(full, row, to),
            has_window(st),
            requires(old.rest == 0, "the row has no partial page"),
            requires(
                formed(start, full.page_size) & at_most(old, start) & at_most(start, to),
                "the start of the tail is a length within the new part of the row",
            ),
        ),
        choice=choice,
        fits=fits,
        then=but(st, now=grow(st.now, row, start, to, start.pages, full_pages, swa_pages)),
    )


def tail_room(
    pair: Pair, old: Number, start: Length, to: Length, full_pages: Seq, swa_pages: Seq
) -> tuple[tuple[Requirement, ...], Truth]:
    """What ``room`` says of a row of ``old`` whole pages that grows to ``to``, with SWA slots from ``start`` on."""
    need_swa = ite(same(start, to), 0, touched(to) - start.pages)
    return room(pair, touched(to) - old, need_swa, full_pages, swa_pages)


def room(
    pair: Pair, need: Number, need_swa: Number, full_pages: Seq, swa_pages: Seq
) -> tuple[tuple[Requirement, ...], Truth]:
    """The lawful choice of ``need`` full pages and ``need_swa`` SWA pages, and whether both pools have so many."""
    choice = (
        *lawful_choice(pair.full, full_pages, need, "full pages"),
        *lawful_choice(pair.swa, swa_pages, need_swa, "SWA pages"),
    )
    return choice, (need <= pair.full.available) & (need_swa <= pair.swa.available)


def has_window(st: SwaMappingState) -> Requirement:
    """Only in a model with two pools does a token in the window have an SWA slot, and lose it when it leaves."""
    return requires(st.windowed, "the model has an SWA pool")


@stem.transition
def free_swa(st: SwaMappingState, gone: Set, slots: Slots) -> Step[SwaMappingState]:
    """The SWA pages of the given full slots are given back, as when the window moves on; the full pages stay.

    In a free group they wait for its end or until the engine ends their wait (``settle_swa``). A page without an SWA
    page gives back nothing, so a call may come again.
    """
    pair = st.now
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
            now=give_swa(pair, gone, mapped_from(pair, gone), st.group > 0),
            backed_up=st.backed_up & (gone.size == 0),
        ),
    )


@stem.transition
def settle_swa(st: SwaMappingState, done: Set, available: Truth) -> Step[SwaMappingState]:
    """An engine need not wait for the end of the free group with SWA pages that ``free_swa`` has given back.

    The full slots that map into the pages ``done`` map to nothing from now on; and where ``available`` holds, these
    pages can be handed out again.
    """
    pair = st.now
    alone = each_slot(pair, lambda p, o: implies(maps_into(pair, p, o, done), held(pair.full, p)))
    ready = pair.swa.pages.such(lambda s: available & done.has(s), done.items)
    return Step(
        choice=(
            requires(done.all(lambda s: waits(pair.swa, s)), "each of these SWA pages waits for the end of the group"),
            requires(alone, "no full page that waits maps into one of them"),
        ),
        then=but(
            st,
            now=but(unmap_into(pair, done), swa=settle(pair.swa, ready)),
            backed_up=st.backed_up & (done.size == 0),
        ),
    )


@stem.transition
def free(st: SwaMappingState, gone: Set, slots: Slots) -> Step[SwaMappingState]:
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
def free_full(st: SwaMappingState, gone: Set, slots: Slots, later: Truth) -> Step[SwaMappingState]:
    """Full pages without SWA pages are given back: a tree evicts a tombstone, or pages left the window of every layer.

    In a free group the engine chooses: at once, or when the group ends (``later``).
    """
    full = st.now.full
    peerless = requires(
        gone.all(lambda p: full.offsets.all(lambda o: is_gone(st.now, st.now.to_page(p, o)))),
        "no slot of a freed page maps into an SWA page that is held",
    )
    dropped = but(st.now, full=drop(full, gone, ite(later, PENDING, resting(full))))
    return Step(
        promises=(*closed(full, gone, slots), peerless),
        choice=(requires(no(later) | (st.group > 0), "pages wait only while a free group is open"),),
        then=but(st, now=unmap(dropped, gone, no(later)), backed_up=st.backed_up & (gone.size == 0)),
    )


@stem.transition
def shorten(st: SwaMappingState, row: Number, to: Length) -> Step[SwaMappingState]:
    """A row is cut to ``to`` tokens: its caller freed the pages that keep no token. The allocator gets no call."""
    pair = st.now
    return Step(
        promises=shrinking(pair.full, row, to),
        then=but(
            st,
            now=but(pair, full=cut(pair.full, row, to), swa=cut(pair.swa, row, to)),
            backed_up=st.backed_up & same(length(pair.full, row), to),
        ),
    )


@stem.transition
def adopt(st: SwaMappingState, row: Number, pages: Number) -> Step[SwaMappingState]:
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
def hand_over(st: SwaMappingState, row: Number, to: Number, first: Number, last: Number) -> Step[SwaMappingState]:
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
def hand_over_swa(st: SwaMappingState, row: Number, to: Number, first: Number, last: Number) -> Step[SwaMappingState]:
    """The SWA pages of a row, at the indices from ``first`` to ``last`` (excluded), go to row ``to``, full pages stay.

    The full pages of ``to`` at these indices map into the SWA pages from now on, and those of the giver map to nothing.
    """
    pair = st.now
    fits = pair.full.indices.all(
        lambda i: implies(
            (first <= i) & (i < last),
            (pair.full.table(row, i) != PADDING)
            & (pair.full.table(to, i) != PADDING)
            & (pair.swa.table(to, i) == PADDING),
        )
    )
    return Step(
        promises=(
            requires(
                pair.full.rows.has(row) & pair.full.rows.has(to) & (row != to),
                "giver and receiver are two different rows of the pool",
            ),
            requires((first >= 0) & (first <= last), "the first index is at least 0 and at most the last"),
            requires(
                (last <= pair.full.whole(row)) & (last <= pair.full.whole(to)),
                "both rows have whole pages up to the last",
            ),
            requires(
                fits, "both rows own a full page at each of these indices, and the receiver owns no SWA page there"
            ),
        ),
        then=but(st, now=hand_swa(pair, row, to, first, last), backed_up=False),
    )


@stem.transition
def roll_back(st: SwaMappingState, row: Number, to: Length, full_pages: Seq, swa_pages: Seq) -> Step[SwaMappingState]:
    """A row is granted what it needs to grow to ``to`` tokens, and its caller fails before it uses the new slots.

    The caller gives the new pages back; then all is as it was: no row and no slot that a row uses has changed, and the
    pages can be handed out again, at once or when the open free group ends.
    """
    full, swa = st.now.full, st.now.swa
    place = ite(st.group > 0, PENDING, resting(full))
    back = but(st.now, full=handed_back(full, full_pages, place), swa=handed_back(swa, swa_pages, place))
    return but(
        alloc_extend(st, row, to, full_pages, swa_pages),
        then=but(st, now=back, backed_up=st.backed_up & (full_pages.length == 0)),
    )


@stem.transition
def free_group_begin(st: SwaMappingState, opens: Truth) -> Step[SwaMappingState]:
    """A free group begins: freed pages of both pools wait until the outermost open group ends.

    An engine may refuse to open a group within a group; then nothing changes.
    """
    return Step(choice=(must_open(st.group, opens),), then=but(st, group=st.group + ite(opens, 1, 0)))


@stem.transition
def free_group_end(st: SwaMappingState) -> Step[SwaMappingState]:
    """A free group ends: at the end of the outermost group exactly the pages that wait become available, unmapped.

    What was mapped anew since they were given back stays. An end changes nothing where no group is open, as after a
    ``clear`` within a group.
    """
    pair = st.now
    full_done, swa_done = waiting(pair.full, st.group == 1), waiting(pair.swa, st.group == 1)
    settled = but(pair, full=settle(pair.full, full_done), swa=settle(pair.swa, swa_done))
    return Step(
        then=but(
            st,
            now=unmap_into(settled, swa_done),
            backed_up=st.backed_up & (full_done.size == 0) & (swa_done.size == 0),
            group=group_after_end(st.group),
        ),
    )


@stem.transition
def backup_state(st: SwaMappingState) -> Step[SwaMappingState]:
    """Both pools and the mapping are saved; they can be restored as long as no page is given back."""
    return Step(then=but(st, saved=st.now, backed_up=True))


@stem.transition
def restore_state(st: SwaMappingState) -> Step[SwaMappingState]:
    """The saved pools and mapping are restored: pages handed out since the backup are free and map to nothing."""
    return Step(
        promises=(requires(st.backed_up, "a backup was taken, and no page was given back since"),),
        then=but(st, now=st.saved),
    )


@stem.transition
def merge_and_sort_free(st: SwaMappingState, of_swa: Truth) -> Step[SwaMappingState]:
    """All pages on the release list of one of the pools go to its free list; nothing else changes."""
    pair = st.now
    full = but(pair, full=merged(pair.full, no(of_swa)), swa=merged(pair.swa, of_swa))
    return Step(then=but(st, now=full))


@stem.transition
def clear(st: SwaMappingState) -> Step[SwaMappingState]:
    """The allocator is again as before the first call."""
    return Step(then=start(st))


# The laws.


def pools(st: SwaMappingState) -> tuple[Part, ...]:
    """The parts of the state that are pools."""
    return (
        ("now.full", st.now.full),
        ("now.swa", st.now.swa),
        ("saved.full", st.saved.full),
        ("saved.swa", st.saved.swa),
    )


def pairs(st: SwaMappingState) -> tuple[Part, ...]:
    """The parts of the state that are pairs of pools with a mapping."""
    return (("now", st.now), ("saved", st.saved))


for _pool_law in POOL_LAWS:
    stem.invariant(pools, ledger=_pool_law in LEDGERS)(_pool_law)
for _pair_law in PAIR_LAWS:
    stem.invariant(pairs, latent=_pair_law in LATENT)(_pair_law)


@stem.invariant()
def pending_in_group(st: SwaMappingState) -> Truth:
    """Pages are pending only while a free group is open."""
    idle = none_waits(st.now.full) & none_waits(st.now.swa)
    return (st.group >= 0) & implies(st.group == 0, idle)


@stem.invariant()
def no_swa_without_window(st: SwaMappingState) -> Truth:
    """In a model with one pool every SWA page can be handed out, and is never handed out."""
    swa, saved = st.now.swa, st.saved.swa
    return st.windowed | (swa.pages.all(lambda s: open_to(swa, s)) & saved.pages.all(lambda s: open_to(saved, s)))


@stem.invariant()
def backup_still_holds(st: SwaMappingState) -> Truth:
    """While a backup can be restored, every row still holds the pages that it held at the backup.

    So a restore takes back only pages that were handed out since.
    """
    kept = still_holds(st.saved.full, st.now.full) & still_holds(st.saved.swa, st.now.swa)
    return implies(st.backed_up, kept)


# The laws of two states.


@stem.change(besides=("restore_state", "free_full"))
def freed_page_waits(was: SwaMappingState, now: SwaMappingState) -> Truth:
    """While a free group is open no full page becomes available: what is freed waits until the outermost group ends.

    A restore may give back at once the pages that were handed out since the backup. An engine may give back at once
    full pages without SWA pages (``free_full``): their SWA pages were given back before, or the model has one pool.
    """
    return waits_for_the_end(was.now.full, now.now.full, was.group, now.group)


@stem.change(besides=("restore_state", "settle_swa"))
def freed_swa_page_waits(was: SwaMappingState, now: SwaMappingState) -> Truth:
    """While a free group is open no SWA page becomes available: what is freed waits until the outermost group ends.

    A restore may give back at once the pages that were handed out since the backup, and an engine may end the wait of
    an SWA page that no full page needs any more (``settle_swa``).
    """
    return waits_for_the_end(was.now.swa, now.now.swa, was.group, now.group)


@stem.change(besides=("free_group_begin", "free_group_end", "clear"))
def groups_are_counted(was: SwaMappingState, now: SwaMappingState) -> Truth:
    """Only the beginning and the end of a group, and a clear, change how many groups are open."""
    return was.group == now.group


@stem.change(only=("free_group_begin",))
def a_group_is_open(was: SwaMappingState, now: SwaMappingState, opens: Truth) -> Truth:
    """After the beginning of a free group a group is open: one more than before, or the outer one alone."""
    return pool_effects.opens(was.group, now.group, opens)


GROWING = ("alloc", "alloc_extend", "alloc_decode", "alloc_extend_swa_tail")


@stem.change(besides=(*GROWING, "shorten", "adopt", "hand_over", "restore_state", "clear"))
def rows_keep_their_lengths(was: SwaMappingState, now: SwaMappingState) -> Truth:
    """No row gets longer or shorter, but by a call that is asked for it, a restore or a clear."""
    return pool_effects.keeps_lengths(was.now.full, now.now.full)


@stem.change(only=("alloc",))
def row_gets_its_pages(was: SwaMappingState, now: SwaMappingState, row: Number, count: Number) -> Truth:
    """A row of whole pages that is granted ``count`` pages has so many more, and no other row changes its length."""
    return pool_effects.grows_by_pages(was.now.full, now.now.full, row, count)


@stem.change(only=("alloc_extend", "alloc_extend_swa_tail"))
def row_gets_its_length(was: SwaMappingState, now: SwaMappingState, row: Number, to: Length) -> Truth:
    """A row that is granted ``to`` tokens has so many, no fewer than before, and no other row changes its length."""
    return pool_effects.grows(was.now.full, now.now.full, row, to)


@stem.change(only=("alloc_decode",))
def row_gets_its_token(was: SwaMappingState, now: SwaMappingState, row: Number) -> Truth:
    """A row that decodes has one token more, and no other row changes its length."""
    return pool_effects.grows_by_a_token(was.now.full, now.now.full, row)


@stem.change(only=("shorten",))
def row_is_cut(was: SwaMappingState, now: SwaMappingState, row: Number, to: Length) -> Truth:
    """A row that is cut to ``to`` tokens has so many, no more than before, and no other row changes its length."""
    return pool_effects.shrinks(was.now.full, now.now.full, row, to)


@stem.change(besides=("adopt", "hand_over", "hand_over_swa", "alloc_extend_swa_tail"))
def new_token_has_an_swa_slot(was: SwaMappingState, now: SwaMappingState) -> Truth:
    """In a model with two pools a row that grows owns an SWA page wherever it has a new token.

    Of tokens that were computed elsewhere only the tail has SWA slots (``alloc_extend_swa_tail``).
    """
    return no(was.windowed) | grows_whole(was.now.swa, now.now.swa)


@stem.change(only=GROWING)
def row_gets_the_chosen_pages(
    was: SwaMappingState, now: SwaMappingState, row: Number, full_pages: Seq, swa_pages: Seq
) -> Truth:
    """A row that grows gets exactly the full pages and the SWA pages that the implementation hands out."""
    full = pool_effects.takes_chosen(was.now.full, now.now.full, row, full_pages)
    return full & pool_effects.takes_chosen(was.now.swa, now.now.swa, row, swa_pages)


@stem.change(besides=("adopt", "hand_over", "hand_over_swa"))
def new_token_has_a_slot(was: SwaMappingState, now: SwaMappingState) -> Truth:
    """A row that grows owns a full page at each page index at which it has a new token: none is written to nowhere.

    A row that shares a cached prefix owns none of its pages, and the row of a tree node owns those of its key alone.
    """
    return grows_whole(was.now.full, now.now.full)


@stem.change(only=("free", "free_full"))
def frees_what_is_named(was: SwaMappingState, now: SwaMappingState, gone: Set, slots: Slots) -> Truth:
    """Exactly the full pages whose slots are named are given back: every used slot of them is named, and no other."""
    return pool_effects.gives_back(was.now.full, now.now.full, gone, slots)


@stem.change(only=("free_swa",))
def frees_the_swa_pages_of_what_is_named(was: SwaMappingState, now: SwaMappingState, gone: Set, slots: Slots) -> Truth:
    """Exactly the SWA pages into which the named full slots map are given back, and no full page is.

    Of a full page that loses its SWA page every mapped slot is named.
    """
    return pool_effects.gives_back_swa(was.now, now.now, gone, slots)


@stem.change(only=("free_full",))
def freed_page_waits_as_chosen(was: SwaMappingState, now: SwaMappingState, gone: Set, later: Truth) -> Truth:
    """Full pages that are given back alone wait for the end of the group (``later``), or can be handed out at once."""
    return pool_effects.wait_or_rest(was.now.full, now.now.full, gone, later)


@stem.change(only=("merge_and_sort_free",))
def release_list_is_sorted_in(was: SwaMappingState, now: SwaMappingState, of_swa: Truth) -> Truth:
    """After the release list of a pool was sorted into its free list, no page of this pool is on the release list."""
    full, swa = pool_effects.sorts(was.now.full, now.now.full), pool_effects.sorts(was.now.swa, now.now.swa)
    return ite(of_swa, swa, full)


@stem.change(only=("hand_over",))
def pages_go_to_the_receiver(
    was: SwaMappingState, now: SwaMappingState, row: Number, to: Number, first: Number, last: Number
) -> Truth:
    """The pages that a row hands over stand in the receiving row, in both pools, each at the index that it had.

    The receiver is as long as before, or as long as these pages make it.
    """
    full = pool_effects.passes_on(was.now.full, now.now.full, row, to, first, last)
    return full & pool_effects.passes_on(was.now.swa, now.now.swa, row, to, first, last)


@stem.change(only=("hand_over_swa",))
def a_growing_page_keeps_its_swa_page(was: SwaMappingState, now: SwaMappingState) -> Truth:
    """A page that has room for more tokens of its row keeps its SWA page: only whole pages leave the window."""
    full, swa = was.now.full, was.now.swa

    def kept(r: Number, i: Number) -> Truth:
        return implies(i >= full.whole(r), swa.table(r, i) == now.now.swa.table(r, i))

    return full.rows.all(lambda r: full.indices.all(lambda i: kept(r, i)))


@stem.change(only=("roll_back",))
def rolled_back_pages_are_free_again(
    was: SwaMappingState, now: SwaMappingState, full_pages: Seq, swa_pages: Seq
) -> Truth:
    """The pages of a call that is rolled back can be handed out again, at once or when the open free group ends.

    Every other page of both pools is where it was.
    """
    full = pool_effects.wait_or_rest(was.now.full, now.now.full, full_pages, was.group > 0)
    return full & pool_effects.wait_or_rest(was.now.swa, now.now.swa, swa_pages, was.group > 0)


@stem.change(only=("backup_state",))
def backup_is_taken(was: SwaMappingState, now: SwaMappingState) -> Truth:
    """After a backup both pools can be restored as they are: each page where it is, each row with its pages."""
    full, swa = was.now.full, was.now.swa
    return now.backed_up & pool_effects.is_copied(full, now.saved.full) & pool_effects.is_copied(swa, now.saved.swa)


@stem.change(only=(*GROWING, "restore_state", "merge_and_sort_free", "free_group_begin"))
def backup_stays(was: SwaMappingState, now: SwaMappingState) -> Truth:
    """A backup stays as it was taken while pages are only handed out, and it can be restored more than once."""
    full = pool_effects.is_copied(was.saved.full, now.saved.full)
    return (was.backed_up == now.backed_up) & full & pool_effects.is_copied(was.saved.swa, now.saved.swa)


@stem.change(only=("restore_state",))
def backup_is_restored(was: SwaMappingState, now: SwaMappingState) -> Truth:
    """After a restore both pools are as they were saved: each page where it was, each row with the pages it had."""
    full, swa = was.saved.full, was.saved.swa
    return was.backed_up & pool_effects.is_copied(full, now.now.full) & pool_effects.is_copied(swa, now.now.swa)


@stem.change(besides=("merge_and_sort_free", "restore_state", "clear"))
def freed_page_waits_to_be_sorted(was: SwaMappingState, now: SwaMappingState) -> Truth:
    """In a pool that sorts, what is given back is on the release list until this list is sorted into the free list."""
    full = pool_effects.waits_to_be_sorted(was.now.full, now.now.full)
    return full & pool_effects.waits_to_be_sorted(was.now.swa, now.now.swa)


@stem.change(only=("hand_over", "hand_over_swa"))
def a_range_is_passed_on(was: SwaMappingState, now: SwaMappingState, row: Number, first: Number, last: Number) -> Truth:
    """What a row passes on are whole pages of the row; afterwards it has no SWA page at their indices."""

    def given(i: Number) -> Truth:
        return implies((first <= i) & (i < last), now.now.swa.table(row, i) == PADDING)

    full = was.now.full
    return pool_effects.is_a_range(full, row, first, last) & full.indices.all(given)

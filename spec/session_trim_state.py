"""Rows of requests and slots of streaming sessions: the state and the laws of ``spec.session_trim``.

A row of ``req_to_token`` has four lengths. The first ``protected`` pages are the cached prefix: the radix tree owns
them. Tokens below the cursor (``swa_evicted_seqlen``) have left the window and lost their SWA slots. ``committed``
tokens are computed. ``allocated`` tokens have slots; speculative decoding allocates ahead of what is computed. Always
cursor <= committed <= allocated and protected <= committed. The allocated length is the row's length in the pools.
``text`` is the length of the text that the next turn's input begins with. A session's slot keeps the session's row
between two turns: ``slot(s)`` is this row plus one, 0 where the session has no row. Rows from ``limit`` on belong to no
request: the pages of tree nodes stand there.

Where every layer has a sliding window (``all_sliding``) there is one pool, the full pool, and a token that left the
window needs no page at all. Such a row has a gap: it gave back its pages at the indices from ``gap`` up to the cursor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spec import swa_mapping
from spec.finite import Domain as Range
from spec.finite import Map as FiniteMap
from spec.lengths import NOTHING, Length, at_most, covers, formed, pick, same, touched
from spec.logic import Domain, Map, Number, Truth, but, constant, implies, ite, no, total, zeroed
from spec.pool import PADDING, Pool, length
from spec.swa_mapping import SwaMappingState

IDLE, RUNNING, SAVED, LEAVING = 0, 1, 2, 3


@dataclass(frozen=True)
class SessionTrimState:
    """The pools, and for each row its phase, its lengths and its session.

    A length is a number of whole pages and, in the field ``..._rest``, the tokens after them. ``all_sliding``: every
    layer of the model has a sliding window.
    """

    pools: SwaMappingState
    limit: Number = constant("number", shared="limit")
    window: Number = constant("count", shared="window_pages")
    window_rest: Number = constant("count", shared="window_rest")
    all_sliding: Truth = constant("truth", shared="all_sliding")
    sessions: Domain = constant("pages", shared="sessions")
    phase: Map = total(1)
    protected: Map = total(1)
    cursor: Map = total(1)
    cursor_rest: Map = total(1)
    gap: Map = total(1)
    committed: Map = total(1)
    committed_rest: Map = total(1)
    text: Map = total(1)
    text_rest: Map = total(1)
    session: Map = total(1)
    slot: Map = total(1)


MAPS = (
    *("phase", "protected", "cursor", "cursor_rest", "gap", "committed", "committed_rest"),
    *("text", "text_rest", "session", "slot"),
)


def initial(
    pools: SwaMappingState, limit: int, sessions: int, window: Length, all_sliding: bool = False
) -> SessionTrimState:
    """``limit`` idle rows over ``pools``, and ``sessions`` sessions without a row (finite reading)."""
    maps = {name: FiniteMap(1) for name in MAPS}
    return SessionTrimState(pools, limit, window.pages, window.rest, all_sliding, Range(1, sessions), **maps)


def start(st: SessionTrimState) -> SessionTrimState:
    """Before the first call: every row is idle, no session has a row, and all pages are free."""
    return but(zeroed(st, MAPS, ()), pools=swa_mapping.start(st.pools))


def full_pool(st: SessionTrimState) -> Pool:
    """The full pool."""
    pool: Pool = st.pools.now.full
    return pool


def swa_pool(st: SessionTrimState) -> Pool:
    """The SWA pool."""
    pool: Pool = st.pools.now.swa
    return pool


def is_row(st: SessionTrimState, row: Number) -> Truth:
    """``row`` is the row of a request, not of a tree node."""
    return full_pool(st).rows.has(row) & (row < st.limit)


def is_other(st: SessionTrimState, row: Number) -> Truth:
    """``row`` belongs to no request; it can hold the pages of a tree node."""
    return full_pool(st).rows.has(row) & (row >= st.limit)


def committed(st: SessionTrimState, row: Number) -> Length:
    """The committed length: how many tokens of the row are computed."""
    return Length(st.committed(row), st.committed_rest(row))


def allocated(st: SessionTrimState, row: Number) -> Length:
    """The allocated length: how many tokens of the row have slots."""
    return length(full_pool(st), row)


def cursor(st: SessionTrimState, row: Number) -> Length:
    """The cursor: how many tokens of the row have left the window."""
    return Length(st.cursor(row), st.cursor_rest(row))


def text(st: SessionTrimState, row: Number) -> Length:
    """The length of the text that the input of the session's next turn begins with."""
    return Length(st.text(row), st.text_rest(row))


def protected(st: SessionTrimState, row: Number) -> Length:
    """The length of the cached prefix, whose pages the tree owns."""
    return Length(st.protected(row), 0)


def has_gaps(st: SessionTrimState) -> Truth:
    """Every layer of the model has a sliding window, and one pool has the slots of all of them."""
    return st.all_sliding & no(st.pools.windowed)


def is_whole(st: SessionTrimState, row: Number) -> Truth:
    """The row has no gap: no page of it was given back because its tokens left the window."""
    return no(has_gaps(st)) | (st.gap(row) == st.cursor(row))


def in_gap(st: SessionTrimState, row: Number, index: Number) -> Truth:
    """The row has given back its page at this index, since the tokens of the page left the window of every layer."""
    return has_gaps(st) & (st.gap(row) <= index) & (index < st.cursor(row))


def is_owned(st: SessionTrimState, row: Number, index: Number) -> Truth:
    """The row owns a page at this index: behind its cached prefix, not in its gap, within its allocated length."""
    behind = (st.protected(row) <= index) & (index < touched(allocated(st, row)))
    return behind & no(in_gap(st, row, index))


def may_be_read(st: SessionTrimState, row: Number, index: Number) -> Truth:
    """A layer may still read a token in the row's page at this index: a layer without a window may read every token.

    Where every layer has a window, a page is behind it if a whole window of committed tokens follows the page.
    """
    behind = at_most(Length(index + 1 + st.window, st.window_rest), committed(st, row))
    return no(has_gaps(st) & behind)


def resumable(st: SessionTrimState, row: Number, to: Length) -> Truth:
    """A request may go on at ``to`` tokens: the window before ``to`` has its slots, in the row or in the tree."""
    return (st.cursor(row) <= st.protected(row)) | at_most(Length(st.cursor(row) + st.window, st.window_rest), to)


def back_to(st: SessionTrimState, row: Number, to: Length) -> Length:
    """Where a row that is cut to ``to`` goes on: there, or after its cached prefix if the window before is gone."""
    return pick(resumable(st, row, to), to, protected(st, row))


def commit_to(st: SessionTrimState, row: Number, to: Length) -> SessionTrimState:
    """The state with the row's committed length set to ``to``."""
    return but(st, committed=st.committed.put(row, to.pages), committed_rest=st.committed_rest.put(row, to.rest))


def cut_back(st: SessionTrimState, row: Number, to: Length) -> SessionTrimState:
    """The state with the row's committed length cut back for ``to`` (``back_to``), and its cursor not beyond it."""
    going = resumable(st, row, to)
    kept = commit_to(st, row, back_to(st, row, to))
    return but(
        kept,
        cursor=st.cursor.put(row, ite(going, st.cursor(row), st.protected(row))),
        cursor_rest=st.cursor_rest.put(row, ite(going, st.cursor_rest(row), 0)),
        gap=st.gap.put(row, ite(going, st.gap(row), st.protected(row))),
    )


def emptied(st: SessionTrimState, row: Number) -> SessionTrimState:
    """The state in which the row is idle, and its session, if it has one, has no row."""
    mine = st.session(row)
    return but(
        commit_to(st, row, NOTHING),
        phase=st.phase.put(row, IDLE),
        protected=st.protected.put(row, 0),
        cursor=st.cursor.put(row, 0),
        cursor_rest=st.cursor_rest.put(row, 0),
        gap=st.gap.put(row, 0),
        text=st.text.put(row, 0),
        text_rest=st.text_rest.put(row, 0),
        session=st.session.put(row, 0),
        slot=st.slot.where(lambda s: (s == mine) & (mine != 0), 0, lambda: [mine]),
    )


# The laws.


def each_row(st: SessionTrimState, law: Callable[[Number], Truth]) -> Truth:
    """``law`` holds for every row of a request that is not idle."""
    return each_request(st, lambda r: implies(st.phase(r) != IDLE, law(r)))


def each_request(st: SessionTrimState, law: Callable[[Number], Truth]) -> Truth:
    """``law`` holds for every row of a request."""
    return full_pool(st).rows.all(lambda r: implies(r < st.limit, law(r)))


def each_place(st: SessionTrimState, law: Callable[[Number, Number], Truth]) -> Truth:
    """``law`` holds for every page index of every row of a request."""
    full = full_pool(st)
    return each_request(st, lambda r: full.indices.all(lambda i: law(r, i)))


def phases(st: SessionTrimState) -> Truth:
    """A row is idle, running, saved in a session's slot, or leaving; an idle row has no tokens."""

    def one(r: Number) -> Truth:
        empty = same(allocated(st, r), NOTHING) & (st.protected(r) == 0)
        return (st.phase(r) >= IDLE) & (st.phase(r) <= LEAVING) & implies(st.phase(r) == IDLE, empty)

    return each_request(st, one)


def others_are_whole(st: SessionTrimState) -> Truth:
    """A row that belongs to no request has only whole pages."""
    full = full_pool(st)
    return full.rows.all(lambda r: implies(r >= st.limit, full.rest(r) == 0))


def cursor_committed_allocated(st: SessionTrimState) -> Truth:
    """In each row 0 <= cursor <= committed <= allocated, and the cached prefix is at most the committed length."""

    def order(r: Number) -> Truth:
        shaped = formed(cursor(st, r), full_pool(st).page_size) & formed(committed(st, r), full_pool(st).page_size)
        inside = at_most(cursor(st, r), committed(st, r)) & at_most(committed(st, r), allocated(st, r))
        return shaped & inside & (st.protected(r) >= 0) & (st.protected(r) <= st.committed(r))

    return each_row(st, order)


def cursor_is_aligned(st: SessionTrimState) -> Truth:
    """The cursor is a multiple of the page size: a page with a token in the window keeps its SWA page."""
    return each_row(st, lambda r: st.cursor_rest(r) == 0)


def no_cursor_without_window(st: SessionTrimState) -> Truth:
    """In a model without sliding-window layers no token has left a window: the cursor of each row is 0."""
    return each_row(st, lambda r: st.pools.windowed | st.all_sliding | same(cursor(st, r), NOTHING))


def gap_is_behind_the_prefix(st: SessionTrimState) -> Truth:
    """Where every layer has a sliding window, what a row gave back lies between its cached prefix and its cursor."""

    def lies(r: Number) -> Truth:
        none = (st.gap(r) == st.cursor(r)) & (st.cursor(r) <= st.protected(r))
        return implies(has_gaps(st), none | ((st.protected(r) <= st.gap(r)) & (st.gap(r) < st.cursor(r))))

    return each_row(st, lies)


def full_positions(st: SessionTrimState) -> Truth:
    """A row owns a full page at each index from its cached prefix to its allocated length, and at no other index.

    Where every layer has a sliding window, it owns no page at the indices that left the window and were given back.
    """

    def owned(r: Number, i: Number) -> Truth:
        return is_owned(st, r, i) == (full_pool(st).table(r, i) != PADDING)

    return each_place(st, owned)


def swa_positions(st: SessionTrimState) -> Truth:
    """A row owns an SWA page where it owns a full page that is not below the cursor, and at no other index.

    In a model with one pool it owns no SWA page.
    """

    def owned(r: Number, i: Number) -> Truth:
        mine = (st.protected(r) <= i) & (i < touched(allocated(st, r)))
        in_window = mine & (st.cursor(r) <= i) & st.pools.windowed
        return in_window == (swa_pool(st).table(r, i) != PADDING)

    return each_place(st, owned)


def tokens_map(st: SessionTrimState) -> Truth:
    """Where a row owns an SWA page, every token of the row in that page maps into this SWA page."""
    full, swa, pair = full_pool(st), swa_pool(st), st.pools.now

    def maps(r: Number, i: Number, o: Number) -> Truth:
        there = (swa.table(r, i) != PADDING) & covers(length(full, r), i, o)
        return implies(there, pair.to_page(full.table(r, i), o) == swa.table(r, i))

    return full.rows.all(lambda r: full.indices.all(lambda i: full.offsets.all(lambda o: maps(r, i, o))))


def window_is_kept(st: SessionTrimState) -> Truth:
    """The window before the next token has its slots: no page is given back before its last reader.

    Where some layers have a sliding window, these are the SWA slots. Where every layer has one, these are all slots.
    """
    return each_row(st, lambda r: resumable(st, r, committed(st, r)))


def no_token_across_turns(st: SessionTrimState) -> Truth:
    """A saved row has no committed token beyond the text that the next turn's input begins with."""
    return each_row(st, lambda r: implies(st.phase(r) == SAVED, at_most(committed(st, r), text(st, r))))


def one_row_a_session(st: SessionTrimState) -> Truth:
    """A session has at most one row, and its slot names exactly the row that belongs to the session."""
    mine = each_row(
        st,
        lambda r: (
            implies(st.session(r) != 0, st.sessions.has(st.session(r)) & (st.slot(st.session(r)) == r + 1))
            & implies(st.phase(r) == SAVED, st.session(r) != 0)
        ),
    )

    def kept(s: Number) -> Truth:
        r = st.slot(s) - 1
        return implies(st.slot(s) != 0, is_row(st, r) & (st.phase(r) != IDLE) & (st.session(r) == s))

    return mine & st.sessions.all(kept)


# The laws of two states.


def committed_is_kept(was: SessionTrimState, now: SessionTrimState) -> Truth:
    """What a running request has committed stays committed while it goes on running: no token is computed in vain.

    Only a rollback takes tokens back, as it says.
    """
    return stays(was, now, lambda r: at_most(committed(was, r), committed(now, r)))


def cursor_goes_on(was: SessionTrimState, now: SessionTrimState) -> Truth:
    """The cursor of a running request never moves back: what has left the window does not come back."""
    return stays(was, now, lambda r: at_most(cursor(was, r), cursor(now, r)))


def draft_waits(was: SessionTrimState, now: SessionTrimState) -> Truth:
    """A token that was allocated before it was computed is committed by ``commit`` alone, which verifies it."""

    def verified(r: Number) -> Truth:
        more = at_most(committed(was, r), committed(now, r)) & no(same(committed(was, r), committed(now, r)))
        return implies(more, same(committed(was, r), allocated(was, r)))

    return stays(was, now, verified)


def session_is_kept(was: SessionTrimState, now: SessionTrimState) -> Truth:
    """A row belongs to one session, or to none, from its admission until it is idle again."""
    return each_request(
        was, lambda r: implies((was.phase(r) != IDLE) & (now.phase(r) != IDLE), was.session(r) == now.session(r))
    )


def stays(was: SessionTrimState, now: SessionTrimState, law: Callable[[Number], Truth]) -> Truth:
    """``law`` holds for each row whose request runs before and after the call."""
    return each_request(was, lambda r: implies((was.phase(r) == RUNNING) & (now.phase(r) == RUNNING), law(r)))


LAWS = (
    phases,
    others_are_whole,
    cursor_committed_allocated,
    cursor_is_aligned,
    no_cursor_without_window,
    gap_is_behind_the_prefix,
    full_positions,
    swa_positions,
    tokens_map,
    window_is_kept,
    no_token_across_turns,
    one_row_a_session,
)

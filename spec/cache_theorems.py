"""What follows from the laws of the cache in every state, in the words of its users: nothing is left locked, nothing is
lost, and nothing is read after it was given away.

Each function is a theorem: both solvers prove it from the laws alone, for any number of pages, nodes and requests.
"""

from __future__ import annotations

from collections.abc import Callable

from spec import mamba_slots_state
from spec.cache_state import CacheState, home
from spec.lengths import Length, at_most, covers, touched
from spec.lock_ref_state import lives
from spec.logic import Domain, Number, Truth, implies, ite, no
from spec.mamba_slots_state import ABSENT, each_role, is_held, is_request
from spec.pair import waits
from spec.pool import PADDING, held
from spec.session_trim_state import (
    IDLE,
    RUNNING,
    SAVED,
    allocated,
    committed,
    each_request,
    each_row,
    full_pool,
    is_owned,
    may_be_read,
    swa_pool,
)


def nobody(st: CacheState) -> Truth:
    """No request and no session uses a row."""
    return each_request(st.rows, lambda r: st.rows.phase(r) == IDLE)


def deserted(st: CacheState) -> Truth:
    """No request and no session uses a row, and the tree has no node."""
    return nobody(st) & st.tree.nodes.all(lambda n: no(lives(st.tree, n)))


def requests_are_gone(st: CacheState) -> Truth:
    """No request is on a row with state slots, or waits with some."""
    slots = st.states
    return slots.owners.all(lambda o: implies(is_request(slots, o), slots.phase(o) == mamba_slots_state.IDLE))


def every_count_is_zero(st: CacheState, n: Number) -> Truth:
    """With no request and no session, every lock count of every tree node is zero."""
    tree = st.tree
    zero = (tree.full_ref(n) == 0) & (tree.swa_ref(n) == 0) & (tree.mamba_ref(n) == 0)
    return implies(nobody(st) & lives(tree, n), zero)


def quiescent(st: CacheState) -> Truth:
    """With no request, no session, an empty tree and no open free group, every page of both pools is available."""
    rows = st.rows
    full = full_pool(rows).available == full_pool(rows).pages.size
    swa = swa_pool(rows).available == swa_pool(rows).pages.size
    return implies(deserted(st) & (rows.pools.group == 0), full & swa)


def states_are_quiescent(st: CacheState) -> Truth:
    """With no request on a row or waiting, no session, an empty tree and no open group, every state slot is free."""
    slots = st.states
    rest = deserted(st) & requests_are_gone(st) & (slots.group == 0)
    return implies(rest, slots.available == slots.slots.size)


def reader(st: CacheState, r: Number) -> Truth:
    """The row is read: its request runs, or it is saved for the next turn of its session."""
    return (st.rows.phase(r) == RUNNING) | (st.rows.phase(r) == SAVED)


def place_of(st: CacheState, r: Number, i: Number) -> Number:
    """The pool row that owns what the row ``r`` reads at the page index ``i``: the row itself, or a tree node's row."""
    node = st.cover(st.tree.node(st.handle(r)), i)
    return ite(i < st.rows.protected(r), home(st, node), r)


def rows_of(st: CacheState) -> Domain:
    """The rows of the full pool; those below ``limit`` belong to requests."""
    return full_pool(st.rows).rows


def reads_held_pages(st: CacheState, r: Number) -> Truth:
    """At each index up to its allocated length, a row that is read shows a page that is held: its own, or the tree's.

    So no request reads a full page after it was freed. Where every layer has a sliding window, pages behind the window
    are not read: of these it is said within the cached prefix alone.
    """
    full = full_pool(st.rows)

    def shown(i: Number) -> Truth:
        page = full.table(place_of(st, r, i), i)
        read = (i < st.rows.protected(r)) | may_be_read(st.rows, r, i)
        there = reader(st, r) & (i < touched(allocated(st.rows, r))) & read
        return implies(there, (st.reads(r, i) == page) & held(full, page))

    return implies(r < st.rows.limit, full.indices.all(shown))


def in_window(st: CacheState, r: Number, i: Number, o: Number) -> Truth:
    """The next token of a row that is read reads the token at this page index and offset, as the window has it.

    A page is behind the window where a whole window of committed tokens follows it.
    """
    behind = at_most(Length(i + 1 + st.rows.window, st.rows.window_rest), committed(st.rows, r))
    return st.tree.windowed & reader(st, r) & no(behind) & covers(allocated(st.rows, r), i, o)


def maps_into(st: CacheState, r: Number, i: Number, o: Number, owner: Number) -> Truth:
    """What the row shows there maps into the SWA page that ``owner`` holds at this page index."""
    swa = swa_pool(st.rows)
    page = swa.table(owner, i)
    return (st.rows.pools.now.to_page(st.reads(r, i), o) == page) & held(swa, page)


def each_token(st: CacheState, law: Callable[[Number, Number], Truth]) -> Truth:
    """``law`` holds for each page index and each offset in a page."""
    full = full_pool(st.rows)
    return full.indices.all(lambda i: full.offsets.all(lambda o: law(i, o)))


def reads_held_window(st: CacheState, r: Number) -> Truth:
    """In its cached prefix, a token in the window of a row that is read maps into an SWA page that the tree holds.

    So no request reads an SWA page of the tree after it was freed. This is said of models with an SWA pool, since
    others have no SWA pages.
    """

    def shared(i: Number, o: Number) -> Truth:
        node = st.cover(st.tree.node(st.handle(r)), i)
        there = in_window(st, r, i, o) & (i < st.rows.protected(r))
        return implies(there, maps_into(st, r, i, o, home(st, node)))

    return implies(r < st.rows.limit, each_token(st, shared))


def reads_own_window(st: CacheState, r: Number) -> Truth:
    """Behind its cached prefix, a token in the window of a row that is read maps into an SWA page that the row holds.

    So no request reads an SWA page of its own after it was freed.
    """

    def own(i: Number, o: Number) -> Truth:
        return implies(in_window(st, r, i, o) & (i >= st.rows.protected(r)), maps_into(st, r, i, o, r))

    return implies(r < st.rows.limit, each_token(st, own))


def frees_what_it_owns(st: CacheState) -> Truth:
    """At each index where it owns a page, a row in use shows a full page that this row alone holds, there alone.

    A row owns a page at each index behind its cached prefix, but for those that left the window of every layer.

    A token of this page maps to nothing, into an SWA page that this row alone holds there, or into an SWA page that was
    freed in the open group. So a caller that reads off its row which slots it frees names each of its pages once, and
    no page of another owner.
    """
    rows, full, swa = st.rows, full_pool(st.rows), swa_pool(st.rows)

    def own(r: Number, i: Number, o: Number) -> Truth:
        page = st.reads(r, i)
        mapped = rows.pools.now.to_page(page, o)
        mine = held(swa, mapped) & (swa.owner(mapped) == r) & (swa.index(mapped) == i)
        return implies(
            is_owned(rows, r, i),
            held(full, page)
            & (full.owner(page) == r)
            & (full.index(page) == i)
            & ((mapped == PADDING) | mine | waits(swa, mapped)),
        )

    return each_row(rows, lambda r: full.indices.all(lambda i: full.offsets.all(lambda o: own(r, i, o))))


def reads_own_states(st: CacheState) -> Truth:
    """While a row's request runs, each state slot that the kernels read for it is held by this request alone.

    So no request reads or writes a mamba state after it was freed, or that another request, session or node owns.
    """
    slots = st.states

    def own(r: Number) -> Truth:
        o = st.mine(r) - 1

        def held_by_it(k: Number) -> Truth:
            s = slots.row(o, k)
            return implies(s != ABSENT, is_held(slots, s) & (slots.owner(s) == o) & (slots.role(s) == k))

        return implies((st.rows.phase(r) == RUNNING) & (st.mine(r) != 0), each_role(held_by_it))

    return each_request(st.rows, own)

"""What follows from the laws of the cache in every state, in the words of its users: nothing is left locked, nothing is
lost, and nothing is read after it was given away.

Each function is a theorem: both solvers prove it from the laws alone, for any number of pages, nodes and requests.
"""

from __future__ import annotations

from spec import states
from spec.cache_state import CacheState, home
from spec.lengths import Length, at_most, covers, touched
from spec.logic import Number, Truth, implies, ite, no
from spec.pair import waits
from spec.pool import PADDING, held
from spec.rows import IDLE, RUNNING, SAVED, allocated, committed, each_request, each_row, full_pool, swa_pool
from spec.states import ABSENT, each_role, is_held, is_request
from spec.tree import lives


def nobody(st: CacheState) -> Truth:
    """No request and no session uses a row."""
    return each_request(st.rows, lambda r: st.rows.phase(r) == IDLE)


def deserted(st: CacheState) -> Truth:
    """No request and no session uses a row, and the tree has no node."""
    return nobody(st) & st.tree.nodes.all(lambda n: no(lives(st.tree, n)))


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
    gone = slots.owners.all(lambda o: implies(is_request(slots, o), slots.phase(o) == states.IDLE))
    return implies(deserted(st) & gone & (slots.group == 0), slots.available == slots.slots.size)


def reader(st: CacheState, r: Number) -> Truth:
    """The row is read: its request runs, or it is saved for the next turn of its session."""
    return (st.rows.phase(r) == RUNNING) | (st.rows.phase(r) == SAVED)


def place_of(st: CacheState, r: Number, i: Number) -> Number:
    """The pool row that owns what the row ``r`` reads at the page index ``i``: the row itself, or a tree node's row."""
    node = st.cover(st.tree.node(st.handle(r)), i)
    return ite(i < st.rows.protected(r), home(st, node), r)


def reads_held_pages(st: CacheState) -> Truth:
    """At each index up to its allocated length, a row that is read shows a page that is held: its own, or the tree's.

    So no request reads a full page after it was freed.
    """
    rows, full = st.rows, full_pool(st.rows)

    def shown(r: Number, i: Number) -> Truth:
        page = full.table(place_of(st, r, i), i)
        there = reader(st, r) & (i < touched(allocated(rows, r)))
        return implies(there, (st.reads(r, i) == page) & held(full, page))

    return each_request(rows, lambda r: full.indices.all(lambda i: shown(r, i)))


def reads_held_window(st: CacheState) -> Truth:
    """A token in the window of a row that is read maps into an SWA page that is held: of the row, or of the tree.

    So no request reads an SWA page after it was freed. This is said of models with sliding-window layers, since others
    have no SWA pages. A page is behind the window where a whole window of committed tokens follows it.
    """
    rows, full, swa = st.rows, full_pool(st.rows), swa_pool(st.rows)

    def mapped(r: Number, i: Number, o: Number) -> Truth:
        page = swa.table(place_of(st, r, i), i)
        behind = at_most(Length(i + 1 + rows.window, rows.window_rest), committed(rows, r))
        read = st.tree.windowed & reader(st, r) & no(behind) & covers(allocated(rows, r), i, o)
        return implies(read, (rows.pools.now.to_page(st.reads(r, i), o) == page) & held(swa, page))

    return each_request(rows, lambda r: full.indices.all(lambda i: full.offsets.all(lambda o: mapped(r, i, o))))


def frees_what_it_owns(st: CacheState) -> Truth:
    """At each index behind its cached prefix, a row in use shows a full page that this row alone holds, there alone.

    A token of this page maps to nothing, into an SWA page that this row alone holds there, or into an SWA page that was
    freed in the open group. So a caller that reads off its row which slots it frees names each of its pages once, and
    no page of another owner.
    """
    rows, full, swa = st.rows, full_pool(st.rows), swa_pool(st.rows)

    def own(r: Number, i: Number, o: Number) -> Truth:
        page = st.reads(r, i)
        mapped = rows.pools.now.to_page(page, o)
        mine = held(swa, mapped) & (swa.owner(mapped) == r) & (swa.index(mapped) == i)
        there = (rows.protected(r) <= i) & (i < touched(allocated(rows, r)))
        return implies(
            there,
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

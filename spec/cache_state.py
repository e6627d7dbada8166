"""The state of the whole cache, and the laws that tie its parts together; ``spec.cache`` has the transitions.

The parts: the rows of requests over the two pools (``rows``), the radix tree with its locks (``tree``), and the mamba
state slots (``states``, see ``spec.mamba_in_cache``). In this stem the tree counts pages, not tokens: every key is a
number of whole pages. The tree node ``n`` owns its pages in the pool row ``limit + n`` (``home``), each page at the
index where it also stands in the rows of the requests that read it. ``reads(r, i)`` is the page that the row ``r`` of
``req_to_token`` shows at the page index ``i``: a page of the row itself or of the tree. ``handle(r)`` is the lock
handle of the row's request, 0 where it has none; ``holder(h)`` is the row whose request has the lock handle ``h``, plus
one. ``cover(n, i)`` is the node on the path to the tree node ``n`` whose key has the page index ``i``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spec import contents as texts
from spec import in_flight, mamba_slots_state
from spec import lock_ref_state as trees
from spec import session_trim_state as request_rows
from spec.contents import Contents
from spec.finite import Map as FiniteMap
from spec.in_flight import InFlightState
from spec.lengths import Length, at_most, same, touched
from spec.lock_ref_state import HELD, ROOT, LockRefState, begin, between, end, lives, over
from spec.logic import Domain, Map, Number, Requirement, Seq, Truth, but, implies, ite, no, number, requires, total
from spec.mamba_slots_state import MambaSlotsState
from spec.pool import PADDING, length
from spec.session_trim_state import (
    IDLE,
    LEAVING,
    RUNNING,
    SAVED,
    SessionTrimState,
    allocated,
    committed,
    full_pool,
    is_row,
    swa_pool,
)

FILLED, UNFILLED = 0, -1  # a row awaits nothing; it awaits a transfer that has not begun, or has failed


@dataclass(frozen=True)
class CacheState:
    """The parts of the cache, and the maps that tie the parts together.

    ``mine`` and ``carrier`` tie rows to the requests whose mamba states they use (``spec.mamba_in_cache``). ``inserts``
    is the number of the last insert into the tree. ``contents``: what the pages hold (``spec.contents``). ``flight``:
    the forward passes and transfers in flight (``spec.cache_flight``), with the mamba state slots that they use;
    ``full_used`` and ``swa_used``: the pages that they use. ``awaits`` and ``sent_from``: see ``spec.cache_transfers``.
    """

    rows: SessionTrimState
    tree: LockRefState
    states: MambaSlotsState
    contents: Contents
    flight: InFlightState
    handle: Map = total(1)
    holder: Map = total(1)
    reads: Map = total(2)
    cover: Map = total(2)
    mine: Map = total(1)
    carrier: Map = total(1)
    full_used: Map = total(2)
    swa_used: Map = total(2)
    awaits: Map = total(1)
    sent_from: Map = total(1)
    inserts: Number = number()


def initial(
    rows: SessionTrimState,
    tree: LockRefState,
    slots: MambaSlotsState,
    contents: Contents | None = None,
    jobs: int = 2,
) -> CacheState:
    """A cache of these parts in which no row reads and no handle is held (finite reading).

    ``contents``: without it, the texts of requests are not told apart. ``jobs``: the most passes and transfers in
    flight, where each row of a batch has a pass of its own.
    """
    none, pairs, held = FiniteMap(1), FiniteMap(2), texts.initial() if contents is None else contents
    flight = in_flight.initial(jobs, slots.slots.size)
    maps = (none, none, pairs, pairs, none, none, pairs, pairs, none, none)
    return CacheState(rows, tree, slots, held, flight, *maps, 0)


def start(st: CacheState) -> CacheState:
    """Before the first call: no row is in use, the tree is empty, every page and every state slot is free, and nothing
    is in flight.
    """
    return but(
        st,
        rows=request_rows.start(st.rows),
        tree=trees.start(st.tree),
        states=mamba_slots_state.start(st.states),
        handle=st.handle.all_to(0),
        holder=st.holder.all_to(0),
        reads=st.reads.all_to(PADDING),
        cover=st.cover.all_to(ROOT),
        mine=st.mine.all_to(0),
        carrier=st.carrier.all_to(0),
        full_used=st.full_used.all_to(0),
        swa_used=st.swa_used.all_to(0),
        awaits=st.awaits.all_to(FILLED),
        sent_from=st.sent_from.all_to(0),
        inserts=0,
        contents=texts.start(st.contents),
        flight=in_flight.start(st.flight),
    )


def tables_have_room(st: CacheState) -> Truth:
    """The tables of rows and of owners, in which the law keeps what requests and tree nodes own, have a row for each
    request and each node, and an owner for each request, each session and each node. A pass in flight can use each
    state slot.
    """
    rows = st.rows.limit + st.tree.nodes.size < full_pool(st.rows).rows.size
    owners = st.states.first_node + st.tree.nodes.size < st.states.owners.size
    return rows & owners & (st.flight.blocks.size == st.states.slots.size)


def home(st: CacheState, node: Number) -> Number:
    """The pool row in which a tree node owns its pages."""
    return st.rows.limit + node


def is_path(st: CacheState, node: Number, pages: Seq) -> Truth:
    """``pages`` are the pages on the path from the root to ``node``, in order of their index; none for the root."""
    return (pages.length == end(st.tree, node)) & begins_path(st, node, pages)


def begins_path(st: CacheState, node: Number, pages: Seq) -> Truth:
    """``pages`` are the first pages on the path from the root to ``node``, in order of their index."""
    full = full_pool(st.rows)

    def stands(i: Number) -> Truth:
        return implies(i < pages.length, pages.at(i) == full.table(home(st, st.cover(node, i)), i))

    return (pages.length <= end(st.tree, node)) & full.indices.all(stands)


def read_path(st: CacheState, row: Number, pages: Seq) -> CacheState:
    """The state in which the row shows ``pages`` at its first indices."""
    return but(
        st,
        reads=st.reads.where(
            lambda r, i: (r == row) & (i >= 0) & (i < pages.length),
            lambda _, i: pages.at(i),
            lambda: [(row, i) for i in range(pages.length)],
        ),
    )


def read_own(st: CacheState, row: Number, first: Number) -> CacheState:
    """The state in which the row shows the pages that it owns, from the page index ``first`` on."""
    full, end = full_pool(st.rows), touched(allocated(st.rows, row))
    return but(
        st,
        reads=st.reads.where(
            lambda r, i: (r == row) & (first <= i) & (i < end),
            lambda _, i: full.table(row, i),
            lambda: [(row, i) for i in range(first, end)],
        ),
    )


def held_by(st: CacheState, row: Number, handle: Number) -> CacheState:
    """The state in which ``handle`` is the one lock handle of the row's request; 0: the request has none."""
    old = st.handle(row)
    left = st.holder.where(lambda h: (h == old) & (old != 0), 0, lambda: [old])
    return but(
        st,
        handle=st.handle.put(row, handle),
        holder=left.where(lambda h: (h == handle) & (handle != 0), row + 1, lambda: [handle]),
    )


def is_filled(st: CacheState, row: Number) -> Requirement:
    """What the row's own pages hold has come: it awaits no transfer."""
    return requires(st.awaits(row) == FILLED, "the row awaits no transfer of what was computed elsewhere")


# Which node of a path has a page index in its key.


def cover_leaf(st: CacheState, under: Number, leaf: Number, stop: Number) -> Map:
    """``cover`` after a leaf was added under the node ``under``: its path is that of ``under``, and then itself."""
    first = end(st.tree, under)
    return st.cover.where(
        lambda n, i: (n == leaf) & (i >= 0) & (i < stop),
        lambda _, i: ite(i < first, st.cover(under, i), leaf),
        lambda: [(leaf, i) for i in range(stop)],
    )


def cover_split(st: CacheState, child: Number, new: Number, at: Number) -> Map:
    """``cover`` after ``new`` got the upper part of the key of ``child``, up to the page index ``at``."""
    tree, first = st.tree, begin(st.tree, child)
    return st.cover.where(
        lambda n, i: ((n == new) & (i >= 0) & (i < at)) | (over(tree, child, n) & (first <= i) & (i < at)),
        lambda _, i: ite(i < first, st.cover(child, i), new),
        lambda: [(n, i) for n in (new, *tree.nodes.items()) for i in range(at)],
    )


def cover_merge(st: CacheState, node: Number, above: Number) -> Map:
    """``cover`` after ``node`` took in its parent ``above``."""
    tree, first, last = st.tree, begin(st.tree, above), st.tree.stop(above)
    return st.cover.where(
        lambda n, i: over(tree, node, n) & (first <= i) & (i < last),
        node,
        lambda: [(n, i) for n in tree.nodes.items() for i in range(first, last)],
    )


# The laws.


def nodes_of(st: CacheState) -> Domain:
    """The numbers that tree nodes can have."""
    return st.tree.nodes


def each_home(st: CacheState, law: Callable[[Number, Number], Truth]) -> Truth:
    """``law`` holds for the pool row of each tree node, and the node."""
    first = st.rows.limit
    return full_pool(st.rows).rows.all(lambda r: implies(lives(st.tree, r - first), law(r, r - first)))


def others_are_nodes(st: CacheState) -> Truth:
    """Only rows of requests and of tree nodes own pages, and a node's row ends where the node's key ends."""
    full, first = full_pool(st.rows), st.rows.limit

    def ends(r: Number) -> Length:
        return Length(ite(lives(st.tree, r - first), st.tree.stop(r - first), 0), 0)

    return full.rows.all(lambda r: implies(r >= first, same(length(full, r), ends(r))))


def node_owns_its_key(st: CacheState) -> Truth:
    """A tree node owns one full page for each page of its key, at the same index, and no other full page. Its key lies
    in its table.
    """
    full = full_pool(st.rows)

    def owned(r: Number, n: Number, i: Number) -> Truth:
        return ((begin(st.tree, n) <= i) & (i < st.tree.stop(n))) == (full.table(r, i) != PADDING)

    def fits(n: Number) -> Truth:
        return implies(lives(st.tree, n), full.indices.has(st.tree.stop(n)))

    return each_home(st, lambda r, n: full.indices.all(lambda i: owned(r, n, i))) & st.tree.nodes.all(fits)


def node_owns_its_window(st: CacheState) -> Truth:
    """A tree node owns one SWA page for each page of its key; a tombstone owns no SWA page."""
    swa = swa_pool(st.rows)

    def owned(r: Number, n: Number, i: Number) -> Truth:
        mine = (st.tree.swa(n) == 1) & (begin(st.tree, n) <= i) & (i < st.tree.stop(n))
        return mine == (swa.table(r, i) != PADDING)

    return each_home(st, lambda r, n: swa.indices.all(lambda i: owned(r, n, i)))


def request_holds_its_prefix(st: CacheState) -> Truth:
    """A request that reads pages of the tree has a lock handle on the node where this prefix ends, or on one below it.

    So it may lock more of the tree than it reads. Every lock handle belongs to exactly one row. A row that is leaving
    reads no more, but keeps its handle until it is released.
    """
    rows, tree = st.rows, st.tree

    def holds(r: Number) -> Truth:
        h = st.handle(r)
        none = (h == 0) & ((rows.phase(r) == IDLE) | (rows.phase(r) == LEAVING) | (rows.protected(r) == 0))
        ends = (rows.phase(r) == LEAVING) | (rows.protected(r) <= tree.stop(tree.node(h)))
        real = tree.handles.has(h) & (tree.active(h) == 1)
        mine = real & (st.holder(h) == r + 1) & (rows.phase(r) != IDLE)
        return none | (mine & ends)

    def held_once(h: Number) -> Truth:
        r = st.holder(h) - 1
        return implies(tree.active(h) == 1, is_row(rows, r) & (st.handle(r) == h))

    return request_rows.each_request(rows, holds) & tree.handles.all(held_once)


def window_in(st: CacheState, node: Number, first: Number, to: Length, held: Callable[[Number], Truth]) -> Truth:
    """``held`` is true of each node on the path to ``node`` of which a token is read before the token at ``to``.

    Of the path the pages before the index ``first`` are read. A node is behind the window where a whole window of
    tokens fits between what is read of the node and ``to``. The tree of a model with one pool has no SWA part.
    """

    def kept(n: Number) -> Truth:
        last = ite(st.tree.stop(n) < first, st.tree.stop(n), first)
        behind = at_most(Length(last + st.rows.window, st.rows.window_rest), to)
        read = over(st.tree, n, node) & (begin(st.tree, n) < first)
        return implies(st.tree.windowed & read & no(behind), held(n))

    return st.tree.nodes.all(kept)


def holds_window(st: CacheState, handle: Number, first: Number, to: Length) -> Truth:
    """The lock handle holds the SWA part of each node of its path of which a token is read before ``to`` tokens.

    Of the path the pages before the index ``first`` are read.
    """
    tree = st.tree

    def held(n: Number) -> Truth:
        return between(tree, tree.top(handle), n, tree.node(handle)) & (tree.grip(handle, n) == HELD)

    return window_in(st, tree.node(handle), first, to, held)


def window_is_locked(st: CacheState) -> Truth:
    """A request or a saved row has a lock on the SWA part of each tree node in the window before its next token.

    So no SWA page that the next token reads is evicted, although a request may give back the SWA part of its lock.
    """
    rows = st.rows

    def locked(r: Number) -> Truth:
        reads = (st.handle(r) != 0) & ((rows.phase(r) == RUNNING) | (rows.phase(r) == SAVED))
        return implies(reads, holds_window(st, st.handle(r), rows.protected(r), committed(rows, r)))

    return request_rows.each_request(rows, locked)


def reads_what_it_holds(st: CacheState) -> Truth:
    """At each index of its cached prefix a request reads the page that the locked tree node owns at this index."""
    full, rows, tree = full_pool(st.rows), st.rows, st.tree

    def tied(r: Number, n: Number, i: Number) -> Truth:
        on_path = (st.handle(r) != 0) & (rows.phase(r) != LEAVING) & over(tree, n, tree.node(st.handle(r)))
        there = (begin(tree, n) <= i) & (i < tree.stop(n)) & (i < rows.protected(r))
        return implies(on_path & there, st.reads(r, i) == full.table(home(st, n), i))

    return request_rows.each_request(
        rows, lambda r: tree.nodes.all(lambda n: full.indices.all(lambda i: tied(r, n, i)))
    )


def reads_what_it_owns(st: CacheState) -> Truth:
    """At each index where a row owns a page, the row shows this page."""
    full, rows = full_pool(st.rows), st.rows

    def own(r: Number, i: Number) -> Truth:
        return implies(request_rows.is_owned(rows, r, i), st.reads(r, i) == full.table(r, i))

    return request_rows.each_row(rows, lambda r: full.indices.all(lambda i: own(r, i)))


def path_has_every_page(st: CacheState, n: Number) -> Truth:
    """Each page index of the path to a tree node lies in the key of one node on this path.

    Where the path goes on below a node, the next node on it is a child of that node.
    """
    tree, indices = st.tree, full_pool(st.rows).indices

    def has(i: Number) -> Truth:
        c = st.cover(n, i)
        there = lives(tree, c) & over(tree, c, n) & (begin(tree, c) <= i) & (i < tree.stop(c))
        return implies(lives(tree, n) & (i < tree.stop(n)), there)

    def goes_on(a: Number) -> Truth:
        c = st.cover(n, tree.stop(a))
        on = over(tree, a, n) & (a != n) & indices.has(tree.stop(a))
        return implies(on, lives(tree, c) & (tree.parent(c) == a))

    return indices.all(has) & tree.nodes.all(goes_on)


def inserts_are_numbered(st: CacheState) -> Truth:
    """Every insert into the tree has a number of its own, and no node names an insert that has not happened."""
    tree = st.tree
    return (st.inserts >= 0) & tree.nodes.all(lambda n: implies(lives(tree, n), tree.source(n) <= st.inserts))


LAWS = (
    others_are_nodes,
    node_owns_its_key,
    node_owns_its_window,
    request_holds_its_prefix,
    window_is_locked,
    reads_what_it_holds,
    reads_what_it_owns,
    inserts_are_numbered,
)

"""One manager's pools, rows, slots and tree: the noun of ``spec.cache``.

The tree counts pages here: all keys are whole pages, so a node's key stops where its last page does. Node ``n`` owns
its pages in the pool row ``limit + n``, at the places where they stand in every request's row. ``reads(r, i)`` is the
page that the row ``r`` shows at index ``i`` (``req_to_token``), its own or the tree's. ``handle(r)`` is the lock handle
of the row's request, 0 where it found nothing; ``holder(h)`` is that row plus one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spec import rows, states
from spec import tree as trees
from spec.finite import Map as FiniteMap
from spec.lengths import Length, same, touched
from spec.logic import Map, Number, Seq, Truth, but, implies, ite, no, number, total
from spec.pool import PADDING, Pool, held, length
from spec.rows import IDLE, LEAVING, Rows, allocated, full_pool, is_row, swa_pool
from spec.states import MambaSlots
from spec.tree import ROOT, Tree, begin, lives, over


@dataclass(frozen=True)
class Ledger:
    """How often each page of a pool was handed out, and how often it was given back."""

    births: Map = total(1)
    deaths: Map = total(1)


@dataclass(frozen=True)
class Whole:
    """Rows and slots over the pools, the tree, the states, and what ties them (for the states see ``spec.carried``).

    ``inserts`` numbers what the tree takes over.
    """

    life: Rows
    tree: Tree
    states: MambaSlots
    full: Ledger
    swa: Ledger
    handle: Map = total(1)
    holder: Map = total(1)
    reads: Map = total(2)
    mine: Map = total(1)
    carrier: Map = total(1)
    inserts: Number = number()


def initial(life: Rows, tree: Tree, slots: MambaSlots) -> Whole:
    """Nothing is read, held or counted (finite reading)."""
    ledger, none = Ledger(FiniteMap(1), FiniteMap(1)), FiniteMap(1)
    return Whole(life, tree, slots, ledger, ledger, none, none, FiniteMap(2), none, none, 0)


def start(st: Whole) -> Whole:
    """Before the first call."""
    return but(
        st,
        life=rows.start(st.life),
        tree=trees.start(st.tree),
        states=states.start(st.states),
        full=blank(st.full),
        swa=blank(st.swa),
        handle=st.handle.all_to(0),
        holder=st.holder.all_to(0),
        reads=st.reads.all_to(PADDING),
        mine=st.mine.all_to(0),
        carrier=st.carrier.all_to(0),
        inserts=0,
    )


def blank(book: Ledger) -> Ledger:
    """Nothing was handed out or given back."""
    return but(book, births=book.births.all_to(0), deaths=book.deaths.all_to(0))


def home(st: Whole, node: Number) -> Number:
    """The pool row of a node."""
    return st.life.limit + node


def born(book: Ledger, chosen: Seq) -> Ledger:
    """The pages ``chosen`` were handed out."""
    return but(book, births=book.births.where(chosen.has, lambda p: book.births(p) + 1, chosen.items))


def booked(book: Ledger, before: Pool, after: Pool) -> Ledger:
    """The pages that nobody holds any more were given back."""

    def gone(p: Number) -> Truth:
        return before.pages.has(p) & held(before, p) & no(held(after, p))

    return but(book, deaths=book.deaths.where(gone, lambda p: book.deaths(p) + 1, before.pages.items))


def living(st: Whole, life: Rows) -> Whole:
    """The state with the rows and pools ``life``, and the books kept of what was given back."""
    return but(
        st,
        life=life,
        full=booked(st.full, full_pool(st.life), full_pool(life)),
        swa=booked(st.swa, swa_pool(st.life), swa_pool(life)),
    )


def is_path(st: Whole, node: Number, pages: Seq) -> Truth:
    """``pages`` are the pages on the path from the root to ``node``, place by place."""
    full = full_pool(st.life)

    def stand(n: Number) -> Truth:
        return full.indices.all(
            lambda i: implies(
                over(st.tree, n, node) & (begin(st.tree, n) <= i) & (i < st.tree.stop(n)),
                pages.at(i) == full.table(home(st, n), i),
            )
        )

    return (pages.length == st.tree.stop(node)) & st.tree.nodes.all(stand)


def read_path(st: Whole, row: Number, pages: Seq) -> Whole:
    """The row shows ``pages`` at its beginning."""
    return but(
        st,
        reads=st.reads.where(
            lambda r, i: (r == row) & (i >= 0) & (i < pages.length),
            lambda _, i: pages.at(i),
            lambda: [(row, i) for i in range(pages.length)],
        ),
    )


def read_own(st: Whole, row: Number, first: Number) -> Whole:
    """The row shows its own pages from index ``first`` on."""
    full, end = full_pool(st.life), touched(allocated(st.life, row))
    return but(
        st,
        reads=st.reads.where(
            lambda r, i: (r == row) & (first <= i) & (i < end),
            lambda _, i: full.table(row, i),
            lambda: [(row, i) for i in range(first, end)],
        ),
    )


def held_by(st: Whole, row: Number, handle: Number) -> Whole:
    """The row's request holds ``handle`` alone; 0 is none."""
    old = st.handle(row)
    left = st.holder.where(lambda h: (h == old) & (old != 0), 0, lambda: [old])
    return but(
        st,
        handle=st.handle.put(row, handle),
        holder=left.where(lambda h: (h == handle) & (handle != 0), row + 1, lambda: [handle]),
    )


# The laws.


def each_home(st: Whole, law: Callable[[Number, Number], Truth]) -> Truth:
    """``law`` holds for the pool row of every node of the tree, and the node."""
    first = st.life.limit
    return full_pool(st.life).rows.all(lambda r: implies(lives(st.tree, r - first), law(r, r - first)))


def others_are_nodes(st: Whole) -> Truth:
    """Beside the requests' rows only the nodes of the tree own pages, each up to where its key stops."""
    full, first = full_pool(st.life), st.life.limit

    def ends(r: Number) -> Length:
        return Length(ite(lives(st.tree, r - first), st.tree.stop(r - first), 0), 0)

    return full.rows.all(lambda r: implies(r >= first, same(length(full, r), ends(r))))


def node_owns_its_key(st: Whole) -> Truth:
    """A node owns the full page of each place of its key, and no other."""
    full = full_pool(st.life)

    def owned(r: Number, n: Number, i: Number) -> Truth:
        return ((begin(st.tree, n) <= i) & (i < st.tree.stop(n))) == (full.table(r, i) != PADDING)

    return each_home(st, lambda r, n: full.indices.all(lambda i: owned(r, n, i)))


def node_owns_its_window(st: Whole) -> Truth:
    """A node owns the SWA page of each place of its key, a tombstone none."""
    swa = swa_pool(st.life)

    def owned(r: Number, n: Number, i: Number) -> Truth:
        mine = (st.tree.swa(n) == 1) & (begin(st.tree, n) <= i) & (i < st.tree.stop(n))
        return mine == (swa.table(r, i) != PADDING)

    return each_home(st, lambda r, n: swa.indices.all(lambda i: owned(r, n, i)))


def request_holds_its_prefix(st: Whole) -> Truth:
    """A request holds the node at which the tree's part of its row stops, and its window; every handle is one's."""
    life, tree = st.life, st.tree

    def holds(r: Number) -> Truth:
        h = st.handle(r)
        none = (h == 0) & ((life.phase(r) == IDLE) | (life.phase(r) == LEAVING) | (life.protected(r) == 0))
        ends = (life.phase(r) == LEAVING) | (life.protected(r) == tree.stop(tree.node(h)))
        real = tree.handles.has(h) & (tree.active(h) == 1) & (tree.top(h) != ROOT)
        mine = real & (st.holder(h) == r + 1) & (life.phase(r) != IDLE)
        return none | (mine & ends)

    def held_once(h: Number) -> Truth:
        r = st.holder(h) - 1
        return implies(tree.active(h) == 1, is_row(life, r) & (st.handle(r) == h))

    return rows.each_request(life, holds) & tree.handles.all(held_once)


def reads_what_it_holds(st: Whole) -> Truth:
    """At each place of its prefix a request reads the page that a node which it holds owns there."""
    full, life, tree = full_pool(st.life), st.life, st.tree

    def tied(r: Number, n: Number, i: Number) -> Truth:
        on_path = (st.handle(r) != 0) & (life.phase(r) != LEAVING) & over(tree, n, tree.node(st.handle(r)))
        there = (begin(tree, n) <= i) & (i < tree.stop(n))
        return implies(on_path & there, st.reads(r, i) == full.table(home(st, n), i))

    return rows.each_request(life, lambda r: tree.nodes.all(lambda n: full.indices.all(lambda i: tied(r, n, i))))


def reads_what_it_owns(st: Whole) -> Truth:
    """At each place that a request owns it reads its own page."""
    full, life = full_pool(st.life), st.life

    def own(r: Number, i: Number) -> Truth:
        there = (life.protected(r) <= i) & (i < touched(allocated(life, r)))
        return implies(there, st.reads(r, i) == full.table(r, i))

    return rows.each_row(life, lambda r: full.indices.all(lambda i: own(r, i)))


def inserts_are_numbered(st: Whole) -> Truth:
    """What the tree takes over gets a number of its own."""
    tree = st.tree
    return (st.inserts >= 0) & tree.nodes.all(lambda n: implies(lives(tree, n), tree.source(n) <= st.inserts))


def freed_exactly_once(st: Whole) -> Truth:
    """Each allocation of a page is given back exactly once: before the page's next one, and not before it is made."""

    def balanced(book: Ledger, pool: Pool) -> Truth:
        return pool.pages.all(lambda p: book.births(p) == book.deaths(p) + ite(held(pool, p), 1, 0))

    return balanced(st.full, full_pool(st.life)) & balanced(st.swa, swa_pool(st.life))


def deserted(st: Whole) -> Truth:
    """No row is in use, by a request or a session, and the tree has no node."""
    still = rows.each_request(st.life, lambda r: st.life.phase(r) == IDLE)
    return still & st.tree.nodes.all(lambda n: no(lives(st.tree, n)))


def quiescent(st: Whole) -> Truth:
    """With no request, no session, an evicted tree and no open group, both pools are full: nothing has leaked."""
    life = st.life
    full = full_pool(life).available == full_pool(life).pages.size
    swa = swa_pool(life).available == swa_pool(life).pages.size
    return implies(deserted(st) & (life.pools.group == 0), full & swa)


LAWS = (
    others_are_nodes,
    node_owns_its_key,
    node_owns_its_window,
    request_holds_its_prefix,
    reads_what_it_holds,
    reads_what_it_owns,
    inserts_are_numbered,
    freed_exactly_once,
)

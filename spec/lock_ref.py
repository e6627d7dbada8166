"""Who holds what in the radix tree: lock handles on paths of nodes, per component, on any tree.

Node 0 is the root; it holds nothing and is never locked. ``above(a, n)`` says that node ``a`` is ``n`` or one of its
ancestors; a path is then a set of nodes, and no law walks. ``stop(n)`` counts the tokens from the root to the end of the
node's key. A handle holds the full part of every node from its node to the root, the SWA part of those from its node up
to ``top`` (0: none), and the mamba state of its node alone. ``source(n)`` names the insert whose slots the node owns, at
the node's own positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spec.finite import Domain as Range
from spec.finite import Map as FiniteMap
from spec.logic import (
    Domain,
    Map,
    Number,
    Requirement,
    Set,
    Stem,
    Step,
    Truth,
    but,
    constant,
    every,
    implies,
    ite,
    no,
    number,
    requires,
    total,
    zeroed,
)

stem = Stem("lock_ref")

ROOT = 0


@dataclass(frozen=True)
class Tree:
    """The nodes, the handles, the lock counts, and the sizes that the engine claims. Sizes count tokens."""

    window: Number = constant("number", shared="window")
    windowed: Truth = constant("truth", shared="windowed")
    stateful: Truth = constant("truth", shared="stateful")
    nodes: Domain = constant("pages", shared="nodes")
    handles: Domain = constant("pages", shared="handles")
    alive: Map = total(1)
    parent: Map = total(1)
    above: Map = total(2)
    stop: Map = total(1)
    source: Map = total(1)
    swa: Map = total(1)
    mamba: Map = total(1)
    full_ref: Map = total(1)
    swa_ref: Map = total(1)
    mamba_ref: Map = total(1)
    active: Map = total(1)
    node: Map = total(1)
    top: Map = total(1)
    state: Map = total(1)
    full_evictable: Number = number()
    full_protected: Number = number()
    swa_evictable: Number = number()
    swa_protected: Number = number()
    mamba_evictable: Number = number()
    mamba_protected: Number = number()


def initial(nodes: int, handles: int, window: int, windowed: bool, stateful: bool) -> Tree:
    """An empty tree with room for ``nodes`` nodes and ``handles`` handles (finite reading)."""
    maps = {name: FiniteMap(1) for name in MAPS}
    sizes = dict.fromkeys(SIZES, 0)
    shape = {"window": window, "windowed": windowed, "stateful": stateful}
    return Tree(**shape, nodes=Range(1, nodes), handles=Range(1, handles), above=FiniteMap(2), **maps, **sizes)


MAPS = (
    *("alive", "parent", "stop", "source", "swa", "mamba"),
    *("full_ref", "swa_ref", "mamba_ref", "active", "node", "top", "state"),
)
SIZES = (
    *("full_evictable", "full_protected", "swa_evictable"),
    *("swa_protected", "mamba_evictable", "mamba_protected"),
)


def start(st: Tree) -> Tree:
    """Before the first call there is only the root, and nobody holds anything."""
    return zeroed(st, (*MAPS, "above"), SIZES)


stem.state, stem.start = Tree, start


# The words of the law.


def lives(st: Tree, n: Number) -> Truth:
    """``n`` is a node of the tree (the root is not counted)."""
    return st.nodes.has(n) & (st.alive(n) == 1)


def over(st: Tree, a: Number, n: Number) -> Truth:
    """``a`` is the node ``n`` or an ancestor of it."""
    return st.above(a, n) == 1


def begin(st: Tree, n: Number) -> Number:
    """The tokens above the node: where its parent's key stops."""
    return ite(st.parent(n) == ROOT, 0, st.stop(st.parent(n)))


def span(st: Tree, n: Number) -> Number:
    """How many tokens the node's own key has."""
    return st.stop(n) - begin(st, n)


def holds_full(st: Tree, h: Number, n: Number) -> Truth:
    """The handle holds the full part of the node: every node on its path."""
    return (st.active(h) == 1) & over(st, n, st.node(h))


def between(st: Tree, top: Number, n: Number, node: Number) -> Truth:
    """``n`` lies on the path from ``node`` up to ``top``, both included."""
    return (top != ROOT) & over(st, n, node) & over(st, top, n)


def holds_swa(st: Tree, h: Number, n: Number) -> Truth:
    """The handle holds the SWA part of the node: the nodes of its window."""
    return (st.active(h) == 1) & between(st, st.top(h), n, st.node(h))


def holds_mamba(st: Tree, h: Number, n: Number) -> Truth:
    """The handle holds the mamba state of the node: its own node alone."""
    return (st.active(h) == 1) & (st.state(h) == 1) & (st.node(h) == n)


def path(st: Tree, n: int) -> list[int]:
    """The nodes from ``n`` to the root, without the root (finite reading)."""
    found = []
    while n != ROOT and n not in found:
        found.append(n)
        n = st.parent(n)
    return found


def window_top(st: Tree, top: Number, node: Number) -> Truth:
    """``top`` is where a lock on ``node`` ends: the first node upward that fills the window, or the root's child."""
    fills = st.stop(node) - begin(st, top) >= st.window
    lowest = st.stop(node) - st.stop(top) < st.window
    return lives(st, top) & over(st, top, node) & lowest & (fills | (st.parent(top) == ROOT))


# Moving nodes between the two sizes of a component.


def on_path(st: Tree, node: Number) -> Set:
    """The nodes from ``node`` to the root."""
    return st.nodes.such(lambda n: over(st, n, node), lambda: path(st, node))


def in_window(st: Tree, top: Number, node: Number) -> Set:
    """The nodes from ``node`` up to ``top``."""
    return st.nodes.such(lambda n: between(st, top, n, node), lambda: path(st, node))


def shifted(st: Tree, held: Set, ref: Map, by: int, width: int) -> tuple[Map, Number]:
    """The counts with ``by`` more on the nodes ``held``, and the tokens that thereby change between the two sizes."""
    edge = ite(by > 0, 0, 1)
    moved = st.nodes.such(lambda n: held.has(n) & (ref(n) == edge), held.items)
    size = moved.total(lambda n: ite(width == 0, 1, span(st, n)))
    return ref.where(held.has, lambda n: ref(n) + by, held.items), size


def _shift(st: Tree, held_full: Set, held_swa: Set, held_mamba: Set, by: int) -> Tree:
    """Every count of what a handle holds changes by ``by``, and the sizes with them."""
    full_ref, full = shifted(st, held_full, st.full_ref, by, 1)
    swa_ref, swa = shifted(st, held_swa, st.swa_ref, by, 1)
    mamba_ref, mamba = shifted(st, held_mamba, st.mamba_ref, by, 0)
    return but(
        st,
        full_ref=full_ref,
        swa_ref=swa_ref,
        mamba_ref=mamba_ref,
        full_evictable=st.full_evictable - full * by,
        full_protected=st.full_protected + full * by,
        swa_evictable=st.swa_evictable - swa * by,
        swa_protected=st.swa_protected + swa * by,
        mamba_evictable=st.mamba_evictable - mamba * by,
        mamba_protected=st.mamba_protected + mamba * by,
    )


# The transitions.


@stem.transition
def acquire(st: Tree, handle: Number, node: Number, top: Number) -> Step[Tree]:
    """A new handle locks a node: the full part up to the root, the SWA part of its window, the state of the node."""
    held_state = ite(st.stateful, st.mamba(node), 0)
    locked = but(
        st,
        active=st.active.put(handle, 1),
        node=st.node.put(handle, node),
        top=st.top.put(handle, top),
        state=st.state.put(handle, held_state),
    )
    own = st.nodes.such(lambda n: (n == node) & (held_state == 1), lambda: [node])
    return Step(
        promises=(
            requires(st.handles.has(handle) & (st.active(handle) != 1), "the handle is new"),
            requires(lives(st, node), "the node is in the tree"),
            requires(implies(no(st.windowed), top == ROOT), "without a window there is no SWA part to hold"),
            requires(implies(st.windowed, window_top(st, top, node)), "the SWA part ends where the window is filled"),
            requires(
                st.nodes.all(lambda n: implies(between(st, top, n, node), st.swa(n) == 1)),
                "no node of the window is a tombstone",
            ),
        ),
        then=_shift(locked, on_path(st, node), in_window(st, top, node), own, 1),
    )


@stem.transition
def release(st: Tree, handle: Number) -> Step[Tree]:
    """A handle gives back exactly what it holds, whatever was split, evicted or restored since it was taken."""
    node, top = st.node(handle), st.top(handle)
    own = st.nodes.such(lambda n: (n == node) & (st.state(handle) == 1), lambda: [node])
    return Step(
        promises=(is_active(st, handle),),
        then=but(_shift(st, on_path(st, node), in_window(st, top, node), own, -1), active=st.active.put(handle, 0)),
    )


@stem.transition
def release_swa(st: Tree, handle: Number) -> Step[Tree]:
    """A handle gives back its SWA part alone, early, and holds the rest; it cannot give that part back twice."""
    node, top = st.node(handle), st.top(handle)
    nothing = st.nodes.such(lambda n: n != n, list)  # the empty set in both readings
    return Step(
        promises=(is_active(st, handle), requires(top != ROOT, "the handle still holds its SWA part")),
        then=but(_shift(st, nothing, in_window(st, top, node), nothing, -1), top=st.top.put(handle, ROOT)),
    )


def is_active(st: Tree, handle: Number) -> Requirement:
    """A handle is released once."""
    return requires(st.handles.has(handle) & (st.active(handle) == 1), "the handle is held")


@stem.transition
def split(st: Tree, child: Number, new: Number, at: Number) -> Step[Tree]:
    """A node is cut at ``at``: the new parent gets the upper part with all its locks, the child keeps its mamba state.

    A handle that ended at the child ends at the new parent.
    """

    def over_new(a: Number, n: Number) -> Number:
        from_new = ite((n == new) | over(st, child, n), 1, 0)
        to_new = ite(over(st, a, child) & (a != child), 1, 0)
        return ite(a == new, from_new, to_new)

    def around() -> list[tuple[int, int]]:
        return [(a, new) for a in st.nodes.items()] + [(new, n) for n in st.nodes.items()]

    cut = but(
        st,
        alive=st.alive.put(new, 1),
        parent=st.parent.put(new, st.parent(child)).put(child, new),
        above=st.above.where(lambda a, n: (a == new) | (n == new), over_new, around),
        stop=st.stop.put(new, at),
        source=st.source.put(new, st.source(child)),
        swa=st.swa.put(new, st.swa(child)),
        mamba=st.mamba.put(new, 0),
        full_ref=st.full_ref.put(new, st.full_ref(child)),
        swa_ref=st.swa_ref.put(new, st.swa_ref(child)),
        mamba_ref=st.mamba_ref.put(new, 0),
        top=st.top.where(
            lambda h: st.handles.has(h) & (st.active(h) == 1) & (st.top(h) == child), new, st.handles.items
        ),
    )
    return Step(
        promises=(
            requires(lives(st, child), "the node is in the tree"),
            requires(st.nodes.has(new) & (st.alive(new) != 1), "the new node is new"),
            requires((begin(st, child) < at) & (at < st.stop(child)), "the cut lies within the node's key"),
        ),
        then=cut,
    )


@stem.transition
def add_leaf(
    st: Tree, under: Number, leaf: Number, stop: Number, source: Number, with_swa: Truth, with_mamba: Truth
) -> Step[Tree]:
    """A leaf takes over the slots of one insert from where its parent stops; below the SWA cursor it is a tombstone."""
    swa, mamba = ite(with_swa & st.windowed, 1, 0), ite(with_mamba & st.stateful, 1, 0)
    first = ite(under == ROOT, 0, st.stop(under))
    size = stop - first
    return Step(
        promises=(
            requires((under == ROOT) | lives(st, under), "the parent is in the tree"),
            requires(st.nodes.has(leaf) & (st.alive(leaf) != 1), "the leaf is new"),
            requires(first < stop, "the leaf's key has tokens"),
            only_above(st, source, under),
        ),
        then=but(
            st,
            alive=st.alive.put(leaf, 1),
            parent=st.parent.put(leaf, under),
            above=st.above.where(
                lambda a, n: (a == leaf) | (n == leaf),
                lambda a, n: ite((n == leaf) & ((a == leaf) | ((under != ROOT) & over(st, a, under))), 1, 0),
                lambda: [(a, leaf) for a in st.nodes.items()] + [(leaf, n) for n in st.nodes.items()],
            ),
            stop=st.stop.put(leaf, stop),
            source=st.source.put(leaf, source),
            swa=st.swa.put(leaf, swa),
            mamba=st.mamba.put(leaf, mamba),
            full_ref=st.full_ref.put(leaf, 0),
            swa_ref=st.swa_ref.put(leaf, 0),
            mamba_ref=st.mamba_ref.put(leaf, 0),
            full_evictable=st.full_evictable + size,
            swa_evictable=st.swa_evictable + ite(swa == 1, size, 0),
            mamba_evictable=st.mamba_evictable + mamba,
        ),
    )


def only_above(st: Tree, source: Number, n: Number) -> Requirement:
    """An insert hands out its slots along one path, each position once."""
    return requires(
        st.nodes.all(lambda m: implies(lives(st, m) & (st.source(m) == source), (n != ROOT) & over(st, m, n))),
        "the insert's other slots lie above",
    )


@stem.transition
def restore(st: Tree, node: Number, source: Number) -> Step[Tree]:
    """A tombstone that nobody holds takes over the slots of an insert, both sides; its old full slots are freed."""
    return Step(
        promises=(
            requires(lives(st, node) & st.windowed, "the node is in the tree"),
            requires(st.swa(node) == 0, "the node is a tombstone"),
            requires(st.full_ref(node) == 0, "nobody reads the full slots that are replaced"),
            only_above(st, source, node),
        ),
        then=but(
            st,
            swa=st.swa.put(node, 1),
            source=st.source.put(node, source),
            swa_evictable=st.swa_evictable + span(st, node),
        ),
    )


@stem.transition
def set_mamba(st: Tree, node: Number) -> Step[Tree]:
    """A node without a mamba state takes one over."""
    return Step(
        promises=(
            requires(lives(st, node) & st.stateful, "the node is in the tree"),
            requires(st.mamba(node) == 0, "the node has no state yet"),
        ),
        then=but(st, mamba=st.mamba.put(node, 1), mamba_evictable=st.mamba_evictable + 1),
    )


@stem.transition
def evict_leaf(st: Tree, node: Number) -> Step[Tree]:
    """A leaf that nobody holds leaves the tree with all its slots."""
    return Step(
        promises=(
            requires(lives(st, node), "the node is in the tree"),
            requires(st.nodes.all(lambda m: implies(lives(st, m), st.parent(m) != node)), "the node is a leaf"),
            requires(st.full_ref(node) == 0, "nobody holds the node"),
        ),
        then=but(
            st,
            alive=st.alive.put(node, 0),
            above=st.above.where(
                lambda a, n: (a == node) | (n == node),
                0,
                lambda: [(a, node) for a in st.nodes.items()] + [(node, n) for n in st.nodes.items()],
            ),
            swa=st.swa.put(node, 0),
            mamba=st.mamba.put(node, 0),
            full_evictable=st.full_evictable - span(st, node),
            swa_evictable=st.swa_evictable - ite(st.swa(node) == 1, span(st, node), 0),
            mamba_evictable=st.mamba_evictable - st.mamba(node),
        ),
    )


@stem.transition
def evict_swa(st: Tree, node: Number) -> Step[Tree]:
    """A node whose SWA part nobody holds becomes a tombstone; its full part stays."""
    return Step(
        promises=(
            requires(lives(st, node) & (st.swa(node) == 1), "the node has an SWA part"),
            requires(st.swa_ref(node) == 0, "nobody holds the node's SWA part"),
        ),
        then=but(st, swa=st.swa.put(node, 0), swa_evictable=st.swa_evictable - span(st, node)),
    )


@stem.transition
def evict_mamba(st: Tree, node: Number) -> Step[Tree]:
    """A node whose mamba state nobody holds loses it."""
    return Step(
        promises=(
            requires(lives(st, node) & (st.mamba(node) == 1), "the node has a state"),
            requires(st.mamba_ref(node) == 0, "nobody holds the node's state"),
        ),
        then=but(st, mamba=st.mamba.put(node, 0), mamba_evictable=st.mamba_evictable - 1),
    )


# The laws.


@stem.invariant()
def above_is_an_order(st: Tree) -> Truth:
    """Every node of the tree is above itself, only nodes of the tree are above another, and no two above each other."""

    def pair(a: Number, n: Number) -> Truth:
        real = implies(over(st, a, n), lives(st, a) & lives(st, n))
        return real & implies(over(st, a, n) & over(st, n, a), a == n)

    itself = st.nodes.all(lambda n: implies(lives(st, n), over(st, n, n)))
    return itself & st.nodes.all(lambda a: st.nodes.all(lambda n: pair(a, n)))


def _nodes(st: Tree) -> Domain:
    return st.nodes


def pairs(st: Tree, law: Callable[[Number, Number], Truth]) -> Truth:
    """``law`` holds for any two nodes."""
    return st.nodes.all(lambda a: st.nodes.all(lambda n: law(a, n)))


@stem.each(_nodes)
def above_goes_on(st: Tree, b: Number) -> Truth:
    """What is above a node is above everything below that node."""
    return pairs(st, lambda a, n: implies(over(st, a, b) & over(st, b, n), over(st, a, n)))


@stem.each(_nodes)
def paths_do_not_fork(st: Tree, n: Number) -> Truth:
    """Of two nodes above a third, one is above the other."""
    return pairs(st, lambda a, b: implies(over(st, a, n) & over(st, b, n), over(st, a, b) | over(st, b, a)))


@stem.invariant()
def parent_is_next(st: Tree) -> Truth:
    """A node's parent is the root or the next node above it."""

    def next_above(n: Number) -> Truth:
        p = st.parent(n)
        near = st.nodes.all(lambda a: implies(over(st, a, n) & (a != n), (p != ROOT) & over(st, a, p)))
        return near & implies(p != ROOT, st.nodes.has(p) & over(st, p, n) & (p != n))

    return st.nodes.all(lambda n: implies(lives(st, n), next_above(n)))


@stem.invariant()
def keys_follow(st: Tree) -> Truth:
    """A node's key has tokens, and begins where the key of every node above it has stopped."""
    return st.nodes.all(
        lambda n: (
            implies(lives(st, n), (begin(st, n) >= 0) & (begin(st, n) < st.stop(n)))
            & st.nodes.all(lambda a: implies(over(st, a, n) & (a != n), st.stop(a) <= begin(st, n)))
        )
    )


@stem.invariant()
def values_are_flags(st: Tree) -> Truth:
    """A node has an SWA part or is a tombstone, has a mamba state or none, and only in a tree that has the component."""
    return st.nodes.all(
        lambda n: implies(
            lives(st, n),
            every(
                (
                    (st.swa(n) == 0) | ((st.swa(n) == 1) & st.windowed),
                    (st.mamba(n) == 0) | ((st.mamba(n) == 1) & st.stateful),
                )
            ),
        )
    )


@stem.invariant()
def handles_stand(st: Tree) -> Truth:
    """A handle holds a node of the tree, and its SWA part ends at a node above: nothing with a holder is evicted."""
    return st.handles.all(
        lambda h: implies(
            st.active(h) == 1,
            lives(st, st.node(h))
            & implies(st.top(h) != ROOT, lives(st, st.top(h)) & over(st, st.top(h), st.node(h)))
            & ((st.state(h) == 0) | ((st.state(h) == 1) & (st.mamba(st.node(h)) == 1))),
        )
    )


@stem.invariant()
def window_is_filled(st: Tree) -> Truth:
    """The SWA part that a handle holds fills its window, or reaches the root."""

    def filled(h: Number) -> Truth:
        return (st.stop(st.node(h)) - begin(st, st.top(h)) >= st.window) | (st.parent(st.top(h)) == ROOT)

    return st.handles.all(lambda h: implies((st.active(h) == 1) & (st.top(h) != ROOT), filled(h)))


@stem.invariant()
def held_is_no_tombstone(st: Tree) -> Truth:
    """A node whose SWA part somebody holds has it: what is held is never evicted."""
    return st.handles.all(lambda h: st.nodes.all(lambda n: implies(holds_swa(st, h, n), st.swa(n) == 1)))


@stem.each(_nodes, counts=True)
def full_pairs(st: Tree, n: Number) -> Truth:
    """The full lock count of a node is the number of handles that hold its full part."""
    return implies(lives(st, n), st.full_ref(n) == st.handles.count(lambda h: holds_full(st, h, n)))


@stem.each(_nodes, counts=True)
def swa_pairs(st: Tree, n: Number) -> Truth:
    """The SWA lock count of a node is the number of handles that hold its SWA part."""
    return implies(lives(st, n), st.swa_ref(n) == st.handles.count(lambda h: holds_swa(st, h, n)))


@stem.each(_nodes, counts=True)
def mamba_pairs(st: Tree, n: Number) -> Truth:
    """The mamba lock count of a node is the number of handles that hold its state."""
    return implies(lives(st, n), st.mamba_ref(n) == st.handles.count(lambda h: holds_mamba(st, h, n)))


@stem.each(_nodes, uses=("full_pairs", "swa_pairs", "mamba_pairs"))
def held_is_counted(st: Tree, n: Number) -> Truth:
    """A node that somebody holds has a positive lock count for what is held."""
    held = st.handles.all(
        lambda h: (
            implies(holds_full(st, h, n), st.full_ref(n) > 0)
            & implies(holds_swa(st, h, n), st.swa_ref(n) > 0)
            & implies(holds_mamba(st, h, n), st.mamba_ref(n) > 0)
        )
    )
    return implies(lives(st, n), held)


@stem.each(_nodes, uses=("full_pairs", "swa_pairs", "mamba_pairs"))
def counts_are_counts(st: Tree, n: Number) -> Truth:
    """No lock count is negative, and a node without an SWA part or a state has no locks on it."""
    real = (st.full_ref(n) >= 0) & (st.swa_ref(n) >= 0) & (st.mamba_ref(n) >= 0)
    bare = implies(st.swa(n) == 0, st.swa_ref(n) == 0) & implies(st.mamba(n) == 0, st.mamba_ref(n) == 0)
    return implies(lives(st, n), real & bare)


@stem.invariant()
def full_evictable_is_sum(st: Tree) -> Truth:
    """The full evictable size is the number of tokens of the nodes whose full part nobody holds."""
    return st.full_evictable == st.nodes.total(lambda n: lives(st, n) & (st.full_ref(n) == 0), lambda n: span(st, n))


@stem.invariant()
def full_protected_is_sum(st: Tree) -> Truth:
    """The full protected size is the number of tokens of the nodes whose full part somebody holds."""
    return st.full_protected == st.nodes.total(lambda n: lives(st, n) & (st.full_ref(n) > 0), lambda n: span(st, n))


@stem.invariant()
def swa_evictable_is_sum(st: Tree) -> Truth:
    """The SWA evictable size is the number of tokens of the nodes whose SWA part nobody holds."""
    return st.swa_evictable == st.nodes.total(
        lambda n: lives(st, n) & (st.swa(n) == 1) & (st.swa_ref(n) == 0), lambda n: span(st, n)
    )


@stem.invariant()
def swa_protected_is_sum(st: Tree) -> Truth:
    """The SWA protected size is the number of tokens of the nodes whose SWA part somebody holds."""
    return st.swa_protected == st.nodes.total(
        lambda n: lives(st, n) & (st.swa(n) == 1) & (st.swa_ref(n) > 0), lambda n: span(st, n)
    )


@stem.invariant()
def mamba_evictable_is_sum(st: Tree) -> Truth:
    """The mamba evictable size is the number of mamba states that nobody holds."""
    return st.mamba_evictable == st.nodes.total(
        lambda n: lives(st, n) & (st.mamba(n) == 1) & (st.mamba_ref(n) == 0), lambda _: 1
    )


@stem.invariant()
def mamba_protected_is_sum(st: Tree) -> Truth:
    """The mamba protected size is the number of mamba states that somebody holds."""
    return st.mamba_protected == st.nodes.total(
        lambda n: lives(st, n) & (st.mamba(n) == 1) & (st.mamba_ref(n) > 0), lambda _: 1
    )


@stem.invariant()
def own_slots(st: Tree) -> Truth:
    """Two nodes with slots of the same insert lie on one path, so that no slot belongs to two nodes."""
    return st.nodes.all(
        lambda a: st.nodes.all(
            lambda b: implies(
                lives(st, a) & lives(st, b) & (st.source(a) == st.source(b)), over(st, a, b) | over(st, b, a)
            )
        )
    )

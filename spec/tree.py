"""The radix tree as the locks see it: nodes, keys, values, and who holds what. The noun of ``spec.lock_ref``.

Node 0 is the root; it holds nothing and is never locked. ``above(a, n)`` says that node ``a`` is ``n`` or one of its
ancestors; a path is then a set of nodes, and no law walks. ``stop(n)`` counts the tokens from the root to the end of
the node's key. A handle holds the full part of every node from its node to the root, the SWA part of those from its
node up to ``top`` (0: none), and the mamba state of its node alone. ``source(n)`` names the insert whose slots the node
owns, at the node's own positions; ``reads(h, n)`` remembers whose slots the handle's request found there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spec.finite import Domain as Range
from spec.finite import Map as FiniteMap
from spec.logic import Domain, Map, Number, Truth, constant, every, implies, ite, number, total, zeroed

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
    reads: Map = total(2)
    full_evictable: Number = number()
    full_protected: Number = number()
    swa_evictable: Number = number()
    swa_protected: Number = number()
    mamba_evictable: Number = number()
    mamba_protected: Number = number()


MAPS = (
    *("alive", "parent", "stop", "source", "swa", "mamba"),
    *("full_ref", "swa_ref", "mamba_ref", "active", "node", "top", "state"),
)
SIZES = (
    *("full_evictable", "full_protected", "swa_evictable"),
    *("swa_protected", "mamba_evictable", "mamba_protected"),
)


def initial(nodes: int, handles: int, window: int, windowed: bool, stateful: bool) -> Tree:
    """An empty tree with room for ``nodes`` nodes and ``handles`` handles (finite reading)."""
    maps = {name: FiniteMap(1) for name in MAPS}
    sizes = dict.fromkeys(SIZES, 0)
    shape = {"window": window, "windowed": windowed, "stateful": stateful}
    return Tree(
        **shape,
        nodes=Range(1, nodes),
        handles=Range(1, handles),
        above=FiniteMap(2),
        reads=FiniteMap(2),
        **maps,
        **sizes,
    )


def start(st: Tree) -> Tree:
    """Before the first call there is only the root, and nobody holds anything."""
    return zeroed(st, (*MAPS, "above", "reads"), SIZES)


def lives(st: Tree, n: Number) -> Truth:
    """``n`` is a node of the tree (the root is not counted)."""
    return st.nodes.has(n) & (st.alive(n) == 1)


def over(st: Tree, a: Number, n: Number) -> Truth:
    """``a`` is the node ``n`` or an ancestor of it."""
    return st.above(a, n) == 1


def end(st: Tree, n: Number) -> Number:
    """The tokens from the root to the end of the node's key; none for the root itself."""
    return ite(n == ROOT, 0, st.stop(n))


def begin(st: Tree, n: Number) -> Number:
    """The tokens above the node: where its parent's key stops."""
    return end(st, st.parent(n))


def span(st: Tree, n: Number) -> Number:
    """How many tokens the node's own key has."""
    return st.stop(n) - begin(st, n)


def between(st: Tree, top: Number, n: Number, node: Number) -> Truth:
    """``n`` lies on the path from ``node`` up to ``top``, both included."""
    return (top != ROOT) & over(st, n, node) & over(st, top, n)


def holds_full(st: Tree, h: Number, n: Number) -> Truth:
    """The handle holds the full part of the node: every node on its path."""
    return (st.active(h) == 1) & over(st, n, st.node(h))


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


# The laws of the tree's shape.


def nodes_of(st: Tree) -> Domain:
    """All that can be nodes."""
    return st.nodes


def pairs(st: Tree, law: Callable[[Number, Number], Truth]) -> Truth:
    """``law`` holds for any two nodes."""
    return st.nodes.all(lambda a: st.nodes.all(lambda n: law(a, n)))


def above_is_an_order(st: Tree) -> Truth:
    """Every node of the tree is above itself, only nodes of the tree are above another, and no two above each other."""

    def pair(a: Number, n: Number) -> Truth:
        real = implies(over(st, a, n), lives(st, a) & lives(st, n))
        return real & implies(over(st, a, n) & over(st, n, a), a == n)

    itself = st.nodes.all(lambda n: implies(lives(st, n), over(st, n, n)))
    return itself & st.nodes.all(lambda a: st.nodes.all(lambda n: pair(a, n)))


def above_goes_on(st: Tree, b: Number) -> Truth:
    """What is above a node is above everything below that node."""
    return pairs(st, lambda a, n: implies(over(st, a, b) & over(st, b, n), over(st, a, n)))


def paths_do_not_fork(st: Tree, n: Number) -> Truth:
    """Of two nodes above a third, one is above the other."""
    return pairs(st, lambda a, b: implies(over(st, a, n) & over(st, b, n), over(st, a, b) | over(st, b, a)))


def parent_is_next(st: Tree) -> Truth:
    """A node's parent is the root or the next node above it."""

    def next_above(n: Number) -> Truth:
        p = st.parent(n)
        near = st.nodes.all(lambda a: implies(over(st, a, n) & (a != n), (p != ROOT) & over(st, a, p)))
        return near & implies(p != ROOT, st.nodes.has(p) & over(st, p, n) & (p != n))

    hangs = st.nodes.all(lambda n: implies(lives(st, n), (st.parent(n) == ROOT) | lives(st, st.parent(n))))
    return hangs & st.nodes.all(lambda n: implies(lives(st, n), next_above(n)))


def keys_follow(st: Tree) -> Truth:
    """A node's key has tokens, and begins where the key of every node above it has stopped."""
    return st.nodes.all(
        lambda n: (
            implies(lives(st, n), (begin(st, n) >= 0) & (begin(st, n) < st.stop(n)))
            & st.nodes.all(lambda a: implies(over(st, a, n) & (a != n), st.stop(a) <= begin(st, n)))
        )
    )


def values_are_flags(st: Tree) -> Truth:
    """A node has an SWA part or is a tombstone, and has a mamba state or none, where the tree has the component."""
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


def own_slots(st: Tree) -> Truth:
    """Two nodes with slots of the same insert lie on one path, so that no slot belongs to two nodes."""
    return st.nodes.all(
        lambda a: st.nodes.all(
            lambda b: implies(
                lives(st, a) & lives(st, b) & (st.source(a) == st.source(b)), over(st, a, b) | over(st, b, a)
            )
        )
    )

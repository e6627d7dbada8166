"""The radix tree and its locks: nodes, keys, lock handles and lock counts. The state of ``spec.lock_ref``.

Node 0 is the root; it has no slots and is never locked. Every other node has up to three components: its full part (the
full slots of its key), its SWA part (the SWA slots; a node without one is a tombstone) and a mamba state. ``above(a,
n)`` is 1 where the node ``a`` is ``n`` or an ancestor of ``n``, so that a path is a set of nodes and no law has to
walk. ``stop(n)`` is the number of tokens from the root to the end of the node's key. A lock handle on ``node(h)`` holds
the full part of every node from there to the root, the SWA parts of its *window*, the nodes from there up to ``top(h)``
(0: no node), and the mamba state of its node alone. A part may be missing when the handle is taken. Then the handle
either skips it (``SKIPPED``), or counts it (``COUNTED``): it holds nothing now, and holds the part as soon as it comes
to life. ``grip(h, n)`` says so for the SWA part of the node ``n`` of the window, ``state(h)`` for the mamba state.
``source(n)`` is the number of the insert whose slots the node owns; ``reads(h, n)`` is the ``source(n)`` that the
request of the handle ``h`` found when it locked the node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spec.finite import Domain as Range
from spec.finite import Map as FiniteMap
from spec.logic import Domain, Map, Number, Truth, constant, every, implies, ite, no, number, total, zeroed

ROOT = 0
SKIPPED, HELD, COUNTED = 0, 1, 2  # how a handle holds a part; a part that is not in its reach is skipped


@dataclass(frozen=True)
class LockRefState:
    """The nodes, the lock handles, the lock counts, and the sizes that an engine reports.

    The full and SWA sizes count tokens, the mamba sizes count states.
    """

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
    grip: Map = total(2)
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


def initial(nodes: int, handles: int, window: int, windowed: bool, stateful: bool) -> LockRefState:
    """An empty tree with room for ``nodes`` nodes and ``handles`` lock handles (finite reading)."""
    maps = {name: FiniteMap(1) for name in MAPS}
    sizes = dict.fromkeys(SIZES, 0)
    shape = {"window": window, "windowed": windowed, "stateful": stateful}
    return LockRefState(
        **shape,
        nodes=Range(1, nodes),
        handles=Range(1, handles),
        above=FiniteMap(2),
        grip=FiniteMap(2),
        reads=FiniteMap(2),
        **maps,
        **sizes,
    )


def start(st: LockRefState) -> LockRefState:
    """Before the first call: the tree has only its root, and no lock handle is active."""
    return zeroed(st, (*MAPS, "above", "grip", "reads"), SIZES)


def lives(st: LockRefState, n: Number) -> Truth:
    """``n`` is a node that is in the tree, and not the root."""
    return st.nodes.has(n) & (st.alive(n) == 1)


def over(st: LockRefState, a: Number, n: Number) -> Truth:
    """``a`` is the node ``n`` or an ancestor of ``n``."""
    return st.above(a, n) == 1


def end(st: LockRefState, n: Number) -> Number:
    """The number of tokens from the root to the end of the node's key; 0 for the root."""
    return ite(n == ROOT, 0, st.stop(n))


def begin(st: LockRefState, n: Number) -> Number:
    """The number of tokens above the node: where the key of its parent ends."""
    return end(st, st.parent(n))


def span(st: LockRefState, n: Number) -> Number:
    """The number of tokens of the node's own key."""
    return st.stop(n) - begin(st, n)


def between(st: LockRefState, top: Number, n: Number, node: Number) -> Truth:
    """``n`` is on the path from ``node`` up to ``top``, both included; no node is where ``top`` is 0."""
    return (top != ROOT) & over(st, n, node) & over(st, top, n)


def holds_full(st: LockRefState, h: Number, n: Number) -> Truth:
    """The handle holds the full part of ``n``, a node on its path to the root."""
    return (st.active(h) == 1) & over(st, n, st.node(h))


def holds_swa(st: LockRefState, h: Number, n: Number) -> Truth:
    """The handle counts in the SWA lock count of ``n``, a node of its window that it does not skip."""
    return (st.active(h) == 1) & between(st, st.top(h), n, st.node(h)) & (st.grip(h, n) != SKIPPED)


def holds_mamba(st: LockRefState, h: Number, n: Number) -> Truth:
    """The handle counts in the mamba lock count of ``n``, which is the handle's own node."""
    return (st.active(h) == 1) & (st.state(h) != SKIPPED) & (st.node(h) == n)


def path(st: LockRefState, n: int) -> list[int]:
    """The nodes from ``n`` to the root, without the root (finite reading)."""
    found = []
    while n != ROOT and n not in found:
        found.append(n)
        n = st.parent(n)
    return found


def window_top(st: LockRefState, top: Number, node: Number) -> Truth:
    """``top`` is where the window of a lock on ``node`` ends.

    It is the first node upward at which the window is full, or the child of the root where the path is shorter.
    """
    lowest = st.stop(node) - st.stop(top) < st.window
    return covers_window(st, top, node) & lowest


def covers_window(st: LockRefState, top: Number, node: Number) -> Truth:
    """From ``node`` up to ``top`` there is a full window of tokens, or the whole path to the root."""
    fills = st.stop(node) - begin(st, top) >= st.window
    return lives(st, top) & over(st, top, node) & (fills | (st.parent(top) == ROOT))


def live_top(st: LockRefState, top: Number, node: Number) -> Truth:
    """``top`` is where the window of a lock on ``node`` ends if the tokens of tombstones do not count.

    Below ``top`` the nodes that are no tombstones have fewer tokens than a window. Together with ``top`` they fill the
    window, or there is nothing but the root above.
    """

    def live(n: Number) -> Truth:
        return between(st, top, n, node) & (st.swa(n) == 1)

    def tokens(n: Number) -> Number:
        return span(st, n)

    held = st.nodes.such(live, lambda: path(st, node)).total(tokens)
    below = st.nodes.such(lambda n: live(n) & (n != top), lambda: path(st, node)).total(tokens)
    return covers_window(st, top, node) & (below < st.window) & ((held >= st.window) | (st.parent(top) == ROOT))


# The laws of the tree's shape.


def nodes_of(st: LockRefState) -> Domain:
    """The numbers that nodes can have."""
    return st.nodes


def pairs(st: LockRefState, law: Callable[[Number, Number], Truth]) -> Truth:
    """``law`` holds for any two nodes."""
    return st.nodes.all(lambda a: st.nodes.all(lambda n: law(a, n)))


def above_is_an_order(st: LockRefState) -> Truth:
    """``above`` relates only nodes of the tree, every node to itself, and no two different nodes in both directions.

    No node is above the root.
    """

    def pair(a: Number, n: Number) -> Truth:
        real = implies(over(st, a, n), lives(st, a) & lives(st, n))
        return real & implies(over(st, a, n) & over(st, n, a), a == n)

    itself = st.nodes.all(lambda n: implies(lives(st, n), over(st, n, n)) & no(over(st, n, ROOT)))
    return itself & st.nodes.all(lambda a: st.nodes.all(lambda n: pair(a, n)))


def above_goes_on(st: LockRefState, b: Number) -> Truth:
    """An ancestor of a node is an ancestor of every descendant of that node."""
    return pairs(st, lambda a, n: implies(over(st, a, b) & over(st, b, n), over(st, a, n)))


def paths_do_not_fork(st: LockRefState, n: Number) -> Truth:
    """Of two ancestors of a node, one is an ancestor of the other."""
    return pairs(st, lambda a, b: implies(over(st, a, n) & over(st, b, n), over(st, a, b) | over(st, b, a)))


def parent_is_next(st: LockRefState) -> Truth:
    """The parent of a node is its nearest ancestor in the tree, or the root if it has none."""

    def next_above(n: Number) -> Truth:
        p = st.parent(n)
        near = st.nodes.all(lambda a: implies(over(st, a, n) & (a != n), (p != ROOT) & over(st, a, p)))
        return near & implies(p != ROOT, st.nodes.has(p) & over(st, p, n) & (p != n))

    hangs = st.nodes.all(lambda n: implies(lives(st, n), (st.parent(n) == ROOT) | lives(st, st.parent(n))))
    return hangs & st.nodes.all(lambda n: implies(lives(st, n), next_above(n)))


def keys_follow(st: LockRefState) -> Truth:
    """A node's key has at least one token, and begins after the keys of all its ancestors."""
    return st.nodes.all(
        lambda n: (
            implies(lives(st, n), (begin(st, n) >= 0) & (begin(st, n) < st.stop(n)))
            & st.nodes.all(lambda a: implies(over(st, a, n) & (a != n), st.stop(a) <= begin(st, n)))
        )
    )


def values_are_flags(st: LockRefState) -> Truth:
    """A node has an SWA part or none, and a mamba state or none; it has none of a component that the tree lacks."""
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


def own_slots(st: LockRefState) -> Truth:
    """Two nodes with slots of one insert lie on one path to the root, so that no slot belongs to two nodes."""
    return st.nodes.all(
        lambda a: st.nodes.all(
            lambda b: implies(
                lives(st, a) & lives(st, b) & (st.source(a) == st.source(b)), over(st, a, b) | over(st, b, a)
            )
        )
    )

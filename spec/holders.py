"""What lock handles hold: how lock counts and sizes change with them, and the laws that count holders.

The lemmas of ``proofs.lemmas`` relate a count over handles or a sum over nodes to what a transition changes. They need
that each law has one count or one sum.
"""

from __future__ import annotations

from collections.abc import Callable

from spec.lock_ref_state import (
    COUNTED,
    HELD,
    ROOT,
    SKIPPED,
    LockRefState,
    begin,
    between,
    holds_full,
    holds_mamba,
    holds_swa,
    lives,
    over,
    path,
    span,
)
from spec.logic import Domain, Map, Number, Set, Truth, but, implies, ite, no


def on_path(st: LockRefState, node: Number) -> Set:
    """The nodes from ``node`` to the root."""
    return st.nodes.such(lambda n: over(st, n, node), lambda: path(st, node))


def in_window(st: LockRefState, handle: Number) -> Set:
    """The nodes whose SWA part the handle holds: those of its window that it does not skip."""
    node, top = st.node(handle), st.top(handle)
    return st.nodes.such(lambda n: between(st, top, n, node) & (st.grip(handle, n) != SKIPPED), lambda: path(st, node))


def of_state(st: LockRefState, handle: Number) -> Set:
    """The node whose mamba state the handle holds: its own node, or none."""
    node = st.node(handle)
    return st.nodes.such(lambda n: (n == node) & (st.state(handle) != SKIPPED), lambda: [node])


def shifted(
    held: Set, nodes: Domain, ref: Map, by: int, there: Callable[[Number], Truth], weight: Callable[[Number], Number]
) -> tuple[Map, Number]:
    """The lock counts after ``by`` was added on the nodes ``held``, and the weight of the nodes that change size.

    A node changes between the evictable and the protected size where its count leaves 0 or comes back to 0, if it has
    the part (``there``).
    """
    edge = ite(by > 0, 0, 1)
    moved = nodes.such(lambda n: held.has(n) & there(n) & (ref(n) == edge), held.items)
    return ref.where(held.has, lambda n: ref(n) + by, held.items), moved.total(weight)


def shift(st: LockRefState, held_full: Set, held_swa: Set, held_mamba: Set, by: int) -> LockRefState:
    """The tree after ``by`` was added to each lock count of what a handle holds; the sizes change with the counts."""

    def tokens(n: Number) -> Number:
        return span(st, n)

    full_ref, full = shifted(held_full, st.nodes, st.full_ref, by, lambda _: True, tokens)
    swa_ref, swa = shifted(held_swa, st.nodes, st.swa_ref, by, lambda n: st.swa(n) == 1, tokens)
    mamba_ref, mamba = shifted(held_mamba, st.nodes, st.mamba_ref, by, lambda n: st.mamba(n) == 1, lambda _: 1)
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


# The laws.


def handles_stand(st: LockRefState) -> Truth:
    """An active handle names a node of the tree, and the top of its window is this node or an ancestor in the tree.

    If it holds a mamba state, its node has one; if it counts a missing state, its node has none. So nothing that a
    handle holds is evicted.
    """
    return st.handles.all(
        lambda h: implies(
            st.active(h) == 1,
            lives(st, st.node(h))
            & implies(st.top(h) != ROOT, lives(st, st.top(h)) & over(st, st.top(h), st.node(h)))
            & as_there(st.state(h), st.mamba(st.node(h)) == 1),
        )
    )


def as_there(grip: Number, there: Truth) -> Truth:
    """A handle that holds a part holds one that is there; a handle that counts a part counts one that is missing."""
    return (grip >= SKIPPED) & (grip <= COUNTED) & implies(grip == HELD, there) & implies(grip == COUNTED, no(there))


def window_is_filled(st: LockRefState) -> Truth:
    """The window of a handle has a whole window of tokens, or reaches up to the root."""

    def filled(h: Number) -> Truth:
        return (st.stop(st.node(h)) - begin(st, st.top(h)) >= st.window) | (st.parent(st.top(h)) == ROOT)

    return st.handles.all(lambda h: implies((st.active(h) == 1) & (st.top(h) != ROOT), filled(h)))


def held_is_no_tombstone(st: LockRefState) -> Truth:
    """A node whose SWA part is held by a handle is no tombstone: a held SWA part is never evicted.

    A handle that counts a tombstone holds its SWA part from the moment when the tombstone comes to life.
    """

    def kept(h: Number, n: Number) -> Truth:
        return implies(holds_swa(st, h, n), as_there(st.grip(h, n), st.swa(n) == 1))

    return st.handles.all(lambda h: st.nodes.all(lambda n: kept(h, n)))


def full_pairs(st: LockRefState, n: Number) -> Truth:
    """The full lock count of a node is the number of handles that hold its full part."""
    return implies(lives(st, n), st.full_ref(n) == st.handles.count(lambda h: holds_full(st, h, n)))


def swa_pairs(st: LockRefState, n: Number) -> Truth:
    """The SWA lock count of a node is the number of handles that hold its SWA part. Where the node has none, it is the
    number of handles that were counted there when they locked.
    """
    return implies(lives(st, n), st.swa_ref(n) == st.handles.count(lambda h: holds_swa(st, h, n)))


def mamba_pairs(st: LockRefState, n: Number) -> Truth:
    """The mamba lock count of a node is the number of handles that hold its state. Where the node has none, it is the
    number of handles that were counted there when they locked.
    """
    return implies(lives(st, n), st.mamba_ref(n) == st.handles.count(lambda h: holds_mamba(st, h, n)))


def held_is_counted(st: LockRefState, n: Number) -> Truth:
    """Each component of a node that is held by a handle has a positive lock count."""
    held = st.handles.all(
        lambda h: (
            implies(holds_full(st, h, n), st.full_ref(n) > 0)
            & implies(holds_swa(st, h, n), st.swa_ref(n) > 0)
            & implies(holds_mamba(st, h, n), st.mamba_ref(n) > 0)
        )
    )
    return implies(lives(st, n), held)


def counted_is_held(st: LockRefState, n: Number) -> Truth:
    """A component of a node with a positive lock count is held by a handle, or counted by one where it is missing."""
    return implies(
        lives(st, n),
        implies(st.full_ref(n) > 0, st.handles.any(lambda h: holds_full(st, h, n)))
        & implies(st.swa_ref(n) > 0, st.handles.any(lambda h: holds_swa(st, h, n)))
        & implies(st.mamba_ref(n) > 0, st.handles.any(lambda h: holds_mamba(st, h, n))),
    )


def counts_are_counts(st: LockRefState, n: Number) -> Truth:
    """No lock count is negative."""
    return implies(lives(st, n), (st.full_ref(n) >= 0) & (st.swa_ref(n) >= 0) & (st.mamba_ref(n) >= 0))


def readers_keep_slots(st: LockRefState) -> Truth:
    """While a handle holds a node, the node keeps the slots that the handle found there: no reader loses its slots."""

    def kept(h: Number, n: Number) -> Truth:
        return implies(holds_full(st, h, n), st.reads(h, n) == st.source(n))

    return st.handles.all(lambda h: st.nodes.all(lambda n: kept(h, n)))


def full_evictable_is_sum(st: LockRefState) -> Truth:
    """The full evictable size is the number of tokens of the nodes whose full part no handle holds."""
    return st.full_evictable == st.nodes.total(lambda n: lives(st, n) & (st.full_ref(n) == 0), lambda n: span(st, n))


def full_protected_is_sum(st: LockRefState) -> Truth:
    """The full protected size is the number of tokens of the nodes whose full part a handle holds."""
    return st.full_protected == st.nodes.total(lambda n: lives(st, n) & (st.full_ref(n) > 0), lambda n: span(st, n))


def swa_evictable_is_sum(st: LockRefState) -> Truth:
    """The SWA evictable size is the number of tokens of the nodes whose SWA part no handle holds."""
    return st.swa_evictable == st.nodes.total(
        lambda n: lives(st, n) & (st.swa(n) == 1) & (st.swa_ref(n) == 0), lambda n: span(st, n)
    )


def swa_protected_is_sum(st: LockRefState) -> Truth:
    """The SWA protected size is the number of tokens of the nodes whose SWA part a handle holds."""
    return st.swa_protected == st.nodes.total(
        lambda n: lives(st, n) & (st.swa(n) == 1) & (st.swa_ref(n) > 0), lambda n: span(st, n)
    )


def mamba_evictable_is_sum(st: LockRefState) -> Truth:
    """The mamba evictable size is the number of mamba states of nodes that no handle holds."""
    return st.mamba_evictable == st.nodes.total(
        lambda n: lives(st, n) & (st.mamba(n) == 1) & (st.mamba_ref(n) == 0), lambda _: 1
    )


def mamba_protected_is_sum(st: LockRefState) -> Truth:
    """The mamba protected size is the number of mamba states of nodes that a handle holds."""
    return st.mamba_protected == st.nodes.total(
        lambda n: lives(st, n) & (st.mamba(n) == 1) & (st.mamba_ref(n) > 0), lambda _: 1
    )


SUMS = (
    full_evictable_is_sum,
    full_protected_is_sum,
    swa_evictable_is_sum,
    swa_protected_is_sum,
    mamba_evictable_is_sum,
    mamba_protected_is_sum,
)


# The laws of two states.


def handle_keeps_its_node(was: LockRefState, now: LockRefState) -> Truth:
    """A lock handle that is active before and after a call is on one node: no call moves the lock of another one."""
    return was.handles.all(lambda h: implies((was.active(h) == 1) & (now.active(h) == 1), was.node(h) == now.node(h)))

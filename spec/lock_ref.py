"""Locks in the radix tree: lock handles hold the components of nodes on a path, in a tree of any shape.

``spec.lock_ref_state`` has the state, ``spec.holders`` the laws of lock counts and sizes. An insert is a sequence of
these transitions: ``split`` of the node in which the match ends, ``restore`` or ``restore_swa`` of tombstones on the
path, ``add_leaf`` for the rest.
"""

from __future__ import annotations

from spec import holders, lock_effects, lock_ref_state
from spec.holders import in_window, of_state, on_path, shift
from spec.lock_ref_state import (
    COUNTED,
    HELD,
    ROOT,
    SKIPPED,
    LockRefState,
    begin,
    end,
    holds_swa,
    initial,
    live_top,
    lives,
    nodes_of,
    over,
    path,
    span,
    start,
    window_top,
)
from spec.logic import Number, Requirement, Set, Stem, Step, Truth, but, implies, ite, no, requires

stem = Stem("lock_ref", state=LockRefState, start=start)


# The transitions.


@stem.transition
def acquire(st: LockRefState, handle: Number, node: Number, top: Number, counting: Truth) -> Step[LockRefState]:
    """A new handle locks a node: the full part up to the root, the SWA parts of its window, and the node's state.

    Where an SWA part or the state is missing, the engine skips it, or counts it (``counting``). A skipped part never
    belongs to the handle; a counted part belongs to it from the moment when it comes to life. The tokens of tombstones
    fill the window or not, as the engine likes.
    """
    missing = ite(counting, COUNTED, SKIPPED)
    locked = but(
        st,
        active=st.active.put(handle, 1),
        node=st.node.put(handle, node),
        top=st.top.put(handle, top),
        state=st.state.put(handle, ite(st.stateful, ite(st.mamba(node) == 1, HELD, missing), SKIPPED)),
        grip=st.grip.where(
            lambda h, n: (h == handle) & over(st, n, node),
            lambda _, n: ite(st.swa(n) == 1, HELD, missing),
            lambda: [(handle, n) for n in path(st, node)],
        ),
        reads=st.reads.where(
            lambda h, n: (h == handle) & over(st, n, node),
            lambda _, n: st.source(n),
            lambda: [(handle, n) for n in path(st, node)],
        ),
    )
    return Step(
        promises=(
            requires(st.handles.has(handle) & (st.active(handle) != 1), "the handle is new"),
            requires(lives(st, node), "the node is in the tree"),
            requires(implies(no(st.windowed), top == ROOT), "a lock in a tree without a window holds no SWA part"),
            requires(
                implies(st.windowed, window_top(st, top, node) | live_top(st, top, node)),
                "the SWA part ends at the first node where the window is full",
            ),
        ),
        then=shift(locked, on_path(st, node), in_window(locked, handle), of_state(locked, handle), 1),
    )


@stem.transition
def release(st: LockRefState, handle: Number) -> Step[LockRefState]:
    """A handle is released: it gives back exactly what it holds.

    This is so whatever was split, merged, evicted or restored since the handle was taken.
    """
    given = shift(st, on_path(st, st.node(handle)), in_window(st, handle), of_state(st, handle), -1)
    return Step(promises=(is_active(st, handle),), then=but(given, active=st.active.put(handle, 0)))


@stem.transition
def release_swa(st: LockRefState, handle: Number) -> Step[LockRefState]:
    """A handle gives back its SWA part early and keeps the rest; its release does not give this part back again."""
    nothing = no_node(st)
    return Step(
        promises=(is_active(st, handle), requires(st.top(handle) != ROOT, "the handle still holds its SWA part")),
        then=but(
            shift(st, nothing, in_window(st, handle), nothing, -1),
            top=st.top.put(handle, ROOT),
        ),
    )


@stem.transition
def release_state(st: LockRefState, handle: Number) -> Step[LockRefState]:
    """A handle gives back its mamba state early and keeps the rest; its release does not give the state back again."""
    nothing, own = no_node(st), of_state(st, handle)
    return Step(
        promises=(is_active(st, handle), requires(st.state(handle) != SKIPPED, "the handle still holds a mamba state")),
        then=but(shift(st, nothing, nothing, own, -1), state=st.state.put(handle, SKIPPED)),
    )


def no_node(st: LockRefState) -> Set:
    """The empty set of nodes."""
    return st.nodes.such(lambda n: n != n, list)


def is_active(st: LockRefState, handle: Number) -> Requirement:
    """The handle was taken and not released yet."""
    return requires(st.handles.has(handle) & (st.active(handle) == 1), "the handle is active")


@stem.transition
def split(st: LockRefState, child: Number, new: Number, at: Number) -> Step[LockRefState]:
    """A node is cut at ``at`` tokens: a new parent gets the upper part of its key, and its full and SWA lock counts.

    The child keeps its mamba state. A handle whose window ended at the child ends at the new parent. A handle that
    holds, skips or counts the SWA part of the child does so for both halves.
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
        grip=st.grip.where(
            lambda h, n: st.handles.has(h) & (n == new),
            lambda h, _: st.grip(h, child),
            lambda: [(h, new) for h in st.handles.items()],
        ),
        reads=st.reads.where(
            lambda h, n: st.handles.has(h) & (n == new),
            lambda h, _: st.reads(h, child),
            lambda: [(h, new) for h in st.handles.items()],
        ),
        top=st.top.where(
            lambda h: st.handles.has(h) & (st.active(h) == 1) & (st.top(h) == child), new, st.handles.items
        ),
    )
    return Step(
        promises=(
            requires(lives(st, child), "the node is in the tree"),
            requires(st.nodes.has(new) & (st.alive(new) != 1), "the new node is not in the tree"),
            requires((begin(st, child) < at) & (at < st.stop(child)), "the cut is inside the node's key"),
        ),
        then=cut,
    )


@stem.transition
def merge(st: LockRefState, node: Number, above: Number) -> Step[LockRefState]:
    """A node takes in its parent ``above``, of which it is the only child: the two become one node.

    Every handle holds both exactly alike, so that each still holds what it held before. The parent has no state, since
    a state belongs to the end of a key. The slots of both count as slots of the node's insert from now on.
    """

    def alike(h: Number) -> Truth:
        same = holds_swa(st, h, above) == holds_swa(st, h, node)
        return implies(st.active(h) == 1, (st.node(h) != above) & same)

    def of_parent() -> list[tuple[int, int]]:
        return [(a, above) for a in st.nodes.items()] + [(above, n) for n in st.nodes.items()]

    return Step(
        promises=(
            requires(lives(st, node) & lives(st, above), "the node and its parent are in the tree"),
            requires(st.parent(node) == above, "the parent is the node's parent"),
            requires(
                st.nodes.all(lambda n: implies(over(st, above, n) & (n != above), over(st, node, n))),
                "the node is the only child of its parent",
            ),
            requires(st.swa(above) == st.swa(node), "both nodes are tombstones, or none is"),
            requires(st.mamba(above) == 0, "the parent has no state"),
            requires(st.handles.all(alike), "every handle holds both nodes alike"),
        ),
        then=but(
            st,
            alive=st.alive.put(above, 0),
            parent=st.parent.put(node, st.parent(above)),
            above=st.above.where(lambda a, n: (a == above) | (n == above), 0, of_parent),
            swa=st.swa.put(above, 0),
            top=st.top.where(
                lambda h: st.handles.has(h) & (st.active(h) == 1) & (st.top(h) == above), node, st.handles.items
            ),
        ),
    )


@stem.transition
def add_leaf(
    st: LockRefState, under: Number, leaf: Number, stop: Number, source: Number, with_swa: Truth, with_mamba: Truth
) -> Step[LockRefState]:
    """A new leaf takes over the slots of an insert from where its parent ends; without SWA slots it is a tombstone."""
    swa, mamba = ite(with_swa & st.windowed, 1, 0), ite(with_mamba & st.stateful, 1, 0)
    first = end(st, under)
    size = stop - first
    return Step(
        promises=(
            requires((under == ROOT) | lives(st, under), "the parent is in the tree"),
            requires(st.nodes.has(leaf) & (st.alive(leaf) != 1), "the leaf is not in the tree"),
            requires(first < stop, "the leaf's key has at least one token"),
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


def only_above(st: LockRefState, source: Number, n: Number) -> Requirement:
    """Every other node with slots of this insert is an ancestor of ``n``: an insert follows one path."""
    return requires(
        st.nodes.all(lambda m: implies(lives(st, m) & (st.source(m) == source), (n != ROOT) & over(st, m, n))),
        "all other slots of the insert belong to ancestors",
    )


@stem.transition
def restore(st: LockRefState, node: Number, source: Number) -> Step[LockRefState]:
    """A tombstone that no handle holds takes over full and SWA slots of an insert; its old full slots are freed."""
    return Step(
        promises=(
            requires(lives(st, node) & st.windowed, "the node is in a tree with a window"),
            requires(st.swa(node) == 0, "the node is a tombstone"),
            requires(st.full_ref(node) == 0, "nobody holds the node whose full slots are replaced"),
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
def restore_swa(st: LockRefState, node: Number) -> Step[LockRefState]:
    """A tombstone takes over SWA slots of an insert and keeps its own full slots, which handles may hold and read.

    Handles that count the tombstone hold its SWA part from now on. Handles that skip it hold nothing of it.
    """
    held, size = st.swa_ref(node) > 0, span(st, node)
    return Step(
        promises=(
            requires(lives(st, node) & st.windowed, "the node is in a tree with a window"),
            requires(st.swa(node) == 0, "the node is a tombstone"),
        ),
        then=but(
            st,
            swa=st.swa.put(node, 1),
            grip=st.grip.where(
                lambda h, n: st.handles.has(h) & (n == node) & (st.grip(h, n) == COUNTED),
                HELD,
                lambda: [(h, node) for h in st.handles.items()],
            ),
            swa_evictable=st.swa_evictable + ite(held, 0, size),
            swa_protected=st.swa_protected + ite(held, size, 0),
        ),
    )


@stem.transition
def set_mamba(st: LockRefState, node: Number) -> Step[LockRefState]:
    """A node without a mamba state takes over a state; handles that count the missing state hold it from now on."""
    held = st.mamba_ref(node) > 0
    return Step(
        promises=(
            requires(lives(st, node) & st.stateful, "the node is in a tree with mamba states"),
            requires(st.mamba(node) == 0, "the node has no state yet"),
        ),
        then=but(
            st,
            mamba=st.mamba.put(node, 1),
            state=st.state.where(
                lambda h: st.handles.has(h) & (st.active(h) == 1) & (st.node(h) == node) & (st.state(h) == COUNTED),
                HELD,
                st.handles.items,
            ),
            mamba_evictable=st.mamba_evictable + ite(held, 0, 1),
            mamba_protected=st.mamba_protected + ite(held, 1, 0),
        ),
    )


@stem.transition
def evict_leaf(st: LockRefState, node: Number) -> Step[LockRefState]:
    """A leaf that no handle holds is evicted with all its slots."""
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
def evict_swa(st: LockRefState, node: Number) -> Step[LockRefState]:
    """A node whose SWA part no handle holds becomes a tombstone; its full part stays."""
    return Step(
        promises=(
            requires(lives(st, node) & (st.swa(node) == 1), "the node has an SWA part"),
            requires(st.swa_ref(node) == 0, "nobody holds the node's SWA part"),
        ),
        then=but(st, swa=st.swa.put(node, 0), swa_evictable=st.swa_evictable - span(st, node)),
    )


@stem.transition
def evict_mamba(st: LockRefState, node: Number) -> Step[LockRefState]:
    """A node whose mamba state no handle holds loses its state."""
    return Step(
        promises=(
            requires(lives(st, node) & (st.mamba(node) == 1), "the node has a state"),
            requires(st.mamba_ref(node) == 0, "nobody holds the node's state"),
        ),
        then=but(st, mamba=st.mamba.put(node, 0), mamba_evictable=st.mamba_evictable - 1),
    )


# The laws, in the order in which their proofs may use one another.

stem.invariant()(lock_ref_state.above_is_an_order)
stem.each(nodes_of)(lock_ref_state.above_goes_on)
stem.each(nodes_of)(lock_ref_state.paths_do_not_fork)
stem.invariant()(lock_ref_state.parent_is_next)
stem.invariant()(lock_ref_state.keys_follow)
stem.invariant()(lock_ref_state.values_are_flags)
stem.invariant()(holders.handles_stand)
stem.invariant()(holders.window_is_filled)
stem.invariant()(holders.held_is_no_tombstone)
for _pairs in (holders.full_pairs, holders.swa_pairs, holders.mamba_pairs):
    stem.each(nodes_of, counts=True)(_pairs)
for _follows in (holders.held_is_counted, holders.counted_is_held, holders.counts_are_counts):
    stem.each(nodes_of, uses=("full_pairs", "swa_pairs", "mamba_pairs"))(_follows)
stem.invariant()(holders.readers_keep_slots)
for _sum in holders.SUMS:
    stem.invariant()(_sum)
stem.invariant()(lock_ref_state.own_slots)
stem.change()(holders.handle_keeps_its_node)

# What calls do.

stem.change(only=("acquire",))(lock_effects.locks_as_asked)
stem.change(only=("acquire",))(lock_effects.holds_one_window_alone)
stem.change(only=("release_swa",))(lock_effects.gives_its_window_back)
stem.change(only=("release_state",))(lock_effects.gives_its_state_back)
stem.change(only=("add_leaf",))(lock_effects.grows_as_asked)
stem.change(only=("restore",))(lock_effects.takes_the_slots)

# Progress: what can be evicted, and that evictions come to an end.

EVICTIONS = ("evict_leaf", "evict_swa", "evict_mamba")


@stem.theorem(about=())
def a_leaf_can_be_evicted(st: LockRefState) -> Truth:
    """While the full evictable size is not zero, a leaf can be evicted: the deepest node that no handle holds."""
    deepest = st.nodes.greatest(lambda n: lives(st, n) & (st.full_ref(n) == 0), st.stop)
    return implies(st.full_evictable != 0, evict_leaf(st, deepest).kept)


@stem.theorem(about=())
def an_swa_part_can_be_evicted(st: LockRefState) -> Truth:
    """While the SWA evictable size is not zero, the SWA part of a node can be evicted."""
    return implies(st.swa_evictable != 0, st.nodes.any(lambda n: evict_swa(st, n).kept))


@stem.theorem(about=())
def a_state_can_be_evicted(st: LockRefState) -> Truth:
    """While the mamba evictable size is not zero, the mamba state of a node can be evicted."""
    return implies(st.mamba_evictable != 0, st.nodes.any(lambda n: evict_mamba(st, n).kept))


@stem.change(only=EVICTIONS)
def evictions_end(was: LockRefState, now: LockRefState) -> Truth:
    """Each eviction makes the size of what can be evicted smaller, so finitely many evictions evict all of it."""
    return evictable(now) < evictable(was)


def evictable(st: LockRefState) -> Number:
    """The full, SWA and mamba evictable sizes together."""
    return st.full_evictable + st.swa_evictable + st.mamba_evictable


__all__ = ["LockRefState", "initial", "stem"]

"""What calls do to the tree and its locks: laws of two states of ``spec.lock_ref``.

``was`` is the state before a granted call, ``now`` the state after it.
"""

from __future__ import annotations

from spec.lock_ref_state import COUNTED, HELD, ROOT, SKIPPED, LockRefState, between, lives, over, path, span
from spec.logic import Number, Truth, every, implies, ite


def locks_as_asked(
    was: LockRefState, now: LockRefState, handle: Number, node: Number, top: Number, counting: Truth
) -> Truth:
    """The handle, which was not active, is active on this node, and its window ends at ``top``.

    It holds each part of its path that is there. A part that is missing it counts, or skips, as the engine chose.
    """
    missing = ite(counting, COUNTED, SKIPPED)
    state = ite(was.stateful, ite(was.mamba(node) == 1, HELD, missing), SKIPPED)

    def held(n: Number) -> Truth:
        return implies(over(was, n, node), now.grip(handle, n) == ite(was.swa(n) == 1, HELD, missing))

    new = (was.active(handle) != 1) & (now.active(handle) == 1)
    stands = (now.node(handle) == node) & (now.top(handle) == top) & (now.state(handle) == state)
    return new & stands & was.nodes.all(held)


def holds_one_window_alone(was: LockRefState, now: LockRefState, handle: Number, node: Number, top: Number) -> Truth:
    """No part of the window of a lock lies above the one at which the window is full, so that it can be evicted.

    The parts below the uppermost one have fewer tokens than a window; the tokens of tombstones count, or they do not.
    """

    def is_live(n: Number) -> Truth:
        return between(was, top, n, node) & (was.swa(n) == 1) & (n != top)

    def tokens(n: Number) -> Number:
        return span(was, n)

    live = was.nodes.such(is_live, lambda: path(was, node)).total(tokens)
    return implies(now.top(handle) != ROOT, (was.stop(node) - was.stop(top) < was.window) | (live < was.window))


def gives_its_window_back(was: LockRefState, now: LockRefState, handle: Number) -> Truth:
    """The handle, which still held its SWA part, holds it no more, and stays active."""
    return (was.top(handle) != ROOT) & (now.top(handle) == ROOT) & (now.active(handle) == 1)


def gives_its_state_back(was: LockRefState, now: LockRefState, handle: Number) -> Truth:
    """The handle, which still held or counted a mamba state, holds none, and stays active."""
    return (was.state(handle) != SKIPPED) & (now.state(handle) == SKIPPED) & (now.active(handle) == 1)


def grows_as_asked(
    was: LockRefState,
    now: LockRefState,
    under: Number,
    leaf: Number,
    stop: Number,
    source: Number,
    with_swa: Truth,
    with_mamba: Truth,
) -> Truth:
    """The leaf hangs under its parent, and its key ends at ``stop``; it has the slots of this insert.

    It has an SWA part and a mamba state where they are given and the tree has such parts. No other node comes or goes.
    """
    others = was.nodes.all(lambda n: implies(n != leaf, lives(was, n) == lives(now, n)))
    return every(
        (
            lives(now, leaf),
            now.parent(leaf) == under,
            now.stop(leaf) == stop,
            now.source(leaf) == source,
            (now.swa(leaf) == 1) == (with_swa & was.windowed),
            (now.mamba(leaf) == 1) == (with_mamba & was.stateful),
            others,
        )
    )


def takes_the_slots(was: LockRefState, now: LockRefState, node: Number, source: Number) -> Truth:
    """The node, whose full part nobody held, has the slots of this insert."""
    return (was.full_ref(node) == 0) & (now.source(node) == source)

"""Scenes of locks in the radix tree: windows with holes, nodes that change under a lock, and parts that come and go."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.search.scenes.scene import Scenes
from spec.lock_ref_state import COUNTED, HELD, ROOT, SKIPPED, LockRefState, between, over, path
from spec.logic import Truth

scenes = Scenes("lock_ref")


def window(st: LockRefState, handle: int) -> list[int]:
    """The nodes of the window of a handle, from its node upward."""
    node, top = st.node(handle), st.top(handle)
    return [n for n in path(st, node) if between(st, top, n, node)]


def handles(st: LockRefState) -> Iterator[int]:
    """The handles that are taken."""
    return (h for h in st.handles.items() if st.active(h) == 1)


def handles_on(st: LockRefState, node: int) -> list[int]:
    """The handles whose path has the node."""
    return [h for h in handles(st) if over(st, node, st.node(h))]


def grip_in(st: LockRefState, node: int, grip: int) -> Truth:
    """Some handle has the node in its window, and holds, skips or counts its SWA part."""
    return any(node in window(st, h) and st.grip(h, node) == grip for h in handles(st))


@scenes.at("acquire")
def tombstone_between(_: LockRefState, now: LockRefState, handle: int) -> Truth:
    """A lock is taken whose window has a tombstone between two nodes with an SWA part."""
    parts = [now.swa(n) for n in window(now, handle)]
    return 0 in parts and 1 in parts[: parts.index(0)] and 1 in parts[parts.index(0) :]


@scenes.at("acquire")
def held_and_skipped(was: LockRefState, now: LockRefState, handle: int) -> Truth:
    """A lock is taken of whose window another lock already skips or counts a node that has an SWA part by now."""
    return any(grip_in(was, n, SKIPPED) or grip_in(was, n, COUNTED) for n in window(now, handle) if now.swa(n) == 1)


@scenes.at("acquire")
def windows_differ(was: LockRefState, now: LockRefState, handle: int) -> Truth:
    """A lock is taken beside another one on the node or above it, whose window ends at another node."""
    others = (h for h in handles(was) if over(now, was.node(h), now.node(handle)) and was.top(h) != ROOT)
    return any(was.top(h) != now.top(handle) for h in others)


@scenes.at("acquire")
def state_is_missing(_: LockRefState, now: LockRefState, node: int) -> Truth:
    """A lock is taken on a node without a mamba state, in a tree with states."""
    return now.stateful and now.mamba(node) == 0


@scenes.at("release")
def released_beside_another(was: LockRefState, _: LockRefState, handle: int) -> Truth:
    """A lock is released while another one holds the SWA part of a node of its window."""
    others = [h for h in handles(was) if h != handle]
    held = [n for n in window(was, handle) if was.grip(handle, n) == HELD]
    return any(n in window(was, h) and was.grip(h, n) == HELD for n in held for h in others)


@scenes.at("release")
def released_after_early(was: LockRefState, _: LockRefState, handle: int) -> Truth:
    """A lock is released that has given back its SWA part early."""
    return was.windowed and was.top(handle) == ROOT


@scenes.at("restore_swa")
def revived_under_skip(was: LockRefState, _: LockRefState, node: int) -> Truth:
    """A tombstone comes to life that a lock has skipped in its window."""
    return grip_in(was, node, SKIPPED)


@scenes.at("restore_swa")
def revived_under_count(was: LockRefState, _: LockRefState, node: int) -> Truth:
    """A tombstone comes to life that a lock has counted in its window."""
    return grip_in(was, node, COUNTED)


@scenes.at("restore_swa", "restore")
def revived_above_a_tombstone(was: LockRefState, _: LockRefState, node: int) -> Truth:
    """A tombstone comes to life, and a node below it stays one."""
    return any(was.alive(n) == 1 and n != node and over(was, node, n) and was.swa(n) == 0 for n in was.nodes.items())


@scenes.at("merge")
def merged_under_a_lock(was: LockRefState, _: LockRefState, node: int, above: int) -> Truth:
    """A node takes in its parent while a lock holds both."""
    return {*handles_on(was, node)} & {*handles_on(was, above)}


@scenes.at("split")
def skipped_node_is_split(was: LockRefState, _: LockRefState, child: int) -> Truth:
    """A tombstone is split that a lock has skipped in its window."""
    return grip_in(was, child, SKIPPED)


@scenes.at("split")
def counted_node_is_split(was: LockRefState, _: LockRefState, child: int) -> Truth:
    """A tombstone is split that a lock has counted in its window."""
    return grip_in(was, child, COUNTED)


@scenes.at("split")
def end_of_a_window_is_split(was: LockRefState, _: LockRefState, child: int) -> Truth:
    """The node is split at which the window of a lock ends."""
    return any(was.top(h) == child for h in handles(was))


@scenes.at("split")
def split_behind_the_window(was: LockRefState, _: LockRefState, child: int) -> Truth:
    """A node with an SWA part is split that is on the path of a lock and behind its window."""
    return was.swa(child) == 1 and any(
        child not in window(was, h) for h in handles_on(was, child) if was.top(h) != ROOT
    )


@scenes.at("split")
def locked_state_is_split_off(was: LockRefState, _: LockRefState, child: int) -> Truth:
    """A node is split whose mamba state a lock holds."""
    return any(was.node(h) == child and was.state(h) == HELD for h in handles(was))


@scenes.at("evict_swa")
def tombstone_on_a_locked_path(was: LockRefState, _: LockRefState, node: int) -> Truth:
    """A node becomes a tombstone that is on the path of a lock, behind its window."""
    return any(was.top(h) != ROOT for h in handles_on(was, node))


@scenes.at("evict_swa")
def tombstone_after_early_release(was: LockRefState, _: LockRefState, node: int) -> Truth:
    """A node becomes a tombstone on the path of a lock that has given back its SWA part early."""
    return any(was.top(h) == ROOT for h in handles_on(was, node))


@scenes.at("evict_swa")
def inner_tombstone(was: LockRefState, _: LockRefState, node: int) -> Truth:
    """A node becomes a tombstone, and a node below it keeps its SWA part."""
    return any(was.alive(n) == 1 and n != node and over(was, node, n) and was.swa(n) == 1 for n in was.nodes.items())


@scenes.at("evict_mamba")
def state_leaves_a_locked_path(was: LockRefState, _: LockRefState, node: int) -> Truth:
    """A node loses its mamba state while a lock holds its full part."""
    return handles_on(was, node)


@scenes.at("set_mamba")
def state_comes_under_a_lock(was: LockRefState, _: LockRefState, node: int) -> Truth:
    """A node gets a mamba state while a lock on it has found none."""
    return any(was.node(h) == node and was.state(h) != HELD for h in handles(was))


@scenes.at("evict_leaf")
def leaf_beside_a_locked_path(was: LockRefState, _: LockRefState, node: int) -> Truth:
    """A leaf is evicted whose parent a lock holds."""
    return was.parent(node) != ROOT and bool(handles_on(was, was.parent(node)))

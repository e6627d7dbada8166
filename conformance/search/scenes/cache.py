"""Scenes of the whole cache: requests that end under a pass in flight, and evictions beside those who read."""

from __future__ import annotations

from conformance.search.scenes.lock_ref import handles_on
from conformance.search.scenes.scene import Scenes
from spec.cache_state import CacheState
from spec.in_flight import flying
from spec.logic import Truth
from spec.session_trim_state import SAVED

scenes = Scenes("cache")


def passes_of(st: CacheState, row: int) -> int:
    """How many passes of a row are in flight."""
    return sum(st.flight.row(job) == row for job in flying(st.flight).items())


def slots_in_flight(st: CacheState) -> set[int]:
    """The state slots that passes in flight use."""
    jobs = [*flying(st.flight).items()]
    return {s for s in st.states.slots.items() for job in jobs if st.flight.uses(job, s) == 1}


def is_on_a_saved_path(st: CacheState, node: int) -> Truth:
    """The saved row of a session holds a path that has the node."""
    held = {*handles_on(st.tree, node)}
    return any(st.rows.phase(r) == SAVED and st.handle(r) in held for r in range(st.rows.limit))


@scenes.at("finish")
def ended_under_its_pass(was: CacheState, _: CacheState, row: int) -> Truth:
    """A request ends while a pass of it is in flight."""
    return passes_of(was, row) > 0


@scenes.at("launch")
def two_passes_of_a_row(was: CacheState, _: CacheState, row: int) -> Truth:
    """A pass of a request is launched while the one before is in flight."""
    return passes_of(was, row) > 0


@scenes.at("state_evict", "evict_leaf_and_state")
def state_in_flight_is_freed(was: CacheState, now: CacheState) -> Truth:
    """The tree gives back a state slot that a pass in flight uses."""
    used = slots_in_flight(was)
    return any(
        was.states.owner(s) >= was.states.first_node and now.states.owner(s) != was.states.owner(s) for s in used
    )


@scenes.at("admit")
def slot_in_flight_is_handed_out(was: CacheState, now: CacheState) -> Truth:
    """A request is admitted into a state slot that a pass in flight of another one uses."""
    return any(was.states.owed(s) == 0 and now.states.owed(s) == 1 for s in slots_in_flight(was))


@scenes.at("admit")
def admitted_beside_a_saved_row(was: CacheState, now: CacheState, row: int) -> Truth:
    """A request is admitted on a prefix that the saved row of a session reads, too."""
    node = now.tree.node(now.handle(row)) if now.handle(row) else 0
    saved = [
        was.tree.node(was.handle(r)) for r in range(was.rows.limit) if was.rows.phase(r) == SAVED and was.handle(r)
    ]
    return node != 0 and node in saved


@scenes.at("evict_swa")
def tombstone_of_a_saved_row(was: CacheState, _: CacheState, node: int) -> Truth:
    """A node becomes a tombstone that is on the path which the saved row of a session holds."""
    return is_on_a_saved_path(was, node)


@scenes.at("revive_in_place", "revive_tombstone")
def revived_by_a_saved_text(was: CacheState, _: CacheState, node: int) -> Truth:
    """A tombstone comes to life while the saved row of a session has it on its path."""
    return is_on_a_saved_path(was, node)


@scenes.at("insert_leaf")
def inserted_under_a_tombstone(_: CacheState, now: CacheState, leaf: int) -> Truth:
    """A prompt goes into the tree below a tombstone."""
    return now.tree.parent(leaf) != 0 and now.tree.windowed and now.tree.swa(now.tree.parent(leaf)) == 0

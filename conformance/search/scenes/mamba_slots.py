"""Scenes of mamba states: track buffers at a boundary, groups that are not served, states that change hands."""

from __future__ import annotations

from conformance.search.scenes.scene import Scenes
from spec.logic import Truth
from spec.mamba_slots_state import FIRST, OWN, SECOND, MambaSlotsState, owns_nothing

scenes = Scenes("mamba_slots")


def both_tracks(st: MambaSlotsState, owner: int) -> Truth:
    """The owner has both slots of its track buffer."""
    return st.table(owner, FIRST) != 0 and st.table(owner, SECOND) != 0


@scenes.at("begin_group")
def group_is_not_served(was: MambaSlotsState, now: MambaSlotsState, need: int) -> Truth:
    """A group begins that needs more slots than are free: none is set aside."""
    return need > 0 and was.available == now.available


@scenes.at("begin_group")
def group_in_a_group(was: MambaSlotsState, _: MambaSlotsState) -> Truth:
    """A group begins in an open group."""
    return was.group > 0


@scenes.at("alloc")
def admitted_with_a_copy(was: MambaSlotsState, _: MambaSlotsState, request: int) -> Truth:
    """A request is admitted that has a copy of a state already, from its match."""
    return was.table(request, OWN) != 0


@scenes.at("save")
def saved_at_a_boundary(was: MambaSlotsState, _: MambaSlotsState, request: int) -> Truth:
    """A turn ends at a boundary: a lazy buffer has both slots."""
    return bool(was.lazy) and both_tracks(was, request)


@scenes.at("restore")
def restored_with_tracks(was: MambaSlotsState, _: MambaSlotsState, session: int) -> Truth:
    """A turn goes on with the tracked states of the last one."""
    return was.table(session, FIRST) != 0 or was.table(session, SECOND) != 0


@scenes.at("close")
def closed_with_tracks(was: MambaSlotsState, _: MambaSlotsState, session: int) -> Truth:
    """A session ends whose slot has tracked states."""
    return was.table(session, FIRST) != 0 or was.table(session, SECOND) != 0


@scenes.at("donate")
def donated_with_both_tracks(was: MambaSlotsState, _: MambaSlotsState, request: int) -> Truth:
    """A request that ends donates one of two tracked states."""
    return both_tracks(was, request)


@scenes.at("donate_and_replace")
def replaced_with_both_tracks(was: MambaSlotsState, _: MambaSlotsState, request: int) -> Truth:
    """A request that runs donates one of two tracked states."""
    return both_tracks(was, request)


@scenes.at("release")
def released_while_waiting(was: MambaSlotsState, _: MambaSlotsState, request: int) -> Truth:
    """A request is given up that has a copy of a state and was not admitted."""
    return was.table(request, OWN) != 0 and was.table(request, FIRST) == 0 and bool(was.buffered)


@scenes.at("alloc_second")
def last_slot_for_a_boundary(was: MambaSlotsState, _: MambaSlotsState) -> Truth:
    """At a boundary a lazy buffer gets the last free slot."""
    return was.available == 1


@scenes.at("evict")
def state_evicted_for_others(was: MambaSlotsState, _: MambaSlotsState) -> Truth:
    """A node loses its state while no slot is free."""
    return was.available == 0


@scenes.at("clear")
def cleared_with_sessions(was: MambaSlotsState, _: MambaSlotsState) -> Truth:
    """The pool starts anew while a session has states."""
    return any(not owns_nothing(was, o) for o in range(was.limit, was.first_node))

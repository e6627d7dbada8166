"""What calls do to mamba state slots: laws of two states of ``spec.mamba_slots``.

``was`` is the state before a granted call, ``now`` the state after it.
"""

from __future__ import annotations

from spec.logic import Number, Seq, Truth, implies, ite, no
from spec.mamba_slots_state import (
    ABSENT,
    FIRST,
    GROUPED,
    IDLE,
    OWN,
    RUNNING,
    SECOND,
    WAITING,
    MambaSlotsState,
    each_role,
    has_buffer,
    is_request,
    kept,
    other,
    owns_nothing,
)


def turns_to_the_other_track(was: MambaSlotsState, now: MambaSlotsState, request: Number) -> Truth:
    """The running request writes its other track next."""
    runs = is_request(was, request) & (was.phase(request) == RUNNING)
    return runs & (now.next(request) == other(was.next(request)))


def sets_aside_all_or_none(was: MambaSlotsState, now: MambaSlotsState, need: Number, chosen: Seq) -> Truth:
    """A group sets aside ``need`` free slots, or none if fewer are free: those that the implementation chose."""
    count = ite(need <= was.available, need, 0)
    mine = was.slots.all(lambda s: (now.place(s) == GROUPED) == ((was.place(s) == GROUPED) | chosen.has(s)))
    return (need >= 0) & (now.available == was.available - count) & (now.group == was.group + 1) & mine


def is_equipped_with(
    was: MambaSlotsState, now: MambaSlotsState, request: Number, own: Number, first: Number, second: Number
) -> Truth:
    """A request that is admitted runs, with the slots that it is handed in the roles that it lacks.

    A new track buffer is written from its first slot on.
    """

    def has(k: Number, slot: Number) -> Truth:
        return now.table(request, k) == ite(slot == ABSENT, was.table(request, k), slot)

    def lacks(k: Number, slot: Number) -> Truth:
        return implies(slot != ABSENT, was.table(request, k) == ABSENT)

    slots = has(OWN, own) & has(FIRST, first) & has(SECOND, second)
    lacked = lacks(OWN, own) & lacks(FIRST, first) & lacks(SECOND, second)
    fresh = implies(no(has_buffer(was, request)) & has_buffer(now, request), now.next(request) == 0)
    return slots & lacked & fresh & (now.phase(request) == RUNNING)


def donates_its_newest_state(was: MambaSlotsState, now: MambaSlotsState, request: Number, node: Number) -> Truth:
    """The node has the slot with the newest state that the running request can donate."""
    runs = is_request(was, request) & (was.phase(request) == RUNNING)
    return runs & (now.table(node, OWN) == was.table(request, kept(was, request)))


def comes_from_the_session(was: MambaSlotsState, now: MambaSlotsState, session: Number, request: Number) -> Truth:
    """The request waits with all slots of the session's slot, which had some, each in its role.

    It writes the track next that was next when the turn was saved.
    """
    moved = no(owns_nothing(was, session)) & each_role(lambda k: now.table(request, k) == was.table(session, k))
    return moved & (now.next(request) == was.next(session)) & (now.phase(request) == WAITING)


def waits_with_a_copy(was: MambaSlotsState, now: MambaSlotsState, request: Number, node: Number, slot: Number) -> Truth:
    """The request, which had no state, waits with the slot that it is handed; the node, which has a state, keeps it."""
    copied = (was.table(request, OWN) == ABSENT) & (now.table(request, OWN) == slot) & (now.phase(request) == WAITING)
    return copied & (was.table(node, OWN) != ABSENT) & (now.table(node, OWN) == was.table(node, OWN))


def goes_for_good(was: MambaSlotsState, now: MambaSlotsState, request: Number) -> Truth:
    """The request, which was there, is gone."""
    return is_request(was, request) & (was.phase(request) != IDLE) & (now.phase(request) == IDLE)

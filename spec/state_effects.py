"""What calls do to mamba state slots: laws of two states of ``spec.mamba_slots``.

``was`` is the state before a granted call, ``now`` the state after it.
"""

from __future__ import annotations

from spec.logic import Number, Seq, Truth, implies, ite, no
from spec.mamba_slots_state import (
    ABSENT,
    FIRST,
    FREE,
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
    """The request, which was there, is gone, and has no slot (SGLang ``HybridReqToTokenPool.free_mamba_cache``)."""
    gone = is_request(was, request) & (was.phase(request) != IDLE) & (now.phase(request) == IDLE)
    return gone & owns_nothing(now, request)


# What each call must achieve, and what it leaves alone. A law names what asks for it in SGLang.


def has_what_it_had(was: MambaSlotsState, now: MambaSlotsState, owner: Number) -> Truth:
    """The owner has its slots, each in its role; a request is in its phase and writes the track that was next."""
    slots = each_role(lambda k: now.table(owner, k) == was.table(owner, k))
    return slots & (now.phase(owner) == was.phase(owner)) & (now.next(owner) == was.next(owner))


def other_owners_keep(was: MambaSlotsState, now: MambaSlotsState, request: Number) -> Truth:
    """Every other request, session and tree node has the slots that it had."""
    return was.owners.all(lambda o: (o == request) | has_what_it_had(was, now, o))


def other_nodes_keep(was: MambaSlotsState, now: MambaSlotsState, node: Number) -> Truth:
    """A call for a tree node takes no slot from a request, a session or another node."""
    return was.owners.all(lambda o: (o == node) | has_what_it_had(was, now, o))


def third_owners_keep(was: MambaSlotsState, now: MambaSlotsState, request: Number, node: Number) -> Truth:
    """What passes between a request and a tree node takes no slot from anybody else."""
    return was.owners.all(lambda o: (o == request) | (o == node) | has_what_it_had(was, now, o))


def others_keep_in_a_turn(was: MambaSlotsState, now: MambaSlotsState, request: Number, session: Number) -> Truth:
    """What passes between a request and its session takes no slot from anybody else."""
    return was.owners.all(lambda o: (o == request) | (o == session) | has_what_it_had(was, now, o))


def others_keep_at_a_close(was: MambaSlotsState, now: MambaSlotsState, session: Number) -> Truth:
    """A session that ends takes no slot from anybody else."""
    return was.owners.all(lambda o: (o == session) | has_what_it_had(was, now, o))


def owners_keep(was: MambaSlotsState, now: MambaSlotsState) -> Truth:
    """A group that begins or ends takes no slot from a request, a session or a tree node."""
    return was.owners.all(lambda o: has_what_it_had(was, now, o))


def group_is_over(was: MambaSlotsState, now: MambaSlotsState) -> Truth:
    """One group fewer is open, and where none is, no slot is set aside any more."""
    none = was.slots.all(lambda s: now.place(s) != GROUPED)
    return (now.group == was.group - 1) & implies(now.group == 0, none)


def nobody_has_a_slot(was: MambaSlotsState, now: MambaSlotsState) -> Truth:
    """After a clear every slot is free, and no request is there (SGLang ``MambaSlotAllocator.clear``)."""
    free = was.owners.all(lambda o: owns_nothing(now, o) & (now.phase(o) == IDLE))
    return free & (now.group == 0) & was.slots.all(lambda s: now.place(s) == FREE)


def node_gets_the_slot(was: MambaSlotsState, now: MambaSlotsState, node: Number, slot: Number) -> Truth:
    """The tree node, which had no slot, has the slot that is handed out for a copy of a state."""
    return (was.table(node, OWN) == ABSENT) & (now.table(node, OWN) == slot) & (slot != ABSENT)


def node_gives_its_slot(was: MambaSlotsState, now: MambaSlotsState, node: Number) -> Truth:
    """The tree node, which had a state, has none, and its slot can be handed out again (SGLang
    ``UnifiedRadixCache.evict``).
    """
    slot = was.table(node, OWN)
    return (slot != ABSENT) & owns_nothing(now, node) & (now.place(slot) == FREE)


def request_gets_the_nodes_slot(was: MambaSlotsState, now: MambaSlotsState, request: Number, node: Number) -> Truth:
    """A request that donates a state while it runs has the node's old slot in the place of the donated one, and its
    other slots.
    """
    role = kept(was, request)
    had = each_role(lambda k: now.table(request, k) == ite(k == role, was.table(node, OWN), was.table(request, k)))
    return had & (now.phase(request) == RUNNING) & (now.next(request) == was.next(request))


def keeps_what_it_writes_next(was: MambaSlotsState, now: MambaSlotsState, request: Number) -> Truth:
    """A lazy buffer that gives a slot back keeps the slot that is written next; the request keeps its own state."""
    first, second = was.next(request) == 0, was.next(request) != 0
    here = now.table(request, FIRST) == ite(first, was.table(request, FIRST), ABSENT)
    there = now.table(request, SECOND) == ite(second, was.table(request, SECOND), ABSENT)
    return here & there & (now.table(request, OWN) == was.table(request, OWN))


def buffer_gets_the_slot(was: MambaSlotsState, now: MambaSlotsState, request: Number, slot: Number) -> Truth:
    """A lazy buffer that grows has the slot that is handed out beside the slots that it had."""
    had = each_role(
        lambda k: (
            (now.table(request, k) == was.table(request, k))
            | ((was.table(request, k) == ABSENT) & (now.table(request, k) == slot) & (k != OWN))
        )
    )
    return had & ((now.table(request, FIRST) == slot) | (now.table(request, SECOND) == slot))


def session_gets_every_slot(was: MambaSlotsState, now: MambaSlotsState, request: Number, session: Number) -> Truth:
    """A turn that is saved leaves all its slots to its session, each in its role, and the track that is written next;
    the request is gone (SGLang ``StreamingSession.try_cache_finished_req``).
    """
    moved = each_role(lambda k: now.table(session, k) == was.table(request, k))
    gone = owns_nothing(now, request) & (now.phase(request) == IDLE)
    return moved & gone & (now.next(session) == was.next(request)) & (now.available == was.available)


def session_has_no_slot(was: MambaSlotsState, now: MambaSlotsState, session: Number) -> Truth:
    """A session that ends gives back each of its slots, whatever its role, so that it can be handed out again (SGLang
    ``StreamingSession._free_slot_mamba``).
    """

    def is_free(k: Number) -> Truth:
        return implies(was.table(session, k) != ABSENT, now.place(was.table(session, k)) == FREE)

    return owns_nothing(now, session) & each_role(is_free)

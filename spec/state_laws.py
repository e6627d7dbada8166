"""The laws of mamba state slots and their owners; ``spec.mamba_slots_state`` explains the words."""

from __future__ import annotations

from spec.logic import Domain, Number, Truth, implies, ite, no
from spec.mamba_slots_state import (
    ABSENT,
    FIRST,
    FREE,
    GROUPED,
    HELD,
    IDLE,
    LEAVING,
    NOWHERE,
    OWN,
    RUNNING,
    SECOND,
    MambaSlotsState,
    each_role,
    has_buffer,
    is_held,
    is_node,
    is_request,
    leaving,
    owns_nothing,
)


def slots_of(st: MambaSlotsState) -> Domain:
    """The numbers of all state slots."""
    return st.slots


def places_are_known(st: MambaSlotsState) -> Truth:
    """Every slot is in exactly one place: free, set aside for the open group, or held by an owner."""
    return st.slots.all(lambda s: (st.place(s) >= FREE) & (st.place(s) <= HELD))


def request_phases(st: MambaSlotsState) -> Truth:
    """A request is gone, waiting, running or leaving."""
    return st.owners.all(lambda o: implies(is_request(st, o), (st.phase(o) >= IDLE) & (st.phase(o) <= LEAVING)))


def absent_is_no_slot(st: MambaSlotsState) -> Truth:
    """The number 0, which stands for an absent slot, is never freed, set aside or held as if it were a slot."""
    return st.place(ABSENT) == NOWHERE


def one_owner(st: MambaSlotsState) -> Truth:
    """A slot that an owner has is held by this owner alone, in this role alone."""

    def there(s: Number, o: Number, k: Number) -> Truth:
        return implies(s != ABSENT, is_held(st, s) & (st.owner(s) == o) & (st.role(s) == k))

    return st.owners.all(lambda o: each_role(lambda k: there(st.table(o, k), o, k)))


def no_leak(st: MambaSlotsState) -> Truth:
    """A slot that is held stands in the table of its owner: no slot is lost without being given back."""

    def there(s: Number) -> Truth:
        o, k = st.owner(s), st.role(s)
        known = ((k == OWN) | (k == FIRST) | (k == SECOND)) & st.owners.has(o)
        return known & each_role(lambda role: implies(k == role, st.table(o, role) == s))

    return st.slots.all(lambda s: implies(st.place(s) == HELD, there(s)))


def group_is_open(st: MambaSlotsState) -> Truth:
    """Slots are set aside for a group only while a group is open."""
    return (st.group >= 0) & implies(st.group == 0, st.slots.all(lambda s: st.place(s) != GROUPED))


def nodes_have_states_alone(st: MambaSlotsState) -> Truth:
    """A tree node has no track buffer: the only slot that it can have is its own state."""
    return st.owners.all(lambda o: implies(is_node(st, o), no(has_buffer(st, o))))


def buffer_is_whole(st: MambaSlotsState) -> Truth:
    """A track buffer has the slot that is written next, and, unless it is lazy, its other slot, too.

    This does not hold for a request that is leaving and has donated a slot.
    """

    def whole(o: Number) -> Truth:
        single = (st.next(o) == 0) & (st.table(o, SECOND) == ABSENT)
        both = (st.table(o, FIRST) != ABSENT) & (st.table(o, SECOND) != ABSENT)
        two = (st.next(o) >= 0) & (st.next(o) <= 1) & (st.table(o, FIRST + st.next(o)) != ABSENT) & (st.lazy | both)
        return st.buffered & ite(st.doubled, two, single)

    return st.owners.all(lambda o: implies(has_buffer(st, o) & no(leaving(st, o)), whole(o)))


def running_is_equipped(st: MambaSlotsState) -> Truth:
    """A running request has its own state slot, and a track buffer where requests have track buffers.

    So an allocation that is skipped for a request was not needed.
    """

    def equipped(o: Number) -> Truth:
        return (st.table(o, OWN) != ABSENT) & implies(st.buffered, has_buffer(st, o))

    return st.owners.all(lambda o: implies(is_request(st, o) & (st.phase(o) == RUNNING), equipped(o)))


def gone_owns_nothing(st: MambaSlotsState) -> Truth:
    """A request that is gone has no slot: every slot that it had was donated, saved or given back."""
    return st.owners.all(lambda o: implies(is_request(st, o) & (st.phase(o) == IDLE), owns_nothing(st, o)))


def names_what_it_owns(st: MambaSlotsState) -> Truth:
    """The record of a request that is there names exactly the slots that the request has.

    So no allocation is skipped, and no slot is freed, because of a name of a slot that has another owner.
    """

    def same(o: Number) -> Truth:
        return each_role(lambda k: st.names(o, k) == st.table(o, k))

    return st.owners.all(lambda o: implies(is_request(st, o) & (st.phase(o) != IDLE), same(o)))


def gone_names_nothing(st: MambaSlotsState) -> Truth:
    """The record of a request that is gone names no slot."""
    return st.owners.all(
        lambda o: implies(is_request(st, o) & (st.phase(o) == IDLE), each_role(lambda k: st.names(o, k) == ABSENT))
    )


def row_says_what_is_owned(st: MambaSlotsState) -> Truth:
    """While a request runs, the row that the kernels read has exactly the slots that the request has."""

    def same(o: Number) -> Truth:
        return each_role(lambda k: st.row(o, k) == st.table(o, k))

    return st.owners.all(lambda o: implies(is_request(st, o) & (st.phase(o) == RUNNING), same(o)))


def freed_exactly_once(st: MambaSlotsState) -> Truth:
    """Each slot that is handed out is given back exactly once before it is handed out again.

    What is given back is counted from the slots that a call names, also where nobody has them.
    """
    return st.slots.all(lambda s: st.owed(s) == ite(is_held(st, s), 1, 0))


def available_counts(st: MambaSlotsState) -> Truth:
    """The available size is exactly the number of free slots."""
    return st.available == st.slots.count(lambda s: st.place(s) == FREE)


def quiet_is_full(st: MambaSlotsState, s: Number) -> Truth:
    """With no slot owned by a request, a session or the tree, and no open group, every slot is free and available."""
    quiet = (st.group == 0) & st.owners.all(lambda o: owns_nothing(st, o))
    return implies(quiet, (st.place(s) == FREE) & (st.available == st.slots.size))


# The laws of two states.


def running_keeps_its_state(was: MambaSlotsState, now: MambaSlotsState) -> Truth:
    """A request that runs before and after a call has one state slot of its own: nobody frees or changes it meanwhile.

    A buffered request passes the states of its track buffer on, and never this one.
    """

    def kept(o: Number) -> Truth:
        runs = is_request(was, o) & (was.phase(o) == RUNNING) & (now.phase(o) == RUNNING)
        return implies(runs & (was.table(o, OWN) != ABSENT), now.table(o, OWN) == was.table(o, OWN))

    return was.owners.all(kept)


def requests_stay(was: MambaSlotsState, now: MambaSlotsState) -> Truth:
    """A request goes only where its slots are released or saved for its session: nobody takes them from under it."""
    return was.owners.all(lambda o: implies(is_request(was, o) & (was.phase(o) != IDLE), now.phase(o) != IDLE))


def set_aside_until_the_end(was: MambaSlotsState, now: MambaSlotsState) -> Truth:
    """A slot that is set aside for a group becomes free only where no group is open any more."""
    return (now.group == 0) | was.slots.all(lambda s: implies(was.place(s) == GROUPED, now.place(s) != FREE))


LAWS = (
    *(places_are_known, request_phases, absent_is_no_slot, one_owner, no_leak, group_is_open, gone_owns_nothing),
    *(nodes_have_states_alone, buffer_is_whole, running_is_equipped, names_what_it_owns, row_says_what_is_owned),
    freed_exactly_once,
)
LATENT = (gone_names_nothing,)

"""Mamba state slots and their owners: the state of ``spec.mamba_slots``; ``spec.state_laws`` has the laws.

A state slot holds one whole recurrent state. Owners share one range of numbers: requests below ``limit``, then the
slots of streaming sessions, then tree nodes from ``first_node`` on (a number that no node has can own a slot for a
moment). ``table(owner, role)`` is the state slot that the owner has in a role, 0 where it has none; the roles are the
owner's own state and the two slots of its track buffer. ``owner(slot)`` and ``role(slot)`` are the inverse. A request
also has two records of its slots, which can be wrong: ``names`` is what the scheduler's code looks at (does the request
have a state, a buffer?), and ``row`` is what the kernels read while the request runs. ``next(request)`` is the track, 0
or 1, that is written next. ``owed(slot)`` is the ledger: how often the slot was handed out, less how often a call named
it to give it back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spec.finite import Domain as Range
from spec.finite import Map as FiniteMap
from spec.logic import (
    Domain,
    Map,
    Number,
    Requirement,
    Set,
    Truth,
    but,
    constant,
    every,
    ite,
    no,
    number,
    requires,
    total,
    zeroed,
)

NOWHERE, FREE, GROUPED, HELD = 0, 1, 2, 3
ABSENT = 0  # no slot: never a slot number, whatever an engine writes for an absent slot
OWN, FIRST, SECOND = ROLES = 0, 1, 2
IDLE, WAITING, RUNNING, LEAVING = 0, 1, 2, 3


@dataclass(frozen=True)
class MambaSlotsState:
    """Where each slot is, who owns it in which role, and what the records of the requests say.

    ``buffered``: requests have track buffers. ``doubled``: a track buffer has two slots, since a step is scheduled
    before the last one is done. ``lazy``: the second slot exists only around a tracking boundary.
    """

    buffered: Truth = constant("truth", shared="buffered")
    doubled: Truth = constant("truth", shared="doubled")
    lazy: Truth = constant("truth", shared="lazy")
    limit: Number = constant("number", shared="requests")
    first_node: Number = constant("number", shared="first_node")
    slots: Domain = constant("pages", shared="states")
    owners: Domain = constant("naturals", shared="owners")
    place: Map = total(1)
    owed: Map = total(1)
    owner: Map = total(1)
    role: Map = total(1)
    table: Map = total(2)
    names: Map = total(2)
    row: Map = total(2)
    next: Map = total(1)
    phase: Map = total(1)
    group: Number = number()
    available: Number = number()


MAPS = ("place", "owed", "owner", "role", "table", "names", "row", "next", "phase")


def initial(size: int, requests: int, sessions: int, nodes: int, kind: tuple[bool, bool, bool]) -> MambaSlotsState:
    """``size`` free slots for these owners; ``kind``: buffered, doubled, lazy (finite reading)."""
    maps = {name: FiniteMap(2 if name in ("table", "names", "row") else 1) for name in MAPS}
    first_node = requests + sessions
    owners = Range(0, first_node + nodes - 1)
    return start(MambaSlotsState(*kind, requests, first_node, Range(1, size), owners, **maps, group=0, available=0))


def start(st: MambaSlotsState) -> MambaSlotsState:
    """Before the first call: every slot is free, no owner has a slot, and no group is open."""
    blank = zeroed(st, MAPS, ("group",))
    return but(blank, place=blank.place.where(st.slots.has, FREE, st.slots.items), available=st.slots.size)


# Which numbers are requests, sessions and nodes.


def is_request(st: MambaSlotsState, o: Number) -> Truth:
    """The owner is a request."""
    return st.owners.has(o) & (o < st.limit)


def is_session(st: MambaSlotsState, o: Number) -> Truth:
    """The owner is the slot of a streaming session."""
    return st.owners.has(o) & (st.limit <= o) & (o < st.first_node)


def is_node(st: MambaSlotsState, o: Number) -> Truth:
    """The owner number is one of a tree node, or one that no node has yet."""
    return st.owners.has(o) & (st.limit <= o) & (st.first_node <= o)


def leaving(st: MambaSlotsState, o: Number) -> Truth:
    """The owner is a request that donated a state, and gives the rest back next."""
    return is_request(st, o) & (st.phase(o) == LEAVING)


def each_role(law: Callable[[Number], Truth]) -> Truth:
    """``law`` holds for each role."""
    return every((law(OWN), law(FIRST), law(SECOND)))


def owns_nothing(st: MambaSlotsState, o: Number) -> Truth:
    """The owner has no state in any role."""
    return each_role(lambda k: st.table(o, k) == ABSENT)


def is_open(st: MambaSlotsState, slot: Number) -> Truth:
    """The slot may be handed out by itself: it is free, or set aside for the open group."""
    return st.slots.has(slot) & ((st.place(slot) == FREE) | (st.place(slot) == GROUPED))


def is_held(st: MambaSlotsState, slot: Number) -> Truth:
    """The slot has an owner."""
    return st.slots.has(slot) & (st.place(slot) == HELD)


def has_two(st: MambaSlotsState) -> Truth:
    """A track buffer has two slots."""
    return st.buffered & st.doubled


def has_buffer(st: MambaSlotsState, o: Number) -> Truth:
    """The owner has a track buffer, whole or in part."""
    return (st.table(o, FIRST) != ABSENT) | (st.table(o, SECOND) != ABSENT)


def other(k: Number) -> Number:
    """The other one of the two tracks."""
    return 1 - k


def kept(st: MambaSlotsState, request: Number) -> Number:
    """The role of the newest state that a request can donate: of two tracks, the one that is not written next.

    With one track, or while the second slot is absent, it is the track that exists; without a buffer, the own state.
    """
    at = ite(no(st.lazy) & st.doubled, other(st.next(request)), st.next(request))
    return ite(st.buffered, FIRST + at, OWN)


# How slots move.


def hold(st: MambaSlotsState, o: Number, k: Number, slot: Number) -> MambaSlotsState:
    """The state in which ``o`` has the slot in the role ``k``; unchanged where the slot is absent."""
    real = slot != ABSENT
    return but(
        st,
        place=st.place.where(lambda s: real & (s == slot), HELD, lambda: [slot]),
        owner=st.owner.where(lambda s: real & (s == slot), o, lambda: [slot]),
        role=st.role.where(lambda s: real & (s == slot), k, lambda: [slot]),
        table=st.table.put((o, k), ite(real, slot, st.table(o, k))),
    )


def taken(st: MambaSlotsState, one: Number, two: Number = ABSENT, three: Number = ABSENT) -> Set:
    """Those of the given slots that are free and not set aside for a group."""
    return st.slots.such(
        lambda s: (st.place(s) == FREE) & ((s == one) | (s == two) | (s == three)), lambda: [one, two, three]
    )


def take(st: MambaSlotsState, o: Number, k: Number, slot: Number) -> MambaSlotsState:
    """The state after ``o`` took the slot, which was free or set aside for the group."""
    held = lent(hold(st, o, k, slot), st.slots.such(lambda s: s == slot, lambda: [slot]))
    return but(held, available=st.available - taken(st, slot).size)


def lent(st: MambaSlotsState, slots: Set) -> MambaSlotsState:
    """The state in which the ledger counts that the slots were handed out."""
    return but(st, owed=st.owed.where(slots.has, lambda s: st.owed(s) + 1, slots.items))


def owned(st: MambaSlotsState, o: Number) -> Set:
    """The slots that the owner has."""
    return st.slots.such(lambda s: (st.place(s) == HELD) & (st.owner(s) == o), lambda: [st.table(o, k) for k in ROLES])


def only(st: MambaSlotsState, o: Number, k: Number) -> Set:
    """The slot that the owner has in one role, as a set."""
    return st.slots.such(
        lambda s: (st.place(s) == HELD) & (st.owner(s) == o) & (st.role(s) == k), lambda: [st.table(o, k)]
    )


def drop(st: MambaSlotsState, gone: Set) -> MambaSlotsState:
    """The state after the slots ``gone`` were freed. The ledger counts each named slot, whoever owned it."""
    return but(
        st,
        place=st.place.where(gone.has, FREE, gone.items),
        table=st.table.where(
            lambda o, k: gone.has(st.table(o, k)),
            ABSENT,
            lambda: [(st.owner(s), st.role(s)) for s in gone.items()],
        ),
        owed=st.owed.where(gone.has, lambda s: st.owed(s) - 1, gone.items),
        available=st.available + gone.size,
    )


def move(st: MambaSlotsState, o: Number, to: Number) -> MambaSlotsState:
    """The state after all slots of ``o`` went to ``to``, each in its role."""
    moved = owned(st, o)
    return but(
        st,
        owner=st.owner.where(moved.has, to, moved.items),
        table=st.table.where(
            lambda r, k: (r == o) | ((r == to) & (st.table(o, k) != ABSENT)),
            lambda r, k: ite(r == to, st.table(o, k), ABSENT),
            lambda: [(r, k) for r in (o, to) for k in ROLES],
        ),
        next=st.next.put(to, st.next(o)),
    )


def recorded(st: MambaSlotsState, request: Number) -> MambaSlotsState:
    """The state in which the request's record names exactly the slots that it has."""
    names = st.names.where(
        lambda o, _: o == request, lambda _, k: st.table(request, k), lambda: [(request, k) for k in ROLES]
    )
    return but(st, names=names)


def written(st: MambaSlotsState, request: Number) -> MambaSlotsState:
    """The state in which the request's record and its row name exactly the slots that it has."""
    row = st.row.where(
        lambda o, _: o == request, lambda _, k: st.table(request, k), lambda: [(request, k) for k in ROLES]
    )
    return but(recorded(st, request), row=row)


# Promises and choices that several transitions share.


def in_phase(st: MambaSlotsState, request: Number, phase: Number, what: str) -> Requirement:
    """The number is a request's, and the request is in this phase."""
    return requires(is_request(st, request) & (st.phase(request) == phase), what)


def running(st: MambaSlotsState, request: Number) -> Requirement:
    """The request is running."""
    return in_phase(st, request, RUNNING, "the request is running")


def bare(st: MambaSlotsState, node: Number) -> Requirement:
    """The node can take over a state."""
    return requires(is_node(st, node) & (st.table(node, OWN) == ABSENT), "the node has no state yet")


def stateful(st: MambaSlotsState, node: Number) -> Requirement:
    """The node has a state."""
    return requires(is_node(st, node) & (st.table(node, OWN) != ABSENT), "the node has a state")


def single(st: MambaSlotsState, slot: Number) -> Requirement:
    """The implementation may hand out any slot that is free or set aside for the open group."""
    return requires(is_open(st, slot), "the slot handed out was free, or set aside for the group")


def some_open(st: MambaSlotsState) -> Truth:
    """At least one slot can be handed out."""
    return st.slots.any(lambda s: is_open(st, s))


def needed(st: MambaSlotsState, request: Number) -> tuple[Truth, Truth, Truth]:
    """The roles in which an admitted request gets a slot, since its record names none there."""
    bare = (st.names(request, FIRST) == ABSENT) & (st.names(request, SECOND) == ABSENT)
    return st.names(request, OWN) == ABSENT, st.buffered & bare, has_two(st) & no(st.lazy) & bare


def given(st: MambaSlotsState, slot: Number, wanted: Truth) -> Requirement:
    """The implementation hands out a free slot where one is wanted, and no slot elsewhere."""
    free = st.slots.has(slot) & (st.place(slot) == FREE)
    return requires(ite(wanted, free, slot == ABSENT), "a free slot is handed out exactly where the request needs one")


def apart(one: Number, two: Number) -> Truth:
    """Two slots are different, or the first one is absent."""
    return (one == ABSENT) | (one != two)


def across(st: MambaSlotsState, request: Number) -> Number:
    """The role of the track that is not written next."""
    return FIRST + other(st.next(request))


def lazily(st: MambaSlotsState) -> Requirement:
    """Track buffers have a second slot only around a tracking boundary."""
    return requires(has_two(st) & st.lazy, "the track buffer is lazy")

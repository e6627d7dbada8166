"""Mamba state slots and who owns them: the noun of ``spec.mamba_slots``.

A state slot holds one whole recurrent state. Owners share one space of numbers: requests below ``limit``, then the
slots of streaming sessions, then others from ``first_node`` on: the tree's nodes, and whoever carries a state for a
moment. ``table(owner, role)`` is the state that the owner has in a role (its own, or one of two track buffers), 0 where
it has none; ``owner`` and ``role`` are the inverse. What a request's record says is told apart from it: ``names`` is
what code branches on (has it a state? a buffer?), ``row`` what the kernels read while the request runs.
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
ABSENT = 0  # no state: never a slot number, whatever an engine writes for it
OWN, FIRST, SECOND = ROLES = 0, 1, 2
IDLE, WAITING, RUNNING, LEAVING = 0, 1, 2, 3


@dataclass(frozen=True)
class MambaSlots:
    """Where each slot is, who owns it in which role, and what the requests' records say.

    ``buffered``: requests track their state in a buffer of their own; ``doubled``: of two slots, since a step is
    scheduled before the last one is done; ``lazy``: the second one is there only around a tracking boundary.
    """

    buffered: Truth = constant("truth", shared="buffered")
    doubled: Truth = constant("truth", shared="doubled")
    lazy: Truth = constant("truth", shared="lazy")
    limit: Number = constant("number", shared="requests")
    first_node: Number = constant("number", shared="first_node")
    slots: Domain = constant("pages", shared="states")
    owners: Domain = constant("naturals", shared="owners")
    place: Map = total(1)
    owner: Map = total(1)
    role: Map = total(1)
    table: Map = total(2)
    names: Map = total(2)
    row: Map = total(2)
    next: Map = total(1)
    phase: Map = total(1)
    group: Number = number()
    available: Number = number()


MAPS = ("place", "owner", "role", "table", "names", "row", "next", "phase")


def initial(size: int, requests: int, sessions: int, nodes: int, kind: tuple[bool, bool, bool]) -> MambaSlots:
    """``size`` free slots; ``kind``: buffered, doubled, lazy (finite reading)."""
    maps = {name: FiniteMap(2 if name in ("table", "names", "row") else 1) for name in MAPS}
    first_node = requests + sessions
    owners = Range(0, first_node + nodes - 1)
    return start(MambaSlots(*kind, requests, first_node, Range(1, size), owners, **maps, group=0, available=0))


def start(st: MambaSlots) -> MambaSlots:
    """Before the first call every slot is free, nobody owns one, and no group is open."""
    blank = zeroed(st, MAPS, ("group",))
    return but(blank, place=blank.place.where(st.slots.has, FREE, st.slots.items), available=st.slots.size)


# Who is who.


def is_request(st: MambaSlots, o: Number) -> Truth:
    """The owner is a request."""
    return st.owners.has(o) & (o < st.limit)


def is_session(st: MambaSlots, o: Number) -> Truth:
    """The owner is the slot of a streaming session."""
    return st.owners.has(o) & (st.limit <= o) & (o < st.first_node)


def is_node(st: MambaSlots, o: Number) -> Truth:
    """The owner is a node of the tree, or carries a state to one."""
    return st.owners.has(o) & (st.limit <= o) & (st.first_node <= o)


def leaving(st: MambaSlots, o: Number) -> Truth:
    """The owner is a request that has given a state away, and gives the rest back next."""
    return is_request(st, o) & (st.phase(o) == LEAVING)


def each_role(law: Callable[[Number], Truth]) -> Truth:
    """``law`` holds for each role."""
    return every((law(OWN), law(FIRST), law(SECOND)))


def owns_nothing(st: MambaSlots, o: Number) -> Truth:
    """The owner has no state in any role."""
    return each_role(lambda k: st.table(o, k) == ABSENT)


def is_open(st: MambaSlots, slot: Number) -> Truth:
    """The slot may be handed out alone: it is free, or waits in the open group."""
    return st.slots.has(slot) & ((st.place(slot) == FREE) | (st.place(slot) == GROUPED))


def is_held(st: MambaSlots, slot: Number) -> Truth:
    """Somebody owns the slot."""
    return st.slots.has(slot) & (st.place(slot) == HELD)


def has_two(st: MambaSlots) -> Truth:
    """A track buffer has two slots."""
    return st.buffered & st.doubled


def has_buffer(st: MambaSlots, o: Number) -> Truth:
    """The owner has a track buffer, whole or in part."""
    return (st.table(o, FIRST) != ABSENT) | (st.table(o, SECOND) != ABSENT)


def other(k: Number) -> Number:
    """The other one of two tracks."""
    return 1 - k


def kept(st: MambaSlots, request: Number) -> Number:
    """The role of the newest state that a request can give away: of two tracks the one that is not written next.

    With one track, or while the second one is absent, it is the one that is there; without a buffer its own state.
    """
    at = ite(no(st.lazy) & st.doubled, other(st.next(request)), st.next(request))
    return ite(st.buffered, FIRST + at, OWN)


# How slots move.


def hold(st: MambaSlots, o: Number, k: Number, slot: Number) -> MambaSlots:
    """``o`` has the slot in the role ``k``; nothing changes where there is no slot."""
    real = slot != ABSENT
    return but(
        st,
        place=st.place.where(lambda s: real & (s == slot), HELD, lambda: [slot]),
        owner=st.owner.where(lambda s: real & (s == slot), o, lambda: [slot]),
        role=st.role.where(lambda s: real & (s == slot), k, lambda: [slot]),
        table=st.table.put((o, k), ite(real, slot, st.table(o, k))),
    )


def taken(st: MambaSlots, one: Number, two: Number = ABSENT, three: Number = ABSENT) -> Set:
    """Those of the slots that were free, and not in a group."""
    return st.slots.such(
        lambda s: (st.place(s) == FREE) & ((s == one) | (s == two) | (s == three)), lambda: [one, two, three]
    )


def take(st: MambaSlots, o: Number, k: Number, slot: Number) -> MambaSlots:
    """``o`` takes an open slot."""
    return but(hold(st, o, k, slot), available=st.available - taken(st, slot).size)


def owned(st: MambaSlots, o: Number) -> Set:
    """What the owner has."""
    return st.slots.such(lambda s: (st.place(s) == HELD) & (st.owner(s) == o), lambda: [st.table(o, k) for k in ROLES])


def only(st: MambaSlots, o: Number, k: Number) -> Set:
    """What the owner has in one role."""
    return st.slots.such(
        lambda s: (st.place(s) == HELD) & (st.owner(s) == o) & (st.role(s) == k), lambda: [st.table(o, k)]
    )


def drop(st: MambaSlots, gone: Set) -> MambaSlots:
    """The slots ``gone`` are free, and nobody has them."""
    return but(
        st,
        place=st.place.where(gone.has, FREE, gone.items),
        table=st.table.where(
            lambda o, k: gone.has(st.table(o, k)),
            ABSENT,
            lambda: [(st.owner(s), st.role(s)) for s in gone.items()],
        ),
        available=st.available + gone.size,
    )


def move(st: MambaSlots, o: Number, to: Number) -> MambaSlots:
    """All that ``o`` has is ``to``'s, in the same roles, and ``o`` has nothing."""
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


def recorded(st: MambaSlots, request: Number) -> MambaSlots:
    """The request's record says what the request has."""
    names = st.names.where(
        lambda o, _: o == request, lambda _, k: st.table(request, k), lambda: [(request, k) for k in ROLES]
    )
    return but(st, names=names)


def written(st: MambaSlots, request: Number) -> MambaSlots:
    """The request's record and its row say what the request has."""
    row = st.row.where(
        lambda o, _: o == request, lambda _, k: st.table(request, k), lambda: [(request, k) for k in ROLES]
    )
    return but(recorded(st, request), row=row)


# The words in which transitions state their conditions.


def in_phase(st: MambaSlots, request: Number, phase: Number, what: str) -> Requirement:
    """The request is a request, in this phase."""
    return requires(is_request(st, request) & (st.phase(request) == phase), what)


def running(st: MambaSlots, request: Number) -> Requirement:
    """The request runs."""
    return in_phase(st, request, RUNNING, "the request is running")


def bare(st: MambaSlots, node: Number) -> Requirement:
    """The node can take a state over."""
    return requires(is_node(st, node) & (st.table(node, OWN) == ABSENT), "the node has no state yet")


def stateful(st: MambaSlots, node: Number) -> Requirement:
    """The node has a state."""
    return requires(is_node(st, node) & (st.table(node, OWN) != ABSENT), "the node has a state")


def single(st: MambaSlots, slot: Number) -> Requirement:
    """The implementation may answer with any slot that is open."""
    return requires(is_open(st, slot), "the slot handed out was free or waited in the group")


def some_open(st: MambaSlots) -> Truth:
    """One slot can be handed out."""
    return st.slots.any(lambda s: is_open(st, s))


def needed(st: MambaSlots, request: Number) -> tuple[Truth, Truth, Truth]:
    """The roles in which an admitted request gets a slot, since it names none there."""
    bare = (st.names(request, FIRST) == ABSENT) & (st.names(request, SECOND) == ABSENT)
    return st.names(request, OWN) == ABSENT, st.buffered & bare, has_two(st) & no(st.lazy) & bare


def given(st: MambaSlots, slot: Number, wanted: Truth) -> Requirement:
    """The implementation gives a free slot where one is wanted, and none elsewhere."""
    free = st.slots.has(slot) & (st.place(slot) == FREE)
    return requires(ite(wanted, free, slot == ABSENT), "a free slot is handed out where the request has none, no other")


def apart(one: Number, two: Number) -> Truth:
    """Two slots are not the same one."""
    return (one == ABSENT) | (one != two)


def across(st: MambaSlots, request: Number) -> Number:
    """The role of the track that is not next."""
    return FIRST + other(st.next(request))


def lazily(st: MambaSlots) -> Requirement:
    """The second slot comes and goes."""
    return requires(has_two(st) & st.lazy, "the buffer is lazy")

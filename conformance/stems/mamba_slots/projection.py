"""Projects the snapshot of mamba state slots onto the law's state of them, for runs of ``mamba_slots`` and ``cache``.

``nodes`` is in every function the law's owner number of each tree node that has a state, by the node's key: the token
ids from the root to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from conformance.driver.diff import FieldDifference
from conformance.driver.lockstep import Finding
from conformance.driver.protocol import Key
from conformance.stems.mamba_slots.protocol import NO_SLOTS, MambaSlotsSnapshot, SlotNames, Three
from spec.finite import Map
from spec.logic import but
from spec.mamba_slots_state import ABSENT, FREE, GROUPED, HELD, IDLE, OWN, ROLES, RUNNING, MambaSlotsState, has_buffer

NOTHING = SlotNames()
SHOWN = "every_request_is_shown"
SHOWN_SENTENCE = "The record of a request that is here is shown."


def project_states(
    law_state: MambaSlotsState,
    seen: MambaSlotsSnapshot,
    nodes: Mapping[Key, int],
    here: Collection[int],
    lent: Mapping[int, int],
) -> MambaSlotsState:
    """The law's state slots with everything that the snapshot shows; ``law_state`` itself if nothing differs.

    ``here``: the requests that have come and not left. ``lent``: the sessions whose slots a turn uses now, each with
    the request of that turn.
    """
    st = law_state
    place, table, names, row, following = _places(st, seen), st.table, st.names, st.row, st.next
    for request, named in seen.requests.items():
        names = _with_slots(names, request, named.slots)
        if request in here and st.phase(request) != IDLE:
            following = _with(following, request, named.next)
    for request, slots in seen.rows.items():
        row = _with_slots(row, request, slots)
    for owner in range(st.limit, st.first_node):
        named = _session(seen, owner - st.limit + 1, lent)
        table = _with_slots(table, owner, named.slots)
        if named.slots != NO_SLOTS:
            following = _with(following, owner, named.next)
    for key, owner in nodes.items():
        table = _with(table, (owner, OWN), seen.nodes.get(key, ABSENT))
    shown = (place, table, names, row, following)
    known = (st.place, st.table, st.names, st.row, st.next)
    if seen.available == st.available and all(a is b for a, b in zip(shown, known, strict=True)):
        return st
    return but(st, place=place, table=table, names=names, row=row, next=following, available=seen.available)


def record_of(seen: MambaSlotsSnapshot, request: int) -> SlotNames:
    """What the record of a request names. Raises ``Finding`` if the engine does not show the record."""
    if request not in seen.requests:
        raise Finding(SHOWN, SHOWN_SENTENCE, f"the record of request {request} is not shown")
    return seen.requests[request]


def _session(seen: MambaSlotsSnapshot, session: int, lent: Mapping[int, int]) -> SlotNames:
    """What a session's slot names. While a turn uses the slot, the slot may still name what the turn has; this counts
    as nothing.
    """
    named = seen.sessions.get(session, NOTHING)
    turn = seen.requests.get(lent.get(session, -1))
    return NOTHING if turn is not None and named.slots == turn.slots else named


def _places(st: MambaSlotsState, seen: MambaSlotsSnapshot) -> Map:
    """The place of each slot by the lists. A number on the free list that is no slot is put at ``ABSENT``, which
    breaks a law.
    """
    free, waiting = set(seen.free), set(seen.waiting)
    place: Map = st.place
    for slot in st.slots.items():
        place = _with(place, slot, GROUPED if slot in waiting else FREE if slot in free else HELD)
    return place if free <= set(st.slots.items()) else place.put(ABSENT, FREE)


def _with_slots(known: Map, owner: int, slots: Three) -> Map:
    for role in ROLES:
        known = _with(known, (owner, role), slots[role])
    return known


def _with(known: Map, key: int | tuple[int, int], value: int) -> Map:
    """The map with this value; the map itself if it has the value already."""
    was = known(*key) if isinstance(key, tuple) else known(key)
    return known if was == value else known.put(key, value)


def state_problems(law_state: MambaSlotsState, seen: MambaSlotsSnapshot, here: Collection[int]) -> list[str]:
    """What the snapshot shows and the law's state has no field for, in words.

    These are numbers on the free list that are no state slots, and requests whose record or row is not shown. ``here``:
    the requests that have come and not left.
    """
    st = law_state
    found = [f"the free list has {slot}, which is no state slot" for slot in seen.free if not st.slots.has(slot)]
    there = [request for request in here if st.phase(request) != IDLE]
    found += [f"the record of request {request} is not shown" for request in there if request not in seen.requests]
    running = (request for request in there if st.phase(request) == RUNNING)
    return found + [f"request {r} runs, and its row is not shown" for r in running if r not in seen.rows]


def hidden_state_change(change: FieldDifference, law_state: MambaSlotsState, here: Collection[int]) -> bool:
    """True if no caller reads what differs.

    Hidden are the record of a request that is gone, the row of a request that does not run, and the next track where
    there is no track buffer. A number on the free list that is no slot is reported by ``state_problems``.
    ``here``: the requests that have come and not left.
    """
    st, key = law_state, change.key
    if change.field == "place":
        return bool(key == ABSENT)
    if change.field == "names":
        return key[0] not in here or bool(st.phase(key[0]) == IDLE)
    if change.field == "row":
        return key[0] not in here or bool(st.phase(key[0]) != RUNNING)
    if change.field == "next":
        return bool(key >= st.first_node or not has_buffer(st, key))
    return False


def owner_names(law_state: MambaSlotsState, nodes: Mapping[Key, int]) -> Callable[[int], str]:
    """A function that names an owner of state slots: ``request 0``, ``session 1``, ``node [1, 2]``.

    ``nodes`` may change later: it is read when a name is needed.
    """
    limit, first_node = law_state.limit, law_state.first_node

    def name(owner: int) -> str:
        if owner < limit:
            return f"request {owner}"
        if owner < first_node:
            return f"session {owner - limit + 1}"
        key = next((list(key) for key, node in nodes.items() if node == owner), None)
        return f"node {owner - first_node + 1}" if key is None else f"node {key}"

    return name

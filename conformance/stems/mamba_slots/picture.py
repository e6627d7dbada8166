"""Pictures of mamba state slots and of their owners."""

from __future__ import annotations

from conformance.driver.diff import ROLES as ROLE_NAMES
from conformance.driver.diff import STATE_PLACES, Names
from conformance.driver.protocol import Json
from conformance.stems.mamba_slots.projection import owner_names
from conformance.stems.panels import item, panel, uses_of
from spec.logic import Map
from spec.mamba_slots_state import ABSENT, FREE, GROUPED, HELD, ROLES, MambaSlotsState, has_buffer, leaving
from spec.mamba_slots_state import IDLE as GONE

LOOKS = {FREE: "free", GROUPED: "pending", HELD: "held"}


def panels(st: MambaSlotsState, names: Names) -> list[Json]:
    """The state slots, who has which of them, and how many the engine counts as available."""
    owners = (owner for owner in st.owners.items() if _slots(st.table, owner) or _slots(st.names, owner))
    counts = {"available state slots": str(st.available), "groups that are open": str(st.group)}
    return [
        panel("pages", "Mamba state slots", (_slot(st, slot, names) for slot in st.slots.items())),
        panel("owners", "Owners of state slots", (_owner(st, owner, names) for owner in owners)),
        panel("counts", "Counts of states", [item("states", "states", counts)] if st.slots.size else []),
    ]


def _slot(st: MambaSlotsState, slot: int, names: Names) -> Json:
    place, owner, role = st.place(slot), st.owner(slot), st.role(slot)
    owned = place == HELD and st.table(owner, role) == slot
    said = STATE_PLACES.get(place, "in no place")
    if place == HELD:
        said = f"held by {_named(st, owner, names)}, as its {_role(role)}" if owned else "held by nobody"
    look = LOOKS.get(place, "lost") if place != HELD or owned else "lost"
    wrong = ["place"] if look == "lost" else []
    others = (o for o in st.owners.items() if not (owned and o == owner) and _has(st, o, slot))
    uses = uses_of([_named(st, owner, names)] * owned, (_named(st, o, names) for o in others))
    return item(f"state slot {slot}", f"state slot {slot}", {"place": said}, look, wrong=wrong, uses=uses)


def _has(st: MambaSlotsState, owner: int, slot: int) -> bool:
    return any(st.table(owner, role) == slot for role in ROLES)


def _owner(st: MambaSlotsState, owner: int, names: Names) -> Json:
    has, said = _slots(st.table, owner), _slots(st.names, owner)
    facts = {"has": has or "nothing"}
    if owner < st.limit and said != has:
        still = " still" if st.phase(owner) == GONE else ""
        facts["its record"] = f"{still} names {said or 'nothing'}".strip()
    if has_buffer(st, owner) and not leaving(st, owner):
        facts["next"] = f"its {_track(st.next(owner))} is written next"
    return item(f"owner {owner}", _named(st, owner, names), facts)


def _named(st: MambaSlotsState, owner: int, names: Names) -> str:
    """The owner as the run names it; else by what its number stands for."""
    said = names.owner(owner)
    return owner_names(st, {})(owner) if said == Names().owner(owner) else said


def _role(role: int) -> str:
    return ROLE_NAMES.get(role, f"role {role}, which does not exist")


def _track(number: int) -> str:
    """A wrong state may name a track that does not exist."""
    return {0: "first track", 1: "second track"}.get(number, f"track {number}, which does not exist,")


def _slots(table: Map, owner: int) -> str:
    return ", ".join(f"{ROLE_NAMES[k]} {table(owner, k)}" for k in ROLES if table(owner, k) != ABSENT)

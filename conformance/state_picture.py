"""Mamba state slots as a picture in words: a line an owner with what it has and names; and what changed."""

from __future__ import annotations

from conformance.machine import Json
from spec.logic import Map
from spec.states import ABSENT, FREE, GROUPED, HELD, IDLE, NOWHERE, ROLES, MambaSlots, has_buffer

PLACES = {NOWHERE: "nowhere", FREE: "free", GROUPED: "set aside", HELD: "held"}
WORDS = ("state", "track 0", "track 1")


def owner_name(st: MambaSlots, o: int) -> str:
    """An owner in words."""
    if o < st.limit:
        return f"request {o}"
    return f"session {o - st.limit + 1}" if o < st.first_node else f"node {o - st.first_node + 1}"


def state_frame(st: MambaSlots) -> Json:
    """Who has what, and what nobody has."""
    owners = [_line(st, o) for o in st.owners.items()]
    places = [f"{PLACES[p]}: {', '.join(map(str, _at(st, p))) or '-'}" for p in (FREE, GROUPED)]
    lost = [s for s in _at(st, HELD) if st.table(st.owner(s), st.role(s)) != s]
    places += [f"held by nobody: {', '.join(map(str, lost))}"] if lost else []
    return {"pools": [], "lines": [], "words": [*filter(None, owners), *places]}


def _at(st: MambaSlots, place: int) -> list[int]:
    return [s for s in st.slots.items() if st.place(s) == place]


def _line(st: MambaSlots, o: int) -> str:
    has, names = _parts(st.table, o), _parts(st.names, o)
    if not has and not names:
        return ""
    following = f"; next is track {st.next(o)}" if has_buffer(st, o) else ""
    gone = f" still names {names}" if o < st.limit and st.phase(o) == IDLE else f" names {names}"
    differs = gone if o < st.limit and names != has else ""
    return f"{owner_name(st, o)}: {has or 'nothing'}{following}{differs}"


def _parts(table: Map, o: int) -> str:
    return ", ".join(f"{WORDS[k]} {table(o, k)}" for k in ROLES if table(o, k) != ABSENT)


def state_changes(old: MambaSlots, new: MambaSlots) -> list[str]:
    """What can be seen to differ between two observed states."""
    found = [
        f"slot {s} {_where(old, s)} → {_where(new, s)}" for s in new.slots.items() if _where(old, s) != _where(new, s)
    ]
    for o in new.owners.items():
        was, now = _line(old, o), _line(new, o)
        found += [now or f"{owner_name(new, o)} has nothing"] if was != now else []
    return found + ([f"available {old.available} → {new.available}"] if old.available != new.available else [])


def _where(st: MambaSlots, s: int) -> str:
    if st.place(s) != HELD:
        return PLACES[st.place(s)]
    o = st.owner(s)
    return f"{owner_name(st, o)}'s" if st.table(o, st.role(s)) == s else "nobody's"

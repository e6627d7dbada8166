"""Pictures of a tier of host memory."""

from __future__ import annotations

from conformance.driver.diff import HOST_PHASES, Names
from conformance.driver.protocol import Json
from conformance.stems.panels import item, panel
from spec.host_tier_state import ABSENT, NO_KEY, UNWRITTEN, HostTierState, copies, is_store, is_untouched, key_of
from spec.in_flight import flies


def panels(st: HostTierState, names: Names) -> list[Json]:
    """The slots of the host, the keys on it, the copies in flight, and how many slots are free."""
    keys = (key for key in st.every_key.items() if st.phase(key) != ABSENT)
    flying = (job for job in copies(st).items() if flies(st.flight, job))
    return [
        panel("pages", "Slots", (_slot(st, slot, names) for slot in st.slots.items())),
        panel("rows", "Keys", (_key(st, key) for key in keys)),
        panel("copies", "Copies in flight", (_copy(st, job) for job in flying)),
        panel("counts", "Counts", [item("counts", "counts", {"free slots": str(st.available)})]),
    ]


def _slot(st: HostTierState, slot: int, names: Names) -> Json:
    texts = [st.text(slot, part) for part in st.parts.items()]
    facts = {"key": "none" if st.key(slot) == NO_KEY else f"key {st.key(slot)}"}
    facts["holds"] = ", ".join("no text" if text == UNWRITTEN else names.text(text) for text in texts)
    look = "free" if st.key(slot) == NO_KEY and is_untouched(st, slot) else "held"
    return item(f"slot {slot}", f"slot {slot}", facts, look)


def _key(st: HostTierState, key: int) -> Json:
    phase = HOST_PHASES.get(int(st.phase(key)), f"in phase {st.phase(key)}")
    facts = {"phase": phase, "slot": str(st.slot(key)), "promises": str(st.refs(key))}
    return item(f"key {key}", f"key {key}", facts)


def _copy(st: HostTierState, job: int) -> Json:
    kind = "store" if is_store(st, job) else "load"
    facts = {"kind": kind, "key": str(key_of(st, job)), "slot": str(st.place(job))}
    if st.lost(job):
        facts["lost"] = "a reset has forgotten its key"
    return item(f"copy {job}", f"copy {job}", facts)

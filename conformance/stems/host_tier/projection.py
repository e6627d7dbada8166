"""Projects the snapshot of a tier of host memory onto the law's state of it."""

from __future__ import annotations

from collections import Counter

from conformance.stems.host_tier.protocol import HostTierSnapshot
from spec.finite import Domain
from spec.host_tier_state import ABSENT, NO_KEY, NO_SLOT, READY, WRITING, HostTierState
from spec.logic import but

STRANGER = 0  # a key that no request has


def phase_of(seen: HostTierSnapshot, key: int) -> int:
    """The phase of a key in the words of the law."""
    if key not in seen.slots:
        return ABSENT
    return WRITING if seen.refs[key] < 0 else READY


def project_host(st: HostTierState, seen: HostTierSnapshot) -> HostTierState:
    """The law's tier with keys, slots, promises and the number of free slots as the snapshot shows them; ``st`` itself
    if nothing differs.
    """
    phase, slot, refs, owner = st.phase, st.slot, st.refs, st.key
    owners: dict[int, int] = {shown: key for key, shown in seen.slots.items()}
    for key in st.every_key.items():
        if (now := phase_of(seen, key)) != st.phase(key):
            phase = phase.put(key, now)
        if (place := seen.slots.get(key, NO_SLOT)) != st.slot(key):
            slot = slot.put(key, place)
        if (count := max(seen.refs.get(key, 0), 0)) != st.refs(key):
            refs = refs.put(key, count)
    for place in st.slots.items():
        if (key := owners.get(place, NO_KEY)) != st.key(place):
            owner = owner.put(place, key)
    same = phase is st.phase and slot is st.slot and refs is st.refs and owner is st.key
    if same and seen.available == st.available:
        return st
    return but(st, phase=phase, slot=slot, refs=refs, key=owner, available=seen.available)


def host_problems(slots: Domain, seen: HostTierSnapshot) -> list[str]:
    """What the snapshot shows and the law's state has no field for, in words. ``slots``: those that there are."""
    return [*_slot_problems(slots, seen), *_count_problems(seen)]


def _slot_problems(slots: Domain, seen: HostTierSnapshot) -> list[str]:
    free, listed = Counter(seen.free), set(seen.free)
    found = [f"slot {slot} is free {n} times" for slot, n in sorted(free.items()) if n > 1]
    found += [f"slot {slot} is free, which is no slot of the host" for slot in sorted(listed) if not slots.has(slot)]
    if seen.available != len(seen.free):
        found.append(f"the manager reports {seen.available} free slots, and it has {len(seen.free)}")
    taken = Counter(seen.slots.values())
    found += [f"{n} keys have slot {slot}" for slot, n in sorted(taken.items()) if n > 1]
    found += [f"slot {slot} is free, and a key has it" for slot in sorted(listed & taken.keys())]
    lost = [slot for slot in slots.items() if slot not in listed and slot not in taken]
    found += [f"slot {slot} is neither free nor of a key" for slot in lost]
    if STRANGER in seen.slots:
        found.append("the host has a key that no request has")
    return found


def _count_problems(seen: HostTierSnapshot) -> list[str]:
    idle = {key for key, count in seen.refs.items() if count == 0}
    writing = sum(count < 0 for count in seen.refs.values())
    promised = {slot: max(seen.refs[key], 0) for key, slot in seen.slots.items()}
    found = [
        f"{count} loads of slot {slot} are in flight, and its key is promised to {promised.get(slot, 0)}"
        for slot, count in sorted(seen.reading.items())
        if count > promised.get(slot, 0)
    ]
    if seen.evictable is not None and seen.evictable != len(idle):
        found.append(f"the manager counts {seen.evictable} evictable keys, and {len(idle)} are found without a promise")
    if seen.listed is not None and seen.listed != idle:
        found.append(f"the list of evictable keys is {sorted(seen.listed)}, and without a promise are {sorted(idle)}")
    if seen.writing is not None and seen.writing != writing:
        found.append(f"the manager counts {seen.writing} keys that are written, and {writing} are not published")
    return found

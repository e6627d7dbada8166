"""Projects the snapshot of a server's host memory onto the law's state."""

from __future__ import annotations

from collections import Counter

from conformance.stems.host_server.protocol import HostPoolSnapshot
from spec.host_tier_state import NO_KEY, HostTierState
from spec.logic import but


def project_pool(st: HostTierState, seen: HostPoolSnapshot) -> HostTierState:
    """The law's tier with the number of free slots as the pool reports it; ``st`` itself if nothing differs."""
    return st if seen.available == st.available else but(st, available=seen.available)


def pool_problems(st: HostTierState, seen: HostPoolSnapshot) -> list[str]:
    """What the pool shows and the law's state has no field for, in words."""
    free, listed, marked = Counter(seen.free), set(seen.free), set(seen.used)
    found = [f"slot {slot} is free {n} times" for slot, n in sorted(free.items()) if n > 1]
    found += [f"slot {slot} is free, which is no slot of the host" for slot in sorted(listed) if not st.slots.has(slot)]
    if seen.available != len(seen.free):
        found.append(f"the pool reports {seen.available} free slots, and it has {len(seen.free)}")
    for slot in st.slots.items():
        taken = st.key(slot) != NO_KEY
        if taken and slot in listed:
            found.append(f"slot {slot} is free, and a key has it")
        if not taken and slot not in listed:
            found.append(f"slot {slot} is neither free nor of a key")
        if (slot in marked) == (slot in listed):
            found.append(f"slot {slot} is {'' if slot in listed else 'not '}free, and the pool's mark says otherwise")
    return found

"""Projects the snapshots of a server's host memory onto the law's state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from conformance.stems.host_server.protocol import HostPoolSnapshot
from spec.host_tier_state import NO_KEY, HostTierState
from spec.logic import but


def project_pools(st: HostTierState, seen: Mapping[str, HostPoolSnapshot]) -> HostTierState:
    """The law's tier with the number of free slots as the pools report it; ``st`` itself if nothing differs. To the
    law, a slot that was taken for nothing yet is free.
    """
    available = sum(pool.available + len(pool.taken) for pool in seen.values())
    return st if available == st.available else but(st, available=available)


def pool_problems(st: HostTierState, base: int, name: str, seen: HostPoolSnapshot) -> list[str]:
    """What a pool shows and the law's state has no field for, in words. ``base``: the law's numbers before those of its
    slots.
    """
    free, listed, marked = Counter(seen.free), set(seen.free), set(seen.used or ())
    found = [f"slot {slot} is free {n} times" for slot, n in sorted(free.items()) if n > 1]
    if seen.available != len(seen.free):
        found.append(f"the pool reports {seen.available} free slots, and it has {len(seen.free)}")
    for slot in range(1, seen.slots + 1):
        taken = st.key(base + slot) != NO_KEY
        if taken and slot in listed:
            found.append(f"slot {slot} is free, and a key has it")
        if not taken and slot not in listed and slot not in seen.taken:
            found.append(f"slot {slot} is neither free nor of a key")
        if seen.used is not None and (slot in marked) == (slot in listed):
            found.append(f"slot {slot} is {'' if slot in listed else 'not '}free, and the pool's mark says otherwise")
    found += [f"slot {slot} is free, which is no slot" for slot in sorted(listed) if not 1 <= slot <= seen.slots]
    return [f"{name} pool of the host: {words}" for words in found]

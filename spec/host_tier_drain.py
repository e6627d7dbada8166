"""How a tier of host memory comes to rest: from every lawful state finitely many calls give back every slot.

The copies in flight end, each with a failure if it comes to the worst; promises are withdrawn; keys that are not
published are given up, and those that are found are evicted.
"""

from __future__ import annotations

from spec import host_tier
from spec.host_tier_state import ABSENT, READY, WRITING, HostTierState, copies, keys_of, nothing_is_known
from spec.in_flight import flies, nothing_flies
from spec.logic import Descent, Drain, Measure, Number, Truth, ite


def at_rest(st: HostTierState) -> Truth:
    """No key is on the host, and no copy is in flight."""
    return nothing_is_known(st) & nothing_flies(st.flight)


def of_any_size(st: HostTierState) -> Truth:
    """Nothing: a host of any size comes to rest."""
    return st.slots.size >= 0


def is_left(st: HostTierState, key: Number, phase: Number) -> Truth:
    """Nothing is in flight any more, and the key is in this phase without a promise."""
    return nothing_flies(st.flight) & (st.phase(key) == phase) & (st.refs(key) == 0)


COPIES = Measure(lambda st, j: ite(flies(st.flight, j), 1, 0), copies)
PROMISES = Measure(lambda st, k: st.refs(k), keys_of)
KEYS = Measure(lambda st, k: ite(st.phase(k) == ABSENT, 0, 1), keys_of)

DESCENTS = (
    Descent("end", lambda st, j: flies(st.flight, j), host_tier.end, lambda _, j: (j, False), COPIES, copies),
    Descent(
        "withdraw",
        lambda st, k: nothing_flies(st.flight) & (st.refs(k) > 0),
        host_tier.withdraw,
        lambda _, k: (k,),
        PROMISES,
        keys_of,
    ),
    Descent(
        "discard",
        lambda st, k: is_left(st, k, WRITING),
        host_tier.discard,
        lambda st, k: (k, st.slot(k)),
        KEYS,
        keys_of,
    ),
    Descent(
        "evict", lambda st, k: is_left(st, k, READY), host_tier.evict, lambda st, k: (k, st.slot(k)), KEYS, keys_of
    ),
)

DRAIN = Drain(at_rest, (COPIES, PROMISES, KEYS), DESCENTS, of_any_size)

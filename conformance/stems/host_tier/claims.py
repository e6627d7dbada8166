"""Which operations take the transitions of ``host_tier``, and configurations in which an engine may be driven."""

from __future__ import annotations

from itertools import product

from conformance.driver.protocol import Json
from conformance.stems.claims import Claim, taken_by
from conformance.stems.host_tier.config import POLICIES
from conformance.stems.host_tier.rules import REQUESTS

CLAIMS: dict[str, Claim] = {
    "write": taken_by("compute"),
    "find": taken_by("look_up", "load"),
    "reserve": taken_by("offer"),
    "store": taken_by("start"),
    "load": taken_by("start"),
    "end": taken_by("end"),
    "publish": taken_by("report"),
    "discard": taken_by("report"),
    "promise": taken_by("load"),
    "withdraw": taken_by("report"),
    "evict": taken_by("offer"),
    "reset": taken_by("reset"),
}
PROBES: tuple[Json, ...] = tuple(
    {
        "slots": 4,
        "keys": 6,
        "parts": 2,
        "requests": REQUESTS,
        "policy": policy,
        "threshold": threshold,
        "events": events,
    }
    for policy, threshold, events in product(POLICIES, (1, 2), (True, False))
)

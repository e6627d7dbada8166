"""Which transitions of ``host_tier`` the runs of a server with host memory must reach, and configurations of it."""

from __future__ import annotations

from conformance.driver.protocol import Json
from conformance.stems.claims import Claim, own_way, taken_by
from conformance.stems.kinds import Kinds
from conformance.stems.launches import configuration

CLAIMS: dict[str, Claim] = {
    "write": taken_by("turn"),
    "find": taken_by("turn"),
    "reserve": taken_by("turn"),
    "store": taken_by("turn"),
    "load": taken_by("turn"),
    "end": taken_by("copies_end", "turn"),
    "publish": taken_by("turn"),
    "discard": own_way("Without a storage behind its host memory a server gives up no slot: it waits for each copy."),
    "promise": taken_by("turn"),
    "withdraw": taken_by("turn"),
    "evict": taken_by("turn"),
    "reset": taken_by("flush"),
}


def probes(kinds: Kinds) -> list[Json]:
    """One server of each model that the engine declares, with each choice of sessions."""
    return [configuration(chosen) for chosen in kinds.hosting.probes()]

"""Which transitions of ``cache`` a server's runs must reach, and configurations in which a server may be driven."""

from __future__ import annotations

from conformance.driver.protocol import Json
from conformance.stems.cache.claims import CLAIMS as OF_CACHE
from conformance.stems.claims import Claim, Where, own_way, taken_by
from conformance.stems.kinds import Kinds
from conformance.stems.launches import configuration

WINDOWED = Where("layers with a sliding window and others", lambda config: config["model"] == "windowed")
SESSIONS = Where("sessions", lambda config: config["sessions"] > 0)
OWN = "The scheduler of a server decides whether it does this, and its launch flags."
TAKEN: dict[str, Claim] = {
    "admit": taken_by("turn"),
    "extend": taken_by("turn"),
    "decode": taken_by("turn"),
    "finish": taken_by("turn"),
    "insert_leaf": taken_by("turn"),
    "free_rest": taken_by("turn"),
    "slide": taken_by("turn", where=WINDOWED),
    "save": taken_by("turn", where=SESSIONS),
    "resume": taken_by("turn", where=SESSIONS),
}
CLAIMS: dict[str, Claim] = {name: TAKEN.get(name) or own_way(OWN) for name in OF_CACHE}


def probes(kinds: Kinds) -> list[Json]:
    """One server of each model that the engine declares, with each choice of sessions."""
    return [configuration(chosen) for chosen in kinds.launches.probes()]

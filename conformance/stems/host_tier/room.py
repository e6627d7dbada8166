"""The room of the stem ``host_tier``."""

from __future__ import annotations

from conformance.stems.host_tier.claims import CLAIMS, PROBES
from conformance.stems.host_tier.config import CONFIG
from conformance.stems.host_tier.onward import OnwardHost
from conformance.stems.host_tier.protocol import HostTierEngine
from conformance.stems.host_tier.rules import HostTierMachine
from conformance.stems.host_tier.run import HostTierRun
from conformance.stems.room import Room

ROOM = Room(
    machine=HostTierMachine,
    run=HostTierRun,
    callers=(HostTierRun,),
    claims=CLAIMS,
    probes=lambda _: PROBES,
    config=CONFIG,
    onward=OnwardHost,
    protocol=HostTierEngine,
    never_lacking=frozenset({"begin", "finish", "look_up", "offer", "stored", "promise", "loaded"}),
)

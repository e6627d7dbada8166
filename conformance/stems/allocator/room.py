"""The room of the stem ``allocator``."""

from __future__ import annotations

from conformance.stems.allocator.claims import CLAIMS, PROBES
from conformance.stems.allocator.config import CONFIG
from conformance.stems.allocator.protocol import AllocatorEngine
from conformance.stems.allocator.rules import AllocatorMachine
from conformance.stems.allocator.run import AllocatorRun
from conformance.stems.pools.calls import PoolCalls
from conformance.stems.pools.onward import OnwardPools
from conformance.stems.room import Room

ROOM = Room(
    machine=AllocatorMachine,
    run=AllocatorRun,
    callers=(PoolCalls,),
    claims=CLAIMS,
    probes=lambda _: PROBES,
    config=CONFIG,
    onward=OnwardPools,
    protocol=AllocatorEngine,
)

"""The room of the stem ``swa_mapping``."""

from __future__ import annotations

from conformance.stems.pools.calls import PoolCalls
from conformance.stems.pools.onward import OnwardPools
from conformance.stems.room import Room
from conformance.stems.swa_mapping.claims import CLAIMS, PROBES
from conformance.stems.swa_mapping.config import CONFIG
from conformance.stems.swa_mapping.protocol import SwaMappingEngine
from conformance.stems.swa_mapping.rules import SwaMappingMachine
from conformance.stems.swa_mapping.run import SwaMappingRun

ROOM = Room(
    machine=SwaMappingMachine,
    run=SwaMappingRun,
    callers=(PoolCalls, SwaMappingRun),
    claims=CLAIMS,
    probes=lambda _: PROBES,
    config=CONFIG,
    onward=OnwardPools,
    protocol=SwaMappingEngine,
    never_lacking=frozenset({"free_swa"}),
    abilities=frozenset({"free_unmapped"}),
)

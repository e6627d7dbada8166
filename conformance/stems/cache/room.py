"""The room of the stem ``cache``."""

from __future__ import annotations

from conformance.stems.cache.claims import CLAIMS, probes
from conformance.stems.cache.config import CONFIG
from conformance.stems.cache.protocol import CacheEngine
from conformance.stems.cache.rules import CacheMachine
from conformance.stems.cache.run import CacheRun
from conformance.stems.requests.calls import RequestCalls
from conformance.stems.requests.lacking import ABILITIES, NEVER_LACKING
from conformance.stems.requests.onward import OnwardRows
from conformance.stems.room import Room

ROOM = Room(
    machine=CacheMachine,
    run=CacheRun,
    callers=(RequestCalls, CacheRun),
    claims=CLAIMS,
    probes=probes,
    config=CONFIG,
    onward=OnwardRows,
    protocol=CacheEngine,
    reads="cache_snapshot",
    never_lacking=NEVER_LACKING,
    abilities=ABILITIES | {"counts_missing"},
    weight=2,
)

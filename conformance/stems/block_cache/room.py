"""The room of the stem ``block_cache``."""

from __future__ import annotations

from conformance.stems.block_cache.claims import CLAIMS, PROBES
from conformance.stems.block_cache.config import CONFIG
from conformance.stems.block_cache.onward import OnwardRequests
from conformance.stems.block_cache.protocol import BlockCacheEngine
from conformance.stems.block_cache.rules import BlockCacheMachine
from conformance.stems.block_cache.run import BlockCacheRun
from conformance.stems.room import Room

ROOM = Room(
    machine=BlockCacheMachine,
    run=BlockCacheRun,
    callers=(BlockCacheRun,),
    claims=CLAIMS,
    probes=lambda _: PROBES,
    config=CONFIG,
    onward=OnwardRequests,
    protocol=BlockCacheEngine,
    never_lacking=frozenset({"add", "schedule", "complete", "abort"}),
    loop=frozenset({"schedule", "complete"}),
    weight=6,
)

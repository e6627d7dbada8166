"""The room of the stem ``block_pool``."""

from __future__ import annotations

from conformance.stems.block_pool.claims import CLAIMS, PROBES
from conformance.stems.block_pool.config import CONFIG
from conformance.stems.block_pool.onward import OnwardBlocks
from conformance.stems.block_pool.protocol import BlockPoolEngine
from conformance.stems.block_pool.rules import BlockPoolMachine
from conformance.stems.block_pool.run import BlockPoolRun
from conformance.stems.room import Room

ROOM = Room(
    machine=BlockPoolMachine,
    run=BlockPoolRun,
    callers=(BlockPoolRun,),
    claims=CLAIMS,
    probes=lambda _: PROBES,
    config=CONFIG,
    onward=OnwardBlocks,
    protocol=BlockPoolEngine,
    never_lacking=frozenset({"get", "find", "touch", "free", "cache"}),
)

"""The room of the stem ``lock_ref``."""

from __future__ import annotations

from conformance.stems.lock_ref.claims import CLAIMS, probes
from conformance.stems.lock_ref.config import CONFIG
from conformance.stems.lock_ref.onward import OnwardTree
from conformance.stems.lock_ref.protocol import LockRefEngine
from conformance.stems.lock_ref.rules import LockRefMachine
from conformance.stems.lock_ref.run import LockRefRun
from conformance.stems.room import Room

ROOM = Room(
    machine=LockRefMachine,
    run=LockRefRun,
    callers=(LockRefRun,),
    claims=CLAIMS,
    probes=probes,
    config=CONFIG,
    onward=OnwardTree,
    protocol=LockRefEngine,
    abilities=frozenset({"state_goes_early", "counts_missing", "pinned_by_requests"}),
)

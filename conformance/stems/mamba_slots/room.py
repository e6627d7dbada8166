"""The room of the stem ``mamba_slots``."""

from __future__ import annotations

from conformance.stems.mamba_slots.claims import CLAIMS, probes
from conformance.stems.mamba_slots.config import CONFIG
from conformance.stems.mamba_slots.onward import OnwardStates
from conformance.stems.mamba_slots.protocol import MambaSlotsEngine
from conformance.stems.mamba_slots.rules import MambaSlotsMachine
from conformance.stems.mamba_slots.run import MambaSlotsRun
from conformance.stems.room import Room

ROOM = Room(
    machine=MambaSlotsMachine,
    run=MambaSlotsRun,
    callers=(MambaSlotsRun,),
    claims=CLAIMS,
    probes=probes,
    config=CONFIG,
    onward=OnwardStates,
    protocol=MambaSlotsEngine,
)

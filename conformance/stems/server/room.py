"""The room for whole servers."""

from __future__ import annotations

from conformance.stems.room import Room
from conformance.stems.server.claims import CLAIMS, probes
from conformance.stems.server.config import CONFIG
from conformance.stems.server.onward import OnwardServer
from conformance.stems.server.protocol import FINDS, SENDS, TRANSFER, ServerEngine
from conformance.stems.server.rules import ServerMachine
from conformance.stems.server.run import ServerRun
from conformance.stems.server.sendings import Sendings
from conformance.stems.server.served import GOES_ON, ServedClients
from conformance.stems.server.transfers import TransferCalls

ROOM = Room(
    machine=ServerMachine,
    run=ServerRun,
    callers=(ServedClients, ServerRun, TransferCalls, Sendings),
    claims=CLAIMS,
    probes=probes,
    config=CONFIG,
    onward=OnwardServer,
    protocol=ServerEngine,
    reads="cache_snapshot",
    never_lacking=frozenset({"generate", "abort", "go_on"}),
    abilities=frozenset({"counts_missing", FINDS, SENDS, TRANSFER}),
    ends=frozenset({GOES_ON}),
    runs=25,
    weight=3,
)

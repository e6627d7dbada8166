"""The room for whole servers with host memory."""

from __future__ import annotations

from conformance.stems.host_server.claims import CLAIMS, probes
from conformance.stems.host_server.onward import OnwardHostServer
from conformance.stems.host_server.protocol import HostServerEngine
from conformance.stems.host_server.rules import HostServerMachine
from conformance.stems.host_server.run import HostServerRun
from conformance.stems.room import Room
from conformance.stems.server.config import CONFIG
from conformance.stems.server.protocol import FINDS, SENDS, TRANSFER
from conformance.stems.server.served import GOES_ON, ServedClients

ROOM = Room(
    machine=HostServerMachine,
    run=HostServerRun,
    callers=(ServedClients, HostServerRun),
    claims=CLAIMS,
    probes=probes,
    config=CONFIG,
    onward=OnwardHostServer,
    protocol=HostServerEngine,
    reads="host_snapshot",
    never_lacking=frozenset({"generate", "abort", "go_on", "host_steps", "end_copies", "prefix_slots"}),
    abilities=frozenset({"counts_missing", FINDS, SENDS, TRANSFER}),
    ends=frozenset({GOES_ON}),
    runs=25,
    weight=2,
)

"""The room of the stem ``tickets``."""

from __future__ import annotations

from conformance.stems.room import Room
from conformance.stems.tickets.claims import CLAIMS, PROBES
from conformance.stems.tickets.config import CONFIG
from conformance.stems.tickets.onward import OnwardTickets
from conformance.stems.tickets.protocol import TicketsEngine
from conformance.stems.tickets.rules import TicketsMachine
from conformance.stems.tickets.run import TicketsRun

ROOM = Room(
    machine=TicketsMachine,
    run=TicketsRun,
    callers=(TicketsRun,),
    claims=CLAIMS,
    probes=lambda _: PROBES,
    config=CONFIG,
    onward=OnwardTickets,
    protocol=TicketsEngine,
)

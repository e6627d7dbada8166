"""The room of the stem ``session_trim``."""

from __future__ import annotations

from conformance.stems.requests.calls import RequestCalls
from conformance.stems.requests.lacking import ABILITIES, NEVER_LACKING
from conformance.stems.requests.onward import OnwardRows
from conformance.stems.room import Room
from conformance.stems.session_trim.claims import CLAIMS, probes
from conformance.stems.session_trim.config import CONFIG
from conformance.stems.session_trim.protocol import SessionTrimEngine
from conformance.stems.session_trim.rules import SessionTrimMachine
from conformance.stems.session_trim.run import SessionTrimRun

ROOM = Room(
    machine=SessionTrimMachine,
    run=SessionTrimRun,
    callers=(RequestCalls, SessionTrimRun),
    claims=CLAIMS,
    probes=probes,
    config=CONFIG,
    onward=OnwardRows,
    protocol=SessionTrimEngine,
    never_lacking=NEVER_LACKING,
    abilities=ABILITIES,
)

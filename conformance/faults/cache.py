"""Known bugs that show only in a whole cache, with rows and a tree."""

from __future__ import annotations

from conformance.faults.fault import Fault
from conformance.faults.lock_ref import RevivesHeld
from proofs import cache as wrong

FAULTS = (
    Fault(
        name="insert_under_reader",
        stem="cache",
        sentence="An insert gives a tombstone that another request still reads other pages, and frees the old ones.",
        spec={"revive_tombstone": wrong.revives_under_reader},
        parts={"locks": RevivesHeld},
        search={"small": wrong.two_rows, "routes": wrong.UNDER_READER_ROUTES},
    ),
)

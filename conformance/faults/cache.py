"""Known bugs that show only in a whole cache, with rows and a tree."""

from __future__ import annotations

from torch import Tensor

from conformance.faults.fault import Fault
from conformance.faults.lock_ref import RevivesHeld
from impl.session_trim import RequestRows
from proofs import cache as wrong


class GivesSwaBack(RequestRows):
    """A tombstone comes to life in place, and the row frees its SWA pages instead of passing them on."""

    def donate_swa(self, row: int, tree_slots: Tensor, upto: int) -> None:
        """Frees all pages of the row up to there."""
        self.dedupe(row, tree_slots, upto)


FAULTS = (
    Fault(
        name="insert_under_reader",
        stem="cache",
        sentence="An insert gives a tombstone that another request still reads other pages, and frees the old ones.",
        spec={"revive_tombstone": wrong.revives_under_reader},
        parts={"locks": RevivesHeld},
        search={"small": wrong.two_rows, "routes": wrong.UNDER_READER_ROUTES},
    ),
    Fault(
        name="revival_frees_pages",
        stem="cache",
        sentence="A tombstone that a request reads comes to life, and the SWA pages that it should get are freed.",
        spec={"revive_in_place": wrong.revives_without_pages},
        parts={"rows": GivesSwaBack},
    ),
)

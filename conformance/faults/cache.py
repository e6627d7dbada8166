"""Known bugs that show only in a whole cache, with rows and a tree."""

from __future__ import annotations

import torch
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


class KeepsDonated(RequestRows):
    """A request goes on after a checkpoint, and still counts the pages that it gave to the tree as its own."""

    def donate(self, row: int, upto: int) -> Tensor:
        """Gives the pages away, and leaves the length of the tree's part as it was."""
        before = int(self.protected[row])
        slots = super().donate(row, upto)
        self.protected[row] = before
        return slots


class ReleasesAtOnce(RequestRows):
    """A request gives back the SWA part of its lock as soon as it decodes, though it still reads the tree's window."""

    def window_is_own(self, rows: Tensor) -> Tensor:
        """Says so of every row."""
        return torch.ones_like(rows, dtype=torch.bool)


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
    Fault(
        name="early_release_under_window",
        stem="cache",
        sentence="A request gives back the SWA part of its lock while its window still reaches into the tree.",
        spec={"release_swa": wrong.releases_window},
        parts={"rows": ReleasesAtOnce},
        search={"routes": wrong.UNDER_WINDOW_ROUTES},
    ),
    Fault(
        name="donated_pages_stay",
        stem="cache",
        sentence="A request that gave pages to the tree still counts them as its own.",
        spec={"insert_leaf": wrong.keeps_donated},
        parts={"rows": KeepsDonated},
    ),
)

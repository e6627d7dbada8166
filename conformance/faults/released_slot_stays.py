"""A turn that is aborted gives its row back, and the session's slot still names it: the row has two owners.

What a release does that looks at the request alone, where slot and request both name the row while a turn runs.
"""

from __future__ import annotations

from conformance.faults.base import Fault
from conformance.subjects import ours
from impl.rows import Numbers
from impl.session_trim import RequestRows
from proofs.session_trim import keeps_slot


class Faulty(RequestRows):
    """Releases a row and leaves the slots alone."""

    def release(self, rows: Numbers) -> None:
        """The slots stay."""
        slots = dict(self.slot)
        super().release(rows)
        self.slot = slots


RELEASED_SLOT_STAYS = Fault(
    name="released_slot_stays",
    stem="session_trim",
    sentence="The row of an aborted turn is given back, and its session's slot keeps it.",
    spec={"release": keeps_slot},
    make=ours.faulty_rows(Faulty),
)

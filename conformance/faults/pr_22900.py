"""SGLang PR 22900: a turn that decoded past its end is cut in the session's slot, and its SWA cursor is not.

Then the cursor stands beyond the row: the next turn's tokens below it are taken for evicted, and their SWA pages are
never given back.
"""

from __future__ import annotations

from conformance.faults.base import Fault
from conformance.subjects import ours
from impl.rows import Numbers
from impl.session_trim import RequestRows
from proofs.session_trim import leaves_cursor


class Faulty(RequestRows):
    """Does not see the cursor when it cuts."""

    def save(self, rows: Numbers, agreed: Numbers) -> None:
        """The cursor stays."""
        cursor = self.cursor.clone()
        super().save(rows, agreed)
        self.cursor.copy_(cursor)


PR_22900 = Fault(
    name="pr_22900",
    stem="session_trim",
    sentence="A turn's row is cut to what was sent, and the SWA cursor stays where decoding had brought it.",
    spec={"save": leaves_cursor},
    make=ours.faulty_rows(Faulty),
)

"""A turn that goes on inside a page gives that page back with the tail: freeing is by pages, and the prefix ends there.

What a free of the slots after the prefix does that is not aligned upwards.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from torch import Tensor

from conformance.faults.base import Fault
from conformance.subjects import ours
from impl.rows import Numbers
from impl.session_trim import RequestRows
from spec import session_trim as law
from spec import swa_mapping
from spec.lengths import Length
from spec.logic import Number, Step, but, call
from spec.rows import Rows, back_to, cut_back


def restore(st: Rows, session: Number, prefix: Length) -> Step[Rows]:
    """The tail is given back from the page on in which the prefix ends."""
    row = law.slot_row(st, session)
    freed = call("pools", swa_mapping.trim, st.pools, row, Length(back_to(st, row, prefix).pages, 0))
    return but(law.restore(st, session, prefix), calls=(freed,), then=but(cut_back(st, row, prefix), pools=freed.then))


class Faulty(RequestRows):
    """Rounds down where it gives back."""

    def restore(self, sessions: Sequence[Hashable], prefix: Numbers) -> Tensor:
        """The page that the prefix ends in goes too."""
        self._ceil = self._floor  # type: ignore[method-assign]
        try:
            return super().restore(sessions, prefix)
        finally:
            del self._ceil


RESTORE_TAKES_PARTIAL_PAGE = Fault(
    name="restore_takes_partial_page",
    stem="session_trim",
    sentence="A turn that goes on inside a page has that page given back.",
    spec={"restore": restore},
    make=ours.faulty_rows(Faulty),
)

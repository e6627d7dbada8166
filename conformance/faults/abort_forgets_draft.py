"""A request that is aborted gives back what is computed, and not the slots that were allocated ahead for its draft."""

from __future__ import annotations

from conformance.faults.base import Fault
from conformance.subjects import ours
from impl.rows import Numbers
from impl.session_trim import RequestRows
from spec import session_trim as law
from spec.lengths import NOTHING, touched
from spec.logic import Number, Step, but
from spec.pair import give
from spec.pool import cut, in_range
from spec.rows import Rows, committed, emptied


def release(st: Rows, row: Number) -> Step[Rows]:
    """The row is taken for as long as what is computed."""
    pair, last = st.pools.now, touched(committed(st, row))
    gone = in_range(pair.full, row, 0, last), in_range(pair.swa, row, 0, last)
    kept = give(pair, *gone, st.pools.group > 0)
    empty = but(kept, full=cut(kept.full, row, NOTHING), swa=cut(kept.swa, row, NOTHING))
    return but(law.release(st, row), calls=(), then=but(emptied(st, row), pools=but(st.pools, now=empty)))


class Faulty(RequestRows):
    """Reads the wrong length."""

    def release(self, rows: Numbers) -> None:
        """The allocated length is forgotten."""
        for row in rows:
            self.allocated[row] = self.committed[row]
        super().release(rows)


ABORT_FORGETS_DRAFT = Fault(
    name="abort_forgets_draft",
    stem="session_trim",
    sentence="A request that ends early leaves its draft slots behind.",
    spec={"release": release},
    make=ours.faulty_rows(Faulty),
)

"""SGLang PR 22862: a session's next turn begins before the end of its row, and nobody gives the rest back.

The new tokens are written over it: draft slots, a token that a retract or the logit reserve cuts off. Seen in SGLang
0.5.10, where one token leaks a turn.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from torch import Tensor

from conformance.faults.base import Fault
from conformance.subjects import ours
from impl.rows import Numbers
from impl.session_trim import RequestRows
from spec import session_trim as law
from spec.lengths import Length
from spec.logic import Number, Step, but
from spec.pool import cut
from spec.rows import Rows, back_to, cut_back


def shortened(st: Rows, row: Number, to: Length) -> Rows:
    """The row is ``to`` tokens long, and nothing is given back."""
    pair = st.pools.now
    short = but(pair, full=cut(pair.full, row, to), swa=cut(pair.swa, row, to))
    return but(st, pools=but(st.pools, now=short))


def restore(st: Rows, session: Number, prefix: Length) -> Step[Rows]:
    """The lengths are the prefix's, and the pages beyond it are forgotten."""
    row = law.slot_row(st, session)
    short = shortened(cut_back(st, row, prefix), row, back_to(st, row, prefix))
    return but(law.restore(st, session, prefix), calls=(), then=short)


class Faulty(RequestRows):
    """Forgets what the slot has beyond the prefix."""

    def restore(self, sessions: Sequence[Hashable], prefix: Numbers) -> Tensor:
        """No free."""
        self._trim = lambda *_: None  # type: ignore[method-assign]
        try:
            return super().restore(sessions, prefix)
        finally:
            del self._trim


PR_22862 = Fault(
    name="pr_22862",
    stem="session_trim",
    sentence="A session's next turn overwrites the end of its row, which nobody gave back.",
    spec={"restore": restore},
    make=ours.faulty_rows(Faulty),
)

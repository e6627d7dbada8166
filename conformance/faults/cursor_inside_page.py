"""A cut below the SWA cursor moves the cursor to the cut, as the fix of SGLang PR 22900 does.

At page size 1 the window before the cut is gone; with larger pages the cursor stands inside a page whose SWA page was
given back, and the row that grows on writes its new tokens through the padding page. Seen in SGLang 0.5.11 to 0.5.14,
``_trim_overshoot`` and ``_free_tail``, if a cursor ever stands above the cut.
"""

from __future__ import annotations

import torch
from torch import Tensor

from conformance.faults.base import Fault
from conformance.subjects import ours
from impl.session_trim import RequestRows
from proofs.session_trim import cursor_in_page


class Faulty(RequestRows):
    """Caps the cursor, whatever was given back below it."""

    def _back_to(self, rows: Tensor, to: Tensor) -> tuple[Tensor, Tensor]:
        """The cut, and no cursor beyond it."""
        return to, torch.minimum(self.cursor[rows], to)


CURSOR_INSIDE_PAGE = Fault(
    name="cursor_inside_page",
    stem="session_trim",
    sentence="A cut below the SWA cursor moves the cursor to the cut, into a page without its SWA page.",
    spec={"restore": cursor_in_page},
    make=ours.faulty_rows(Faulty),
)

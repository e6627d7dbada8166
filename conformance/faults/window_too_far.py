"""The window moves one page too far: SWA pages are given back that the next token still reads."""

from __future__ import annotations

import torch
from torch import Tensor

from conformance.faults.base import Fault
from conformance.subjects import ours
from impl.rows import RUNNING, Numbers
from impl.session_trim import RequestRows
from proofs.session_trim import slides_too_far


class Faulty(RequestRows):
    """Reckons with whole pages, and rounds up."""

    def slide(self, rows: Numbers) -> Tensor:
        """As far as the page that the window begins in, and that page too."""
        batch = self.batch(rows, RUNNING)
        least = torch.maximum(self.cursor[batch], self.protected[batch])
        reach = torch.minimum(self._ceil(self.committed[batch] - self.window + 1), self._floor(self.committed[batch]))
        return self._slide(batch, torch.where(reach >= least, reach, self.cursor[batch]))


WINDOW_TOO_FAR = Fault(
    name="window_too_far",
    stem="session_trim",
    sentence="The window moves one page too far.",
    spec={"slide": slides_too_far},
    make=ours.faulty_rows(Faulty),
)

"""SGLang PR 26941, third place: the first turn of a streaming session is aborted, and nobody gives its slots back.

The slot that is made for the abort is released without the request's state and track buffer: three slots are lost.
"""

from __future__ import annotations

from conformance.faults.base import Fault
from conformance.subjects import ours
from conformance.subjects.mamba_ours import OurStates
from proofs.mamba_slots import forgets_what_it_had


class Faulty(OurStates):
    """Forgets what the first turn of a session had."""

    def abort(self, request: int) -> None:
        """The row is given back alone."""
        r = self.requests[request]
        if not r.session or r.later:
            super().abort(request)
            return
        self.states.free(r)
        r.mamba_pool_idx = r.mamba_ping_pong_track_buffer = r.mamba_next_track_idx = None


PR_26941_ABORT = Fault(
    name="pr_26941_abort",
    stem="mamba_slots",
    sentence="The first turn of a session is aborted, and its state and track buffer are lost.",
    spec={"release": forgets_what_it_had},
    make=ours.faulty_states(tree=Faulty),
)

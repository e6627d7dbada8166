"""SGLang PR 26941, second place: a request's slots are given back, and it goes on naming its track buffer.

When the same request is admitted again, the allocation is skipped, and it runs on slots that are free.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from conformance.faults.base import Fault
from conformance.subjects import ours
from impl.mamba_slots import Holder, MambaStates
from spec import mamba_slots as law
from spec.logic import Number, Step
from spec.states import OWN, ROLES, MambaSlots


def release(st: MambaSlots, request: Number) -> Step[MambaSlots]:
    """Clears the name of the own state alone."""
    step = law.release(st, request)
    names = step.then.names.where(
        lambda o, k: (o == request) & (k != OWN), st.names, lambda: [(request, k) for k in ROLES]
    )
    return replace(step, then=replace(step.then, names=names))


class Faulty(MambaStates):
    """Leaves the track buffer on the request."""

    def release(self, reqs: Iterable[Holder]) -> None:
        """Its slots are free nevertheless."""
        given = list(reqs)
        buffers = [(req.mamba_ping_pong_track_buffer, req.mamba_next_track_idx) for req in given]
        super().release(given)
        for req, (buffer, following) in zip(given, buffers, strict=True):
            req.mamba_ping_pong_track_buffer, req.mamba_next_track_idx = buffer, following


PR_26941_FREE = Fault(
    name="pr_26941_free",
    stem="mamba_slots",
    sentence="A request gives its slots back, and goes on naming the track buffer.",
    spec={"release": release},
    make=ours.faulty_states(Faulty),
)

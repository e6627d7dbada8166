"""SGLang PR 26941, first place: a turn is saved in its session's slot, and the request goes on naming the track buffer.

When the same request is admitted again, the allocation is skipped, and two have the same slots.
"""

from __future__ import annotations

from dataclasses import replace

from conformance.faults.base import Fault
from conformance.subjects import ours
from impl.mamba_slots import Holder, MambaStates
from spec import mamba_slots as law
from spec.logic import Number, Step
from spec.states import OWN, ROLES, MambaSlots


def save(st: MambaSlots, request: Number, session: Number) -> Step[MambaSlots]:
    """Clears the name of the own state alone."""
    step = law.save(st, request, session)
    names = step.then.names.where(
        lambda o, k: (o == request) & (k != OWN), st.names, lambda: [(request, k) for k in ROLES]
    )
    return replace(step, then=replace(step.then, names=names))


class Faulty(MambaStates):
    """Leaves the track buffer on the request."""

    def save(self, req: Holder, session: Holder) -> None:
        """The session has it too."""
        buffer, following = req.mamba_ping_pong_track_buffer, req.mamba_next_track_idx
        super().save(req, session)
        req.mamba_ping_pong_track_buffer, req.mamba_next_track_idx = buffer, following


PR_26941_SAVE = Fault(
    name="pr_26941_save",
    stem="mamba_slots",
    sentence="A turn is saved, and its request goes on naming the track buffer that is the session's.",
    spec={"save": save},
    make=ours.faulty_states(Faulty),
)

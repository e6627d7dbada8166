"""A request takes its newest state for given to the tree, which has not taken it: the slot is lost.

Seen in SGLang 0.5.11 to 0.5.14, where the tree makes no leaf for tokens that have left the window.
"""

from __future__ import annotations

from dataclasses import replace

from conformance.faults.base import Fault
from conformance.subjects import ours
from conformance.subjects.mamba_ours import OurRequest, OurStates
from spec import mamba_slots as law
from spec.logic import Number, Step
from spec.states import ROLES, MambaSlots, kept

SHORT = 5  # the tree of the faulty variant keeps no state of fewer tokens


def donate(st: MambaSlots, request: Number, node: Number) -> Step[MambaSlots]:
    """The node has nothing afterwards."""
    step = law.donate(st, request, node)
    taken = step.then.table.put((request, kept(st, request)), 0)
    nothing = taken.where(lambda o, _: o == node, 0, lambda: [(node, k) for k in ROLES])
    return replace(step, then=replace(step.then, table=nothing))


class Faulty(OurStates):
    """Gives short prefixes away to nobody."""

    def finish(self, request: int) -> None:
        """Nobody has the state."""
        r: OurRequest = self.requests[request]
        if not r.session and 0 < len(self._cached(r)) < SHORT:
            self.states.donate(r)
            self.states.release([r])
        else:
            super().finish(request)


DONATED_TO_NOBODY = Fault(
    name="donated_to_nobody",
    stem="mamba_slots",
    sentence="A request takes its newest state for given to the tree, which has not taken it.",
    spec={"donate": donate},
    make=ours.faulty_states(tree=Faulty),
)

"""A group of state slots that begins within another takes its place, and the outer one's slots are lost.

Seen in SGLang 0.5.13 and 0.5.14.
"""

from __future__ import annotations

from dataclasses import replace

from conformance.faults.base import Fault
from conformance.subjects import ours
from impl.mamba_slots import MambaSlotAllocator, MambaStates
from spec import mamba_slots as law
from spec.logic import Number, Seq, Step
from spec.states import GROUPED, HELD, MambaSlots


def begin_group(st: MambaSlots, need: Number, chosen: Seq) -> Step[MambaSlots]:
    """What was set aside is nobody's."""
    step = law.begin_group(st, need, chosen)
    lost = st.slots.such(lambda s: st.place(s) == GROUPED, st.slots.items)
    return replace(step, then=replace(step.then, place=step.then.place.where(lost.has, HELD, lost.items)))


class Forgetful(MambaSlotAllocator):
    """Has one group."""

    def alloc_group_begin(self, num_reqs: int) -> None:
        """Forgets the open one."""
        self.group_slots = self.group_slots[:0]
        super().alloc_group_begin(num_reqs)


class Faulty(MambaStates):
    """Over a pool that forgets groups."""

    def __init__(self, size: int, mamba_size: int, *, buffer_size: int = 2, lazy: bool = False) -> None:
        super().__init__(size, mamba_size, buffer_size=buffer_size, lazy=lazy)
        self.mamba_allocator = Forgetful(mamba_size)


NESTED_STATE_GROUP = Fault(
    name="nested_state_group",
    stem="mamba_slots",
    sentence="A group within a group takes its place, and the slots that were set aside are lost.",
    spec={"begin_group": begin_group},
    make=ours.faulty_states(Faulty),
)

"""A free group that opens within another forgets the pages that waited in it: nobody ever gives them back.

Seen in SGLang 0.5.10 to 0.5.14, ``free_group_begin``; no caller of these releases nests groups.
"""

from __future__ import annotations

from dataclasses import replace

from conformance.faults.base import Fault
from conformance.subjects import ours
from impl.swa_mapping import SWATokenToKVPoolAllocator
from spec import swa_mapping as law
from spec.logic import Step
from spec.pool import HELD, waiting
from spec.swa_mapping import SwaMapping


def free_group_begin(st: SwaMapping) -> Step[SwaMapping]:
    """The pages that waited are in use by nobody."""
    step = law.free_group_begin(st)
    full = st.now.full
    lost = waiting(full, st.group > 0)
    forgotten = replace(full, place=full.place.where(lost.has, HELD, lost.items))
    return replace(step, then=replace(step.then, now=replace(st.now, full=forgotten), backed_up=False))


class Faulty(SWATokenToKVPoolAllocator):
    """Starts an empty group whenever one begins."""

    def free_group_begin(self) -> None:
        """Forgets what waits."""
        self._pending = []
        super().free_group_begin()


NESTED_GROUP = Fault(
    name="nested_group",
    stem="swa_mapping",
    sentence="A nested free group forgets the pages that waited in the outer one.",
    spec={"free_group_begin": free_group_begin},
    make=ours.faulty(Faulty),
)

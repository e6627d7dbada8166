"""SGLang PR 25805: pages come back with their old mapping, and a tail allocation keeps it below the tail.

Then the row holds full pages that map into somebody else's SWA pages, and evicting or freeing it frees those.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from conformance.faults.base import Fault
from conformance.subjects import ours
from impl.swa_mapping import SWATokenToKVPoolAllocator
from spec import swa_mapping as law
from spec.logic import Step
from spec.swa_mapping import SwaMapping


def restore_state(st: SwaMapping) -> Step[SwaMapping]:
    """A restore brings back both pools, and leaves the mapping of the pages it took back."""
    step = law.restore_state(st)
    stale = replace(st.saved, to_page=st.now.to_page, to_offset=st.now.to_offset)
    return replace(step, then=replace(st, now=stale))


class Faulty(SWATokenToKVPoolAllocator):
    """Leaves the mapping behind on a restore, and below a tail."""

    def restore_state(self, state: Any) -> None:
        """Restores the pools alone."""
        mapping = self.full_to_swa_index_mapping.clone()
        super().restore_state(state)
        self.full_to_swa_index_mapping.copy_(mapping)

    def alloc_extend_swa_tail(self, *arguments: Any) -> Tensor | None:
        """Maps the tail and does not touch the rest."""
        before = self.full_to_swa_index_mapping.clone()
        slots = super().alloc_extend_swa_tail(*arguments)
        if slots is not None:
            below = slots[: len(slots) - arguments[-1]]
            self.full_to_swa_index_mapping[below] = before[below]
        return slots


PR_25805 = Fault(
    name="pr_25805",
    stem="swa_mapping",
    sentence="A tail allocation inherits the mapping that its pages had for an earlier request.",
    spec={"restore_state": restore_state},
    make=ours.faulty(Faulty),
)

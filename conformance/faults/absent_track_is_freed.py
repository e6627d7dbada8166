"""A closed session frees its lazy track buffer whole, also the slot that is absent, which is then handed out.

Seen in SGLang 0.5.13 and 0.5.14, where what is absent is written -1.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from conformance.faults.base import Fault
from conformance.subjects import ours
from impl.mamba_slots import Holder, MambaStates
from proofs.mamba_slots import frees_the_absent


class Faulty(MambaStates):
    """Gives back a slot for each place of the buffer."""

    def release(self, reqs: Iterable[Holder]) -> None:
        """What is absent becomes slot 0."""
        given = list(reqs)
        absent = sum((req.mamba_ping_pong_track_buffer or []).count(None) for req in given)
        super().release(given)
        if absent:
            self.mamba_allocator._put(torch.zeros(1, dtype=torch.int64))


ABSENT_TRACK_IS_FREED = Fault(
    name="absent_track_is_freed",
    stem="mamba_slots",
    sentence="A lazy track buffer is freed with the slot that is absent, as if it were one.",
    spec={"close": frees_the_absent},
    make=ours.faulty_states(Faulty),
)

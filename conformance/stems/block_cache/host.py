"""What runs of ``block_cache`` judge of host memory beside whose each slot is: that it rests."""

from __future__ import annotations

from conformance.driver.lockstep import Finding
from conformance.stems.block_cache.protocol import Launched
from conformance.stems.host_tier.protocol import HostTierSnapshot

HOST_RESTS = (
    "With no request, no step in flight and no transfer, each slot of host memory is free, or of a key that is found "
    "and promised to no load, and no copy counts as under way."
)

MOST = 2
COPIES_END = "copies_to_the_host_end"
COPIES_END_SENTENCE = "While no request is there, the scheduler soon has no block left that it copies to host memory."


class IdleCopies:
    """The copies to host memory that a scheduler launches while no request is there. ``blocks``: of the device: a
    scheduler has nothing left to copy once it has copied each of them, and may do so twice (``MOST``).
    """

    def __init__(self, blocks: int) -> None:
        self._blocks, self._copied, self._counts = blocks, 0, False

    @property
    def share(self) -> float:
        """The blocks that were copied since the last request has left, as a share of those of the device."""
        return self._copied / self._blocks

    def launched(self, step: Launched, has_requests: bool, slept: bool) -> None:
        """The scheduler has made a step. Raises ``Finding`` if its copies come to no end. ``slept``: a server would not
        have made the step: nothing that follows from it counts, until a request is there.
        """
        self._counts = has_requests or (self._counts and not slept)
        if has_requests or not self._counts:
            self._copied = 0
            return
        self._copied += sum(map(len, step.stores.values()))
        if self._copied > MOST * self._blocks:
            detail = f"{self._copied} blocks were copied since the last request has left, of {self._blocks}"
            raise Finding(COPIES_END, COPIES_END_SENTENCE, detail)


def does_not_rest(shown: HostTierSnapshot) -> str:
    """What host memory still keeps for loads and copies that have ended, in words; empty where it rests."""
    kept = [(shown.slots[key], "written" if count < 0 else "promised") for key, count in shown.refs.items() if count]
    if kept:
        return f"host memory keeps {', '.join(f'slot {slot} ({why})' for slot, why in sorted(kept))}"
    return "copies count as under way, so that the server never sleeps" if shown.busy else ""

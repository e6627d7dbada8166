"""What runs of ``block_cache`` judge of host memory beside whose each slot is: that it rests."""

from __future__ import annotations

from conformance.driver.lockstep import Finding
from conformance.stems.block_cache.protocol import Launched
from conformance.stems.host_tier.protocol import HostTierSnapshot

HOST_RESTS = (
    "With no request, no step in flight and no transfer, each slot of host memory is free, or of a key that is found "
    "and promised to no load, and no copy counts as under way."
)

COPIES_END = "copies_to_the_host_end"
COPIES_END_SENTENCE = "While no request is there, the scheduler soon has no block left that it copies to host memory."


class IdleCopies:
    """The copies to host memory that a scheduler launches while no request is there. ``blocks``: of the device: a
    scheduler has nothing left to copy once it has copied each of them, and may do so twice.
    """

    def __init__(self, blocks: int) -> None:
        self._most, self._copied = 2 * blocks, 0

    def completed(self, shown: HostTierSnapshot | None) -> None:
        """A step is done. A server without requests and without a copy under way makes no other step."""
        if shown is None or not shown.busy:
            self._copied = 0

    def launched(self, step: Launched, has_requests: bool) -> None:
        """The scheduler has made a step. Raises ``Finding`` if its copies come to no end."""
        copied = sum(map(len, step.stores.values()))
        self._copied = 0 if has_requests else self._copied + copied
        if self._copied > self._most:
            detail = f"{self._copied} blocks were copied since the last request has left, of {self._most // 2}"
            raise Finding(COPIES_END, COPIES_END_SENTENCE, detail)


def does_not_rest(shown: HostTierSnapshot) -> str:
    """What host memory still keeps for loads and copies that have ended, in words; empty where it rests."""
    kept = [(shown.slots[key], "written" if count < 0 else "promised") for key, count in shown.refs.items() if count]
    if kept:
        return f"host memory keeps {', '.join(f'slot {slot} ({why})' for slot, why in sorted(kept))}"
    return "copies count as under way, so that the server never sleeps" if shown.busy else ""

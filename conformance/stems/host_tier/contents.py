"""What slots of the host and device blocks contain, in runs of ``host_tier``: requests, their jobs, and the copies.

The law says what each slot holds by its own account. This is the account of the copies themselves: they go where the
engine said, also after a law was broken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from conformance.driver.shadow import BLOCKS, NOBODY, Shadow
from spec.host_tier_state import UNWRITTEN

HOST = "host part"  # the pool of the parts of slots


@dataclass
class HostRequest:
    """A request, as its caller keeps it. ``keys``: those of its text. ``blocks``: the device block of each part, from
    the beginning on. The first ``filled`` parts hold the KV cache of the text.
    """

    keys: Sequence[int]
    blocks: list[int] = field(default_factory=list)
    filled: int = 0


@dataclass
class HostJob:
    """Copies that begin and end together, of keys of one request.

    ``slots``: the slot of each key, as the engine has said. ``blocks``: the device blocks, one for each part. The first
    of them is that of the part ``first`` of the first key. ``copies``: the law's copies, while they are in flight.
    ``lost``: a reset has forgotten the job.
    """

    request: int
    of: HostRequest
    keys: Sequence[int]
    slots: Sequence[int]
    blocks: Sequence[int]
    stores: bool
    first: int = 0
    copies: list[int] = field(default_factory=list)
    begun: bool = False
    ended: bool = False
    well: bool = False
    lost: bool = False

    @property
    def flies(self) -> bool:
        """The copies are in flight."""
        return self.begun and not self.ended

    def places(self, parts: int) -> list[tuple[int, int, int]]:
        """For each block its key, its slot and its part."""
        at = range(self.first, self.first + len(self.blocks))
        return [(self.keys[p // parts], self.slots[p // parts], p % parts) for p in at]

    def blocks_of(self, parts: int) -> list[tuple[int, int, list[int]]]:
        """For each key the key, its first part and its blocks."""
        found: dict[int, tuple[int, list[int]]] = {}
        for (key, _, part), block in zip(self.places(parts), self.blocks, strict=True):
            found.setdefault(key, (part, []))[1].append(block)
        return [(key, first, blocks) for key, (first, blocks) in found.items()]


def place_of(slot: int, part: int, parts: int) -> int:
    """The number of a part of a slot, from 1 on. A slot from 1 on."""
    return (slot - 1) * parts + part + 1


def copied(shadow: Shadow, job: HostJob, parts: int, well: bool) -> None:
    """The copies of a job have ended: what they have written holds what they read, or no text if they failed."""
    for (_, slot, part), block in zip(job.places(parts), job.blocks, strict=True):
        place = place_of(slot, part, parts)
        pool, source, target = (BLOCKS, block, place) if job.stores else (HOST, place, block)
        read = shadow.holds(pool, source) if well else None
        text, writer = (UNWRITTEN, NOBODY) if read is None else (read.prefix, read.writer)
        shadow.write(HOST if job.stores else BLOCKS, (target,), (text,), writer)


def read_back(shadow: Shadow, request: int, of: HostRequest, texts: Sequence[int]) -> None:
    """A request reads all that it has. ``texts``: the text of each of its parts, as numbers."""
    have = of.blocks[: of.filled]
    shadow.note(shadow.read(BLOCKS, have, texts[: len(have)], f"request {request}"))

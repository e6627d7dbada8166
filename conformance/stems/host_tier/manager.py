"""A manager of host memory in plain Python, of which the known bugs of ``host_tier`` are faulty variants.

Our implementation has no host memory. This manager has all that the law speaks of: keys that are least recently used
are evicted first, promises protect a key, and a key is stored once it was offered often enough.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from conformance.driver.protocol import Json, PublishedEvents, Unsupported
from conformance.stems.host_tier.protocol import ABSENT, FOUND, PENDING, WRITTEN, HostTierSnapshot, Offered

MEDIUM = "CPU"


class HostManager:
    """Slots 1 to ``slots``. ``slot``: the slot of each key, from the key that is evicted first to the last. ``refs``:
    the promises of each key, ``WRITTEN`` where its copy is not published. See ``HostTierEngine`` for what calls do.
    """

    fragile = False

    def __init__(self, slots: int, threshold: int, publishes: bool, lacks: Collection[str] = ()) -> None:
        self.slots, self.threshold, self.publishes, self.lacks = slots, threshold, publishes, frozenset(lacks)
        self.slot: dict[int, int] = {}
        self.refs: dict[int, int] = {}
        self.free = list(range(1, slots + 1))
        self.offers: dict[int, int] = {}
        self.events: list[Json] = []

    def begin(self, request: int, keys: Sequence[int]) -> None:
        """Keeps nothing of a request."""

    def finish(self, request: int) -> None:
        """Keeps nothing of a request."""

    def look_up(self, request: int, key: int) -> str:
        """Finds a key whose copy is published."""
        del request
        if key not in self.slot:
            return ABSENT
        return PENDING if self.refs[key] == WRITTEN else FOUND

    def offer(self, request: int, keys: Sequence[int]) -> Offered | None:
        """Stores the keys that are new and were offered often enough. Evicts others for them, if it must."""
        del request
        for key in keys:
            self.offers[key] = self.offers.get(key, 0) + 1
        new = [key for key in keys if key not in self.slot and self.offers[key] >= self.threshold]
        gone = self.unneeded(keys)[: max(len(new) - len(self.free), 0)]
        if len(new) > len(self.free) + len(gone):
            return None
        for key in gone:
            self.forget(key)
        self._tell("BlockRemoved", gone)
        slots = [self.free.pop(0) for _ in new]
        self.slot |= dict(zip(new, slots, strict=True))
        self.refs |= dict.fromkeys(new, WRITTEN)
        return Offered(new, slots, gone)

    def unneeded(self, offered: Collection[int]) -> list[int]:
        """The keys that may be evicted for an offer, those first that were not used for the longest time."""
        return [key for key in self.slot if self.refs[key] == 0 and key not in offered]

    def forget(self, key: int) -> None:
        """A key leaves the host, and its slot is free."""
        del self.refs[key]
        self.free.append(self.slot.pop(key))

    def stored(self, request: int, keys: Sequence[int], well: bool) -> None:
        """Publishes the keys, or gives them up."""
        del request
        for key in keys:
            if well:
                self.refs[key] = 0
            else:
                self.forget(key)
        if well:
            self._tell("BlockStored", keys)

    def promise(self, request: int, keys: Sequence[int]) -> list[int]:
        """Counts a promise of each key."""
        del request
        for key in keys:
            self.refs[key] += 1
        return [self.slot[key] for key in keys]

    def loaded(self, request: int, keys: Sequence[int]) -> None:
        """Takes a promise of each key back."""
        del request
        for key in keys:
            self.refs[key] -= 1

    def touch(self, request: int, keys: Sequence[int]) -> None:
        """The keys are evicted last."""
        del request
        for key in keys:
            if key in self.slot:
                self.slot[key] = self.slot.pop(key)

    def reset(self) -> None:
        """Forgets every key."""
        self.slot, self.refs = {}, {}
        self.free = list(range(1, self.slots + 1))
        self.events.append({"type": "AllBlocksCleared"})

    def snapshot(self) -> HostTierSnapshot:
        """The keys, their slots and promises, and the free slots."""
        return HostTierSnapshot(dict(self.slot), dict(self.refs), list(self.free), len(self.free))

    def published(self) -> PublishedEvents | None:
        """The events since the last time; ``None`` without events."""
        if not self.publishes:
            return None
        events, self.events = self.events, []
        return PublishedEvents(events, keys=[(MEDIUM, None, key) for key, count in self.refs.items() if count >= 0])

    def _tell(self, kind: str, keys: Sequence[int]) -> None:
        if keys:
            told = {"type": kind, "block_hashes": [*keys], "medium": MEDIUM}
            self.events.append(told if kind == "BlockRemoved" else {**told, "token_ids": [], "block_size": 1})


def host_manager(config: Json, lacks: Collection[str] = (), kind: type[HostManager] = HostManager) -> HostManager:
    """A manager of a configuration. ``kind``: its class. It has not the policy "arc"."""
    if config["policy"] == "arc":
        raise Unsupported("the manager evicts what was not used for the longest time")
    return kind(config["slots"], config["threshold"], config["events"], lacks)

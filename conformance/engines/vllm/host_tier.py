"""The manager of host memory of a release, ``CPUOffloadingManager`` or one of before, as an engine of ``host_tier``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from conformance.driver.protocol import Json, PublishedEvents
from conformance.engines.vllm import host_slots
from conformance.engines.vllm.offloading import Offloading, slots_of
from conformance.engines.vllm.release import VLLMRelease
from conformance.stems.host_tier.protocol import ABSENT, FOUND, PENDING, HostTierSnapshot, Offered


class VLLMHostTier:
    """One manager. See ``HostTierEngine`` for what each call does."""

    fragile = False

    def __init__(self, release: VLLMRelease, config: Json) -> None:
        self._of = Offloading(release)
        self._manager = self._of.manager(config)
        self._keys = [self._of.key(number) for number in range(config["keys"] + 1)]
        self._number = {key: number for number, key in enumerate(self._keys) if number}
        self._contexts: dict[int, Any] = {}
        self._events: list[Json] = []
        self._publishes = bool(config["events"])
        self.lacks = frozenset() if self._of.has_reset else frozenset({"reset"})

    def begin(self, request: int, keys: Sequence[int]) -> None:
        """``on_new_request``, where the release has it."""
        self._contexts[request] = context = self._of.context(request, self._named(keys))
        self._of.begins(self._manager, context)

    def finish(self, request: int) -> None:
        """``on_request_finished``, where the release has it."""
        self._of.finishes(self._manager, self._contexts[request])

    def look_up(self, request: int, key: int) -> str:
        """``lookup`` of one key."""
        found = self._of.look_up(self._manager, self._keys[key], self._contexts[request])
        return PENDING if found is None else FOUND if found else ABSENT

    def offer(self, request: int, keys: Sequence[int]) -> Offered | None:
        """``prepare_store``."""
        answer = self._of.send(self._manager.prepare_store, self._named(keys), self._contexts[request])
        if answer is None:
            return None
        stored, slots, evicted = self._of.offered(answer)
        return Offered(self._numbers(stored), slots, self._numbers(evicted))

    def stored(self, request: int, keys: Sequence[int], well: bool) -> None:
        """``complete_store``."""
        self._of.send(self._manager.complete_store, self._named(keys), self._contexts[request], success=well)

    def promise(self, request: int, keys: Sequence[int]) -> list[int]:
        """``prepare_load``."""
        return slots_of(self._of.send(self._manager.prepare_load, self._named(keys), self._contexts[request]))

    def loaded(self, request: int, keys: Sequence[int]) -> None:
        """``complete_load``."""
        self._of.send(self._manager.complete_load, self._named(keys), self._contexts[request])

    def touch(self, request: int, keys: Sequence[int]) -> None:
        """``touch``."""
        self._of.send(self._manager.touch, self._named(keys), self._contexts[request])

    def reset(self) -> None:
        """``reset_cache``. With it the block pool of the device publishes that all blocks are cleared."""
        self._manager.reset_cache()
        self._events.append({"type": "AllBlocksCleared"})

    def snapshot(self) -> HostTierSnapshot:
        """The fields of the manager, of its policy and of its pool of slots."""
        return host_slots.shown(self._manager, lambda key: self._number.get(bytes(key), 0))

    def published(self) -> PublishedEvents | None:
        """``take_events``, as the connector publishes them."""
        if not self._publishes:
            return None
        told = [self._of.event(event) for event in self._manager.take_events()]
        events = [*self._events, *(event for event in told if event is not None)]
        self._events = []
        chunks = host_slots.chunks(self._manager)
        return PublishedEvents(events, keys=[("CPU", None, key) for key, (_, count) in chunks.items() if count >= 0])

    def _named(self, keys: Sequence[int]) -> list[bytes]:
        return [self._keys[key] for key in keys]

    def _numbers(self, keys: Any) -> list[int]:
        return [self._number.get(bytes(key), 0) for key in keys]

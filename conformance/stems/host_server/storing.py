"""What is on its way between the host memory of a server and the storage behind it, for the law of ``host_tier``.

For the law an entry of the storage is a block beyond those of the device: a *fetch* is a store from such a block into a
slot, a *save* is a load from a slot into such a block. Two requests may fetch one text at a time, and the server keeps
one of the two; so each fetch has keys of its own, which tell what the text's keys tell.
"""

from __future__ import annotations

from collections.abc import Iterable

from conformance.driver.lockstep import Law
from conformance.stems.host_server.keys import KeyNumbers, with_room_for_copy, with_room_for_entry
from spec.finite import Seq
from spec.host_tier_state import HostTierState


class OnTheWay:
    """The fetches and the saves of one server, by the number that the engine gives each. ``blocks``: the number of the
    device's blocks in the law.
    """

    def __init__(self, law: Law, keys: KeyNumbers, blocks: int) -> None:
        self._law, self._keys, self._blocks = law, keys, blocks
        self._fetches: dict[int, dict[int, int]] = {}  # the copies of a fetch that have not ended, by slot
        self._saves: dict[int, dict[int, int]] = {}
        self._held: dict[int, list[int]] = {}  # the slots that a save holds until the server hears of its end

    @property
    def nothing(self) -> bool:
        """Nothing is on its way, and the server has heard of the end of each save."""
        return not (self._fetches or self._saves or self._held)

    def told(self) -> list[str]:
        """What is on its way, or is held, in words."""
        on_the_way = (("fetch", self._fetches), ("save", self._saves), ("hold of save", self._held))
        return [f"{what} {n}: slots {[*slots]}" for what, each in on_the_way for n, slots in each.items()]

    def staged(self, fetch: int, pages: Iterable[tuple[str, int, int]]) -> None:
        """Slots are taken, into which pages will come. ``pages``: of each the pool, the law's slot, and the prefix that
        the page ends.
        """
        for pool, slot, prefix in pages:
            told = self._keys.number((pool, prefix), self._law)
            key = self._keys.number((pool, prefix, fetch), self._law, told)
            self._law.engine_step("reserve", key, slot)
            job, entry = self._room()
            self._law.engine_step("write", entry, told)
            self._law.engine_step("store", job, key, Seq([entry]))
            self._fetches.setdefault(fetch, {})[slot] = job

    def fetched(self, fetch: int, slots: Iterable[int]) -> None:
        """Pages have come."""
        for slot in slots:
            self._law.engine_step("end", self._fetches[fetch].pop(slot), True)

    def fetch_ended(self, fetch: int) -> None:
        """No other page of the fetch will come."""
        for job in self._fetches.pop(fetch, {}).values():
            self._law.engine_step("end", job, False)

    def inserted(self, slots: Iterable[int]) -> None:
        """The server's cache has these slots now: their keys are found."""
        for slot in slots:
            self._law.engine_step("publish", self._state.key(slot))

    def saves(self, save: int, slots: Iterable[int]) -> None:
        """Slots will be read, and held until the server hears of the end."""
        for slot in slots:
            key = self._state.key(slot)
            self._law.engine_step("find", key, True)
            self._law.engine_step("promise", key)
            job, entry = self._room()
            self._law.engine_step("load", job, key, 0, Seq([entry]))
            self._saves.setdefault(save, {})[slot] = job
            self._held.setdefault(save, []).append(slot)

    def save_ended(self, save: int) -> None:
        """The slots of the save are read no more."""
        for job in self._saves.pop(save, {}).values():
            self._law.engine_step("end", job, True)

    def let_go(self, save: int) -> None:
        """The server has heard of the end of the save."""
        for slot in self._held.pop(save, ()):
            self._law.engine_step("withdraw", self._state.key(slot))

    def forget(self) -> None:
        """A reset: the server holds no slot for a save any more."""
        self._held.clear()

    def _room(self) -> tuple[int, int]:
        """Free numbers of a copy and of an entry."""
        self._law.state, job = with_room_for_copy(self._state)
        self._law.state, entry = with_room_for_entry(self._state, self._blocks)
        return job, entry

    @property
    def _state(self) -> HostTierState:
        state: HostTierState = self._law.state
        return state

"""What an engine must implement to be driven as the stem ``host_tier``: the manager of a tier of host memory.

All arguments and answers are plain Python numbers and lists, as ``conformance.driver.protocol`` says it. Beside that:

- A *key* is a number from 1 on: it stands for a run of tokens that is copied as one, such as vLLM's ``OffloadKey``.
- A *slot* is a number from 1 on: the place of one key in the memory of the host, such as vLLM's chunk.
- A *request* is a number from 1 on. It has a list of keys, those of its text from the beginning on.

The manager has no memory: it says which key has which slot. The copies between device and host are the driver's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from conformance.driver.protocol import Engine

FOUND, PENDING, ABSENT = "found", "pending", "absent"  # answers to a look-up
WRITTEN = -1  # the count of a key whose copy is not published


class Offered(NamedTuple):
    """What became of an offer.

    ``stored``: the keys that shall be copied to the host. ``slots``: the slot of each of them. ``evicted``: the keys
    that have left the host for them.
    """

    stored: Sequence[int]
    slots: Sequence[int]
    evicted: Sequence[int]


@dataclass(frozen=True)
class HostTierSnapshot:
    """The manager as it is now.

    ``slots``: the slot of each key that it has. ``refs``: for each of these keys how many loads it is promised to,
    ``WRITTEN`` where its copy is not published. A key that no request has is 0 there. ``free``: the free slots, in any
    order. ``available``: how many slots are free, as the manager reports it.

    ``evictable``: how many keys it counts as evictable; ``listed``: the keys that it has in its list of those;
    ``writing``: how many keys it counts as not published yet. Each of the three is ``None`` where the manager does not
    keep it. ``busy``: who calls the manager says that copies are under way, so that its server does not sleep.
    ``reading``: how many loads of each slot are in flight, as the workers were told; empty where nobody says it.
    """

    slots: Mapping[int, int]
    refs: Mapping[int, int]
    free: Sequence[int]
    available: int
    evictable: int | None = None
    listed: frozenset[int] | None = None
    writing: int | None = None
    busy: bool = False
    reading: Mapping[int, int] = field(default_factory=dict)


class HostTierEngine(Engine, Protocol):
    """The manager of a tier of host memory, as a scheduler calls it.

    Configuration: ``slots``, ``keys``, ``parts`` (device blocks that go into a slot), ``requests``, ``policy`` (in
    which order keys are evicted: "lru" or "arc"), ``threshold`` (how often a key must be seen before it is stored; 1:
    each key that is offered is stored), and ``events`` (it publishes KV events, see ``PublishingEngine``).
    """

    def begin(self, request: int, keys: Sequence[int]) -> None:
        """A request begins (vLLM ``on_new_request``). ``keys``: all its keys, in the order of its text."""

    def finish(self, request: int) -> None:
        """A request has finished (vLLM ``on_request_finished``): it offers and loads nothing more. Its jobs go on, and
        their ends may come later.
        """

    def look_up(self, request: int, key: int) -> str:
        """Whether a key can be loaded (vLLM ``lookup``): ``FOUND``; ``PENDING`` where its copy is under way; ``ABSENT``
        where it is not on the host. Changes no key.
        """

    def offer(self, request: int, keys: Sequence[int]) -> Offered | None:
        """Keys shall be stored (vLLM ``prepare_store``). They are all different, and on the device.

        The manager says which of them are copied and where to, and which other keys it has evicted for them. A key that
        is on the host already is not stored again, and not evicted. ``None`` if there are too few slots: then nothing
        is stored.
        """

    def stored(self, request: int, keys: Sequence[int], well: bool) -> None:
        """The copies of an offer have ended (vLLM ``complete_store``). ``well``: all of them did well, and the keys are
        found from now on; else they are not on the host any more. Sent once for each offer, for all keys that it
        stores. Not sent for an offer from before a reset.
        """

    def promise(self, request: int, keys: Sequence[int]) -> list[int]:
        """Keys that were just found are loaded (vLLM ``prepare_load``): the manager keeps them until ``loaded``.
        Returns their slots. One key may be promised to several requests.
        """

    def loaded(self, request: int, keys: Sequence[int]) -> None:
        """The loads of a promise have ended (vLLM ``complete_load``). Sent once for each promise, for all its keys. Not
        sent for a promise from before a reset.
        """

    def touch(self, request: int, keys: Sequence[int]) -> None:
        """Keys were used (vLLM ``touch``), be they on the host or not. It changes the order of eviction alone."""

    def reset(self) -> None:
        """The manager forgets every key (vLLM ``reset_cache``), also those that are copied at the moment.

        Copies in flight go on. The caller waits for their ends before it offers anything.
        """

    def snapshot(self) -> HostTierSnapshot:
        """Reads the manager as it is now, and changes nothing. Sent once after each call."""

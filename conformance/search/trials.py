"""Random clients of one scheduler of an engine, by the stem which drives it: what a repaired engine is tried with."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from functools import partial
from typing import Any, Protocol

from conformance.driver.protocol import Unsupported
from conformance.engines.registry import Loaded, every_kind
from conformance.stems.block_cache.crowd import Crowd
from conformance.stems.block_cache.rules import BlockCacheMachine
from conformance.stems.block_cache.run import BlockCacheRun
from conformance.stems.exclusions import looks_past
from conformance.stems.host_server import crowd as host_crowd
from conformance.stems.launches import Launches, configuration
from conformance.stems.machine import Sink
from conformance.stems.server import crowd as server_crowd
from conformance.stems.stem_registry import start

# By room, the crowd of its servers, and the field of ``Kinds`` that has the servers which an engine declares.
CROWDS: Mapping[str, tuple[Any, str]] = {"server": (server_crowd, "launches"), "host_server": (host_crowd, "hosting")}
Choices = Mapping[str, Any]
Avoid = Collection[StrEnum]


class RepairTrial(Protocol):
    """One scheduler and its clients. Raises ``Unsupported`` where there is none with these choices.

    ``batches``: the rounds of the scheduler that computed something. ``requests``: how many were sent.
    """

    @property
    def batches(self) -> int: ...

    @property
    def requests(self) -> int: ...

    def go(self) -> tuple[int, int]:
        """Drives it to its end. How many requests were taken back, since they waited for a reason that the law allows,
        and how many others are left. Raises the ``Finding`` of the law that breaks.
        """


class ServerTrial:
    """A server of the room ``server``, or with host memory of the room ``host_server``."""

    def __init__(self, room: str, loaded: Loaded, rng: random.Random, wanted: Choices, avoid: Avoid) -> None:
        self._crowd, declared = CROWDS[room]
        launches = getattr(loaded.kinds or every_kind(), declared)
        self._rng, self._avoid = rng, avoid
        config = configuration(server(rng, launches, wanted, avoid))
        self._lock = start(room, loaded.makers[room], config, ignores=looks_past(avoid))
        self._run: Any = self._lock.run

    @property
    def batches(self) -> int:
        """See ``RepairTrial``."""
        return int(self._run.batches)

    @property
    def requests(self) -> int:
        """See ``RepairTrial``."""
        return len(self._run.forks)

    def go(self) -> tuple[int, int]:
        """See ``RepairTrial``. Requests are taken back that wait behind idle sessions."""
        self._crowd.drive(self._lock, self._rng, self._avoid)
        found: tuple[int, int] = self._crowd.finish(self._lock, self._avoid)
        return found


def server(rng: random.Random, launches: Launches, wanted: Choices, avoid: Avoid = ()) -> Any:
    """The choices of a server: the wanted ones, and any others but those that are avoided."""
    numbers = {}
    for option, choices in launches.every.items():
        names = [choice.name for choice in choices]
        numbers[option] = names.index(wanted[option]) if option in wanted else rng.randrange(len(choices))
    return launches.chosen(numbers, avoid)


class SchedulerTrial:
    """A scheduler of the stem ``block_cache``."""

    def __init__(self, loaded: Loaded, rng: random.Random, wanted: Choices, avoid: Avoid) -> None:
        fixed = {"make": staticmethod(loaded.makers["block_cache"]), "run_class": BlockCacheRun, "sink": Sink()}
        more = {"exclude": avoid, "kinds": loaded.kinds or every_kind()}
        self._machine = type("Machine", (BlockCacheMachine,), {**fixed, **more})()
        self._rng, self._crowd = rng, Crowd(self._machine)
        if not self._crowd.begin(rng, wanted):
            raise Unsupported(f"no scheduler has {dict(wanted)}")

    @property
    def batches(self) -> int:
        """See ``RepairTrial``."""
        return self._crowd.batches

    @property
    def requests(self) -> int:
        """See ``RepairTrial``."""
        return int(self._machine.number)

    def go(self) -> tuple[int, int]:
        """See ``RepairTrial``. Requests are taken back for which the pool may have too few blocks."""
        self._crowd.drive(self._rng)
        waiting = self._crowd.finish()
        self._machine.drain()
        return (0, waiting) if self._machine.begun.fits_alone() else (waiting, 0)


TRIALS: Mapping[str, Callable[[Loaded, random.Random, Choices, Avoid], RepairTrial]] = {
    **{room: partial(ServerTrial, room) for room in CROWDS},
    "block_cache": SchedulerTrial,
}

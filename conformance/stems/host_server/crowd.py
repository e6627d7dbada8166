"""Random clients of a server with host memory, and its copies, for who drives many servers without Hypothesis."""

from __future__ import annotations

import random
from collections.abc import Collection
from enum import StrEnum

from conformance.driver.lockstep import LockStep
from conformance.stems.host_server.exclusions import allowed
from conformance.stems.host_server.rules import MOSTLY_WELL, TURNS, HostServerMachine
from conformance.stems.host_server.run import EVERY, HostServerRun
from conformance.stems.server import crowd
from conformance.stems.server.client import Client


def _copies_end(lock: LockStep, count: int) -> None:
    for stores in (True, False):
        lock.do("copies_end", stores=stores, count=count)


def drive(lock: LockStep, rng: random.Random, exclude: Collection[StrEnum]) -> None:
    """One run: random clients, the turns of their server, and copies that are done at random moments."""
    client, run = Client(lock.do, exclude), lock.run
    assert isinstance(run, HostServerRun)
    for _ in range(crowd.TURNS):
        for drawn in crowd.messages(rng):
            client.send(run, HostServerMachine.widened(drawn))
        if rng.random() < 0.7:
            _copies_end(lock, rng.choice((1, 2, EVERY)))
        for thread in run.engine.storage_threads:
            for _ in range(rng.choice((0, 1, 2, 2, 4))):
                lock.do("storage_goes_on", thread=thread, outcome=allowed(rng.choice(MOSTLY_WELL), exclude))
        lock.do("turn", times=rng.choice((1, 1, 2)))


def finish(lock: LockStep, _exclude: Collection[StrEnum] = ()) -> tuple[int, int]:
    """Lets a server do what it has left to do, with copies that are done. How many requests it still has then is the
    second number; none is taken back.
    """
    run = lock.run
    assert isinstance(run, HostServerRun)
    crowd.wake(lock.do, run)
    for _ in range(TURNS):
        _copies_end(lock, EVERY)
        for thread in run.engine.storage_threads * 2:
            lock.do("storage_goes_on", thread=thread, outcome="well")
        lock.do("turn", times=4)
        if not (run.here or run.coming):
            break
    return 0, len(run.here)

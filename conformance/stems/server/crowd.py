"""Random clients of a server, for who drives many servers without Hypothesis."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from enum import StrEnum

from conformance.driver.lockstep import LockStep
from conformance.stems.server.client import LEAST, MOST, Client, Drawn
from conformance.stems.server.run import ServerRun
from conformance.stems.server.served import ServedClients

TURNS = 60  # of a run
LONG = 300  # so many turns, and a server has done what it can


def messages(rng: random.Random) -> list[Drawn]:
    """What clients send before the server's next turns."""
    numbers = [*zip(LEAST, MOST, strict=True)]
    return [Drawn._make(rng.randint(*ends) for ends in numbers) for _ in range(rng.choice((0, 0, 1, 1, 2, 3)))]


def drive(lock: LockStep, rng: random.Random, exclude: Collection[StrEnum]) -> None:
    """One run: random clients and the turns of their server."""
    client, run = Client(lock.do, exclude), lock.run
    assert isinstance(run, ServerRun)
    for _ in range(TURNS):
        for drawn in messages(rng):
            client.send(run, drawn)
        client.turns(run, 70 if rng.random() < 0.03 else rng.choice((1, 1, 2)))


def wake(do: Callable[..., object], run: ServedClients) -> None:
    """A server that has given its memory back, or is paused, goes on. ``do`` sends an operation."""
    if run.released:
        do("resume_memory")
    if run.paused:
        do("resume")


def finish(lock: LockStep, exclude: Collection[StrEnum] = ()) -> tuple[int, int]:
    """Lets a server do what it has left to do, without new requests; then clients take back what still waits, and close
    their sessions. How many requests were taken back, and how many the server still has then. A request may wait for
    ever behind idle sessions that hold memory: the run of the stem tells which wait without such a reason.
    """
    run = lock.run
    assert isinstance(run, ServerRun)
    client = Client(lock.do, exclude)
    wake(lock.do, run)
    client.turns(run, LONG)
    while run.transfer_steps():
        client.settle(run)
        client.turns(run, LONG)
    waiting = sorted(run.here)
    for request in waiting:
        lock.do("abort", request=request)
    for session in sorted(run.sessions):
        lock.do("close", session=session)
    client.settle(run)
    lock.do("turn", times=LONG)
    return len(waiting), len(run.here)

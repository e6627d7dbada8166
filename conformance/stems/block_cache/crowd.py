"""Random requests of a scheduler, for who drives many schedulers without Hypothesis."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from conformance.driver.lockstep import Law
from conformance.driver.trace import Trace
from conformance.stems.block_cache.rules import (
    CONFIG,
    DRAFTS,
    HOST_POOLS,
    HOSTS,
    LAYERS,
    MOST_STEPS,
    TUNINGS,
    BlockCacheMachine,
)

ROUNDS = 12  # of a run
MOVES = (4, 8)  # of a round, at least and at most
LONG = 300  # so many steps, and a scheduler has done what it can
CHOICES: Mapping[str, tuple[Any, ...]] = {
    **{"layers": tuple(range(len(LAYERS))), "drafts": tuple(range(len(DRAFTS)))},
    **{"blocks": (10, 12, 14, 20), "batch": (8, 16), "steps_in_flight": (1, 2, 3), "threshold": (0, 0, 5, 0, 0, 3)},
    **{"policy": ("fcfs", "priority"), "caching": (True, True, True, False), "transfers": (False, False, True)},
    **{"reoffers": (True, False), "failure": ("recompute", "recompute", "fail"), "host": (None, *HOSTS, *HOST_POOLS)},
    **{"tuning": TUNINGS, "servers": (False, True), "workers": (1, 2), "events": (True, False)},
}
FORKS = (0, 4, 9, 40)
NUMBERED = ("layers", "drafts")  # a choice is a number here, and something else in a configuration
assert CHOICES.keys() == CONFIG.keys()


class Crowd:
    """Random requests, sent by the machine of the stem. ``batches``: the steps that computed something."""

    def __init__(self, machine: BlockCacheMachine) -> None:
        self.machine, self.batches = machine, 0
        machine.sink.after = self._after

    def begin(self, rng: random.Random, wanted: Mapping[str, Any]) -> bool:
        """Starts a run of a random configuration with what is wanted of it. False where the engine, or what the run
        has to avoid, leaves none.
        """
        drawn = {name: rng.choice(choices) for name, choices in CHOICES.items()}
        self.machine.start({**drawn, **wanted})
        if self.machine.run is None:
            return False
        has = self.machine.run.config
        return all(has.get(name) == value for name, value in wanted.items() if name not in NUMBERED)

    def drive(self, rng: random.Random) -> None:
        """Requests come and leave, steps are made and done, and now and then the prefix cache is reset."""
        for _ in range(ROUNDS):
            self.machine.go([_move(rng) for _ in range(rng.randint(*MOVES))])
            self.machine.reset(sure=rng.randrange(4), preempt=rng.random() < 0.5)

    def finish(self) -> int:
        """Lets the scheduler do what it has left to do, without new requests. How many requests it still has then."""
        for _ in range(LONG // MOST_STEPS):
            self.machine.finish()
        return len(self.machine.begun.waiting())

    def _after(self, trace: Trace, _: Law) -> None:
        flying = self.machine.begun.flying
        self.batches += trace.steps[-1]["op"] == "schedule" and bool(flying) and bool(flying[-1].passes)


def _move(rng: random.Random) -> tuple[int, int, int, int]:
    return rng.randrange(12), rng.randint(1, 24), rng.choice(FORKS), rng.randrange(3)

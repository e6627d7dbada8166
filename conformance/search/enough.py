"""The least that a search must have done before an engine can be said to conform, and how it goes on until then.

A search on a stem has done enough where it has sent ``OPERATIONS`` operations, and where each transition that the
engine claims (``conformance.stems.claims``) was taken ``TIMES`` times. Operations of kept traces count as those of
drawn runs do. Neither the number of runs that was asked for nor the clock ends a search before that: it goes on for at
most ``ROUNDS`` rounds of ``RUNS`` runs and for at most ``LONGEST`` seconds, and then the stem is not judged.

These rounds look for what was reached too seldom. Only configurations are drawn in which the engine claims some of it;
and in every second round the runs begin with kept traces that reach some of it, and go on from there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import cached_property
from typing import Any
from zlib import crc32

from conformance.driver.clock import Clock
from conformance.driver.lockstep import Law
from conformance.driver.protocol import Json, Unsupported
from conformance.driver.trace import Trace
from conformance.engines.registry import every_kind
from conformance.stems.claims import claimed
from conformance.stems.kinds import Kinds
from conformance.stems.machine import Sink, wants_all
from conformance.stems.stem_registry import ROOMS, start

OPERATIONS = 200  # on each stem
TIMES = 3  # how often each claimed transition is taken at least
ROUNDS, RUNS = 16, 20  # rounds that a search goes on, and runs of each
LONGEST = 600.0  # seconds that these rounds take at most
NOT_ENOUGH = "not enough"  # the verdict on a stem on which too little was done


def too_seldom(claims: Collection[str], transitions: Json) -> list[str]:
    """Those of the claimed transitions that were taken too seldom. ``transitions``: see ``Sink.transitions``."""
    return sorted(name for name in claims if transitions.get(f"{name} done", 0) < TIMES)


class Effort:
    """What was done on a stem, and what is still to do.

    ``sink`` counts what is done. ``make`` builds engines; the configurations that the stem's ``claims.py`` lists are
    tried too, so that what the engine claims does not depend on which configurations are drawn. ``kinds``: see
    ``Search``.
    """

    def __init__(self, stem: str, make: Callable[[Json], Any], sink: Sink, kinds: Kinds | None = None) -> None:
        self.stem, self.sink, self.kinds = stem, sink, kinds
        self._claims: set[str] = set()
        self.reaching: dict[str, list[Trace]] = {}
        self.limit = Clock(LONGEST)
        self.make = make
        sink.begun = self._begun

    def _begun(self, config: Json, lacks: Collection[str]) -> None:
        self._claims |= claimed(ROOMS[self.stem].claims, config, lacks)

    @cached_property
    def probed(self) -> int:
        """How many of the configurations that the stem lists the engine accepts. They are tried once."""
        accepted = 0
        for probe in ROOMS[self.stem].probes(self.kinds or every_kind()):
            with suppress(Unsupported):
                self._begun(dict(probe), start(self.stem, self.make, dict(probe)).run.lacks)
                accepted += 1
        return accepted

    @property
    def claims(self) -> set[str]:
        """The transitions that the engine claims."""
        return self._claims if self.probed else {*self._claims}

    @property
    def too_seldom(self) -> list[str]:
        """The claimed transitions that were taken too seldom up to now."""
        return too_seldom(self.claims, self.sink.transitions)

    @property
    def enough(self) -> bool:
        """Enough was done."""
        return self.sink.steps >= OPERATIONS and not self.too_seldom

    def replayed(self, trace: Trace, law: Law, clean: bool) -> None:
        """Counts the operations of a kept trace. ``clean``: all of them were sent, and they broke no law."""
        self.sink.add(law)
        self.sink.steps += len(trace.steps)
        if clean:
            for name in {name for (name, outcome), n in law.counts.items() if outcome == "done"}:
                self.reaching.setdefault(name, []).append(trace)

    def rounds(self, seed: int | None) -> Iterator[int]:
        """The seeds of further rounds, until enough is done. Each round is steered while the caller draws its runs."""
        self.limit.begin()
        fresh = self.sink.beginning
        try:
            for number in range(ROUNDS):
                if self.enough or self.limit.is_up():
                    return
                missing = frozenset(self.too_seldom)
                self.sink.wanted = self._able_to_take(missing) if missing else wants_all
                self.sink.beginning = self._beginning(missing) if number % 2 else fresh
                yield (seed or 0) * 100_003 + 50_021 + number
        finally:
            self.sink.wanted, self.sink.beginning = wants_all, fresh

    def _able_to_take(self, missing: frozenset[str]) -> Callable[[Json, Collection[str]], bool]:
        """Whether a run in a configuration can take one of these transitions."""
        claims = {name: claim for name, claim in ROOMS[self.stem].claims.items() if name in missing}
        return lambda config, lacks: bool(claimed(claims, config, lacks))

    def _beginning(self, missing: Collection[str]) -> Callable[[Json], Trace | None]:
        """The kept trace with which a run begins, for each drawn configuration; ``None`` for a fresh run."""
        known = [trace for name in sorted(missing) for trace in self.reaching.get(name, [])]

        def begins(config: Json) -> Trace | None:
            return known[crc32(json.dumps(config, sort_keys=True).encode()) % len(known)] if known else None

        return begins

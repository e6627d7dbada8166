"""The search for the kept causes of an engine from nothing: no trace is replayed and no known difference is avoided.

Two judges search a release side by side, as ``slotproof check`` searches. One judge takes the stems that drive the
engine's own scheduler, in turn. The other takes one of these and one of the other stems by turns: what clients can
cause shows on schedulers, so they have three quarters of the time.

What is found is repaired, as a developer would do it: where the repair of a cause mends a finding, the search goes on
with that repair. A finding that no repair mends ends its judgement, and the next one begins from another seed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, cycle

from conformance.driver.protocol import EngineError, Json
from conformance.search.connection import EngineDied, Served, Subject, ToolError
from slotproof.checks.by_cause import name_causes

SHARE = 30.0  # seconds of a judgement, with shrinking
# Seconds in which a run is made smaller: enough to leave out what most runs send beside their cause. The rest of the
# time finds more.
SHRINKING = 4.0
SEEDS = 1_000  # of the judgements of one search
SHOWN = ("law", "severity", "detail", "name", "cause")


@dataclass
class BlindSearch:
    """One search of a release. ``deadline``: when it ends, as ``time.monotonic`` counts. ``repairs``: the causes that
    were found, in their order, each with the second of the search in which it was named. ``found``: every finding.
    ``failed``: judgements in which Slotproof itself or a repair failed, so that there is no verdict.
    """

    served: Served
    deadline: float
    begun: float = field(default_factory=time.monotonic)
    repairs: dict[str, float] = field(default_factory=dict)
    found: list[Json] = field(default_factory=list)
    judged: list[Json] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def judge(self, stems: Iterator[str], seeds: Iterator[int]) -> None:
        """Judges these stems, one after another, until the time is over."""
        for stem, seed in zip(stems, seeds, strict=False):
            left = self.deadline - time.monotonic()
            if left < 1:
                return
            with self.lock:
                repairs = list(self.repairs)
            asked = {
                **{"do": "alone", "stem": stem, "engine": self.served.subject.engine, "run": f"{stem}-{seed}"},
                **{"seconds": min(SHARE, left), "seed": seed, "examples": None, "steps": 0},
                **{"strict": False, "listed": None, "first": True, "drawn_alone": True},
                **{"shrinking": SHRINKING, "untold": True},
            }
            try:
                with self.served.connect(repairs) as connection:
                    told = connection.ask(asked)
            except EngineDied:
                told = {"steps": 0, "new": [], "runs": 0}
            except (EngineError, ToolError) as error:
                with self.lock:
                    self.failed.append(f"{stem}, seed {seed}: {error}")
                continue
            name_causes(told["new"], self.served, self.deadline, repairs)
            self._add(stem, seed, told, repairs)

    def _add(self, stem: str, seed: int, told: Json, repairs: Sequence[str]) -> None:
        second = round(time.monotonic() - self.begun, 1)
        with self.lock:
            self.judged.append({"stem": stem, "seed": seed, "runs": told["runs"], "operations": told["steps"]})
            for row in told["new"]:
                if row["cause"]:
                    self.repairs.setdefault(row["cause"], second)
                shown = {key: row[key] for key in SHOWN}
                run = {} if row["cause"] else {"trace": row["trace"]}  # nobody has a trace of it yet
                self.found.append({"stem": stem, "seed": seed, "second": second, "repairs": [*repairs], **shown, **run})


def turns(stems: Sequence[str], schedulers: Sequence[str]) -> list[Iterator[str]]:
    """For each judge the stems that it judges, one after another, without end. ``schedulers``: the stems that drive an
    engine's own scheduler.
    """
    real = [stem for stem in stems if stem in schedulers]
    others = [stem for stem in stems if stem not in schedulers]
    if not (real and others):
        return [cycle(stems)] if stems else []
    return [cycle(real), chain.from_iterable(zip(cycle(reversed(real)), cycle(others), strict=False))]


def search(subject: Subject, schedulers: Sequence[str], seed: int, seconds: float) -> Json:
    """Searches a release from nothing. ``schedulers``: the stems that drive an engine's own scheduler. The result:
    what was found, and what was done.
    """
    with Served(subject) as served:
        stems = served.ready()["stems"]  # the time begins when the engine is loaded
        one = BlindSearch(served, time.monotonic() + seconds)
        firsts = seed * SEEDS, (seed * SEEDS + 1) * SEEDS * SEEDS
        judges = [
            threading.Thread(target=one.judge, args=(turn, iter(range(first, first + SEEDS))))
            for turn, first in zip(turns(stems, schedulers), firsts, strict=False)
        ]
        for judge in judges:
            judge.start()
        for judge in judges:
            judge.join()
        return {"seed": seed, "causes": one.repairs, "found": one.found, "judged": one.judged, "failed": one.failed}

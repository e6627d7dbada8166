"""How far servers of a release are driven, and how fast: ``python -m benchmarks.servers ENGINE RELEASE``.

Random clients send messages to servers of drawn flags until ``--batches`` turns with a batch were judged. Printed are
the turns with a batch of each option, the pairs of options that were never driven, what broke a law, the transitions
that were never taken, and how many judged turns a second were made on one processor. A run ends with the first law that
breaks in it; clients avoid what is known of the release.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import logging
import pstats
import random
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import combinations
from pathlib import Path
from typing import Any

from conformance.driver.lockstep import Finding, LockStep
from conformance.driver.protocol import EngineError, Unsupported
from conformance.engines import registry
from conformance.search.judge import excluded, listed_of
from conformance.stems.launches import LaunchChoice, Launches, configuration
from conformance.stems.server.crowd import drive
from conformance.stems.stem_registry import start


def server(
    rng: random.Random, launches: Launches, plain: Collection[str], exclude: Collection[StrEnum]
) -> dict[str, LaunchChoice]:
    """The choices of a server. ``plain``: the options that stay plain."""
    numbers = {name: rng.randrange(len(choices)) for name, choices in launches.every.items()}
    return launches.chosen(numbers | dict.fromkeys(plain, 0), exclude)


@dataclass
class Tally:
    """What was done in all runs."""

    batches: int = 0
    turns: int = 0
    runs: int = 0
    names: tuple[str, ...] = ()
    by_option: Counter[str] = field(default_factory=Counter)
    by_pair: Counter[tuple[str, str]] = field(default_factory=Counter)
    taken: Counter[str] = field(default_factory=Counter)
    broken: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def ran(self, lock: LockStep, chosen: Mapping[str, LaunchChoice]) -> None:
        """Adds a run on a server with these choices."""
        run: Any = lock.run
        self.runs, self.batches, self.turns = self.runs + 1, self.batches + run.batches, self.turns + run.engine.turns
        self.names = tuple(lock.law.stem.transitions)
        self.taken.update({name: n for (name, outcome), n in lock.law.counts.items() if outcome == "done"})
        names = [f"{option}: {choice.name}" for option, choice in chosen.items()]
        self.by_option.update(dict.fromkeys(names, run.batches))
        self.by_pair.update(dict.fromkeys(combinations(names, 2), run.batches))

    @property
    def least_of_a_pair(self) -> int:
        """The turns with a batch of the pair of options that was driven least, of those that were driven."""
        return min((batches for batches in self.by_pair.values() if batches), default=0)

    @property
    def never_paired(self) -> list[str]:
        """The pairs of options that were never driven."""
        return [" with ".join(pair) for pair, batches in self.by_pair.items() if not batches]

    @property
    def never_taken(self) -> list[str]:
        """The transitions that were never taken."""
        return [name for name in self.names if not self.taken[name]]

    def as_json(self) -> dict[str, Any]:
        """What was done, as plain data."""
        return {
            **{"batches": self.batches, "runs": self.runs, "pairs": len(self.by_pair)},
            **{"least_of_a_pair": self.least_of_a_pair, "never_paired": self.never_paired},
            "never_taken": self.never_taken,
            "broken": dict(sorted(self.broken.items())),
        }

    def tell(self, seconds: float) -> None:
        """Prints what was done in so many seconds of processor time."""
        done = f"{self.batches} turns with a batch, of {self.turns}, in {self.runs} runs"
        print(f"{done}: {seconds:.0f} s of CPU, {self.batches / seconds:.0f} judged turns with a batch a second")
        print("turns with a batch:")
        print("".join(f"  {name}: {n}\n" for name, n in sorted(self.by_option.items())), end="")
        never = self.never_paired
        driven = f"{len(self.by_pair) - len(never)} of {len(self.by_pair)} pairs of options"
        print(f"{driven}, each in {self.least_of_a_pair} turns at least")
        print("".join(f"  never: {pair}\n" for pair in never), end="")
        print("never taken:", ", ".join(self.never_taken))
        print(f"{sum(map(len, self.broken.values()))} of {self.runs} runs broke a law")
        for law, found in sorted(self.broken.items(), key=lambda pair: -len(pair[1])):
            print(f"  {law}: {len(found)} runs, such as {found[0]}")


def pairs(launches: Launches) -> list[tuple[str, str]]:
    """Every pair of choices of two options that the engine does not refuse."""
    every = [(option, choice.name) for option, choices in launches.every.items() for choice in choices]
    two = ((a, b) for a, b in combinations(every, 2) if a[0] != b[0] and frozenset({a, b}) not in launches.never)
    return [(": ".join(a), ": ".join(b)) for a, b in two]


def arguments() -> argparse.Namespace:
    """What was asked for."""
    asked = argparse.ArgumentParser(prog="python -m benchmarks.servers")
    asked.add_argument("engine")
    asked.add_argument("release")
    asked.add_argument("--batches", type=int, default=2000)
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--plain", nargs="*", default=[], help="options that are not drawn, such as sessions")
    asked.add_argument("--unlisted", action="store_true", help="avoid no known difference of the release")
    asked.add_argument("--json", type=Path, help="add what was done to this file, by the release and the seed")
    asked.add_argument("--profile", action="store_true", help="print where the time goes")
    return asked.parse_args()


def main() -> int:
    """Drives servers and prints what was done."""
    given, profile = arguments(), cProfile.Profile()
    logging.disable()  # a server tells of each request that it refuses
    loaded = registry.load(given.engine, release=given.release)
    launches = (loaded.kinds or registry.every_kind()).launches
    exclude = () if given.unlisted else excluded("server", listed_of({"engine": given.engine, "listed": given.release}))
    tally = Tally(by_pair=Counter(dict.fromkeys(pairs(launches), 0)))
    seed, begun = given.seed * 1_000_000, time.process_time()
    while tally.batches < given.batches:
        seed += 1
        rng = random.Random(seed)
        chosen = server(rng, launches, given.plain, exclude)
        try:
            lock = start("server", loaded.makers["server"], configuration(chosen))
        except Unsupported:
            continue
        with profile if given.profile else nullcontext():
            try:
                drive(lock, rng, exclude)
            except (Finding, EngineError) as error:
                law = error.law if isinstance(error, Finding) else "no verdict"
                tally.broken[law].append(f"seed {seed}: {str(getattr(error, 'detail', error))[:100]}")
        tally.ran(lock, chosen)
    tally.tell(time.process_time() - begun)
    if given.json is not None:
        kept = json.loads(given.json.read_text("utf-8")) if given.json.exists() else {}
        kept.setdefault(f"{given.engine} {given.release}", {})[str(given.seed)] = tally.as_json()
        given.json.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    if given.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

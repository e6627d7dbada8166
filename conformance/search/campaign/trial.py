"""One trial of a campaign: drawn runs of one stem from one seed, on an engine in a process of its own.

A trial is asked for and answered as plain data, since it crosses a process boundary. It knows what the campaign has
found and reached before: it looks past the findings, and keeps the runs that reach something new.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from zlib import crc32

from conformance.driver.lockstep import LATENT, VIOLATION, Finding, Law
from conformance.driver.protocol import Json
from conformance.driver.trace import Trace
from conformance.engines.registry import Loaded
from conformance.search.campaign import coverage
from conformance.search.campaign.coverage import NOT_OFFERED, Item
from conformance.search.hunt import SHAPES, Hunt, HuntLimits
from conformance.search.judge import Make, Progress, difference_row, excluded, listed_of
from conformance.search.ran import Ran
from conformance.traces.compare import Status
from conformance.traces.outcome import Outcome, outcome

DISTINCT, RARE = "distinct", "rare"
STEERED = (DISTINCT, RARE)  # how runs can be valued, see ``Trial.worth``
FRESH = 3  # of so many drawn configurations, one begins with a kept trace where there is one
MOST_KEPT = 30  # runs that a trial keeps since they reach something new


def key_of(finding: Finding) -> tuple[str, str, str]:
    """What makes a finding of a stem distinct: the law, the kind of the breach, and its severity."""
    return finding.law, finding.kind, LATENT if finding.latent else VIOLATION


class Trial:
    """What a trial keeps while its runs are drawn.

    ``known``: for each finding of the campaign, by its key, the operations of its traces. ``reached``: the items that
    the campaign has reached. ``kept``: traces with which some of the runs begin. ``steer``: one of ``STEERED``, or
    empty.
    """

    def __init__(self, asked: Json) -> None:
        self.stem: str = asked["stem"]
        self.known: dict[tuple[str, str, str], list[list[str]]] = {tuple(key): ops for key, ops in asked["known"]}
        self.reached: set[Item] = {(name, promise, outcome) for name, promise, outcome in asked["reached"]}
        self.kept = [Trace(**data) for data in asked["kept"]]
        self.steer: str = asked["steer"]
        self.again: Counter[tuple[str, str, str]] = Counter()
        self.covering: list[Json] = []
        self.met: Counter[Item] = Counter()
        self._last: tuple[Law | None, int] = (None, 0)

    def seen(self, finding: Finding, trace: Trace) -> bool:
        """The campaign has this finding with a trace that most likely shows it in a shorter way, or with many."""
        key = key_of(finding)
        shapes = self.known.get(key, [])
        operations = {step["op"] for step in trace.steps}
        last = trace.steps[-1]["op"]
        is_known = len(shapes) >= SHAPES or any(ops[-1] == last and {*ops} <= operations for ops in shapes)
        self.again[key] += is_known
        return is_known

    def after(self, trace: Trace, law: Law) -> None:
        """Keeps the run up to here if it has just reached an item that was never reached before."""
        size = len(law.counts) + len(law.promised)
        if self._last == (law, size):
            return
        self._last = law, size
        new = coverage.of_law(law).keys() - self.reached
        if new and len(self.covering) < MOST_KEPT:
            self.covering.append({"trace": _copied(trace), "items": sorted(new)})
        self.reached |= new

    def beginning(self, config: Json) -> Trace | None:
        """The kept trace with which a run of a drawn configuration begins; ``None`` for a fresh run."""
        if not self.kept:
            return None
        drawn = crc32(json.dumps(config, sort_keys=True).encode())
        return self.kept[drawn // FRESH % len(self.kept)] if drawn % FRESH == 0 else None

    def worth(self, law: Law) -> float | None:
        """What a run is worth: the number of items that it has met, or this number where an item counts the less the
        more runs of the trial have met it.
        """
        if not self.steer:
            return None
        found = coverage.of_law(law).keys()
        self.met.update(found)
        return float(len(found)) if self.steer == DISTINCT else sum(1 / self.met[item] for item in found)


def _shows(trace: Trace, make: Make, progress: Progress) -> list[list[str]]:
    """The findings that a trace shows on the engine, by their keys."""
    progress("kept traces", trace, None, 0)
    return [[found.law, found.kind, found.severity] for found in outcome(trace, make).breaks]


def _copied(trace: Trace) -> Json:
    return Trace(trace.stem, dict(trace.config), [dict(step) for step in trace.steps]).as_json()


def trial(loaded: Loaded, asked: Json, progress: Progress) -> Json:
    """The runs that ``asked`` describes (``slotproof.commands.campaign.Campaign.trial``). They go on past findings."""
    stem, mine = asked["stem"], Trial(asked)
    make = Ran(loaded.makers[stem])
    replayed = [[file, _shows(Trace(**trace), make, progress)] for file, trace in asked["replay"]]
    examples: int = asked["examples"]
    limits = HuntLimits(
        examples,
        asked["seconds"],
        asked["seed"],
        together=examples,
        avoid=True,
        steered=bool(asked["steer"]),
        kinds=loaded.kinds,
    )
    hunt = Hunt(stem, make, lambda _: Outcome(), limits, progress, mine.seen)
    hunt.sink.after, hunt.sink.beginning, hunt.sink.worth = mine.after, mine.beginning, mine.worth
    hunted = hunt.run([], excluded(stem, listed_of(asked)))
    counts = Counter({(name, "", outcome): n for (name, outcome), n in hunt.sink.counts.items()})
    counts.update(hunt.sink.promised)
    counts.update((name, "", NOT_OFFERED) for name in hunt.sink.lacks)
    new = [
        shape
        for d in hunted.differences
        if d.status is not Status.KNOWN
        for shape in (replace(d, shapes=(), times=1), *(replace(other, times=1) for other in d.shapes))
    ]
    return {
        **{"runs": hunted.runs, "steps": hunted.steps, "cut_short": hunted.cut_short, "seconds": hunted.seconds},
        **{"coverage": coverage.rows(counts), "covering": mine.covering, "ran": make.as_json()},
        **{"replayed": replayed, "claimed": sorted(hunt.done.effort.claims) if asked["claims"] else None},
        "findings": [difference_row(found, loaded, hunt.done) for found in new],
        "again": [[list(key), times] for key, times in sorted(mine.again.items()) if times],
    }

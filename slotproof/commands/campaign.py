"""``slotproof campaign``: random runs of an engine for hours, on all processors or on a cluster.

Trials are dealt out to workers (``conformance.search.campaign.workers``), and their results add up in a folder
(``conformance.search.campaign.store``) from which the campaign goes on when the command is called again.
"""

from __future__ import annotations

import json as jsonlib
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from conformance.driver.lockstep import VIOLATION
from conformance.driver.protocol import Json
from conformance.engines import registry
from conformance.search.campaign import coverage, workers
from conformance.search.campaign.coverage import KnownTransition
from conformance.search.campaign.known import transitions as known_transitions
from conformance.search.campaign.store import DISTINCT, Looked, Store, replace_text
from conformance.search.connection import Subject
from conformance.search.enough import LONGEST, NOT_ENOUGH, OPERATIONS, too_seldom
from conformance.stems.found import rooms
from slotproof.checks import weigh
from slotproof.commands import appeared
from slotproof.commands.campaign_view import View, show
from slotproof.console import version
from slotproof.console.codes import BROKEN, FAILED, HOLDS
from slotproof.console.screen import choose, say, write_json

SCHEMA = 1
EXAMPLES = 40  # drawn runs of a trial
LONGEST_TRIAL = 120.0  # seconds after which a trial draws no more
BEGINNINGS = 8  # kept runs with which runs of a trial begin


@dataclass(frozen=True)
class CampaignOptions:
    """What was asked for on the command line.

    ``seconds``: how long trials are begun. ``folder``: where the campaign is kept. ``ray``: the address of a Ray
    cluster, ``None`` for processes of this machine. ``steer``: how runs are valued
    (``conformance.search.campaign.trial.STEERED``), empty for runs that are drawn blindly. ``limit``: the seconds that
    one call of the engine may take.
    """

    subject: Subject
    seconds: float
    folder: Path
    stems: tuple[str, ...] = ()
    workers: int | None = None
    seed: int | None = None
    ray: str | None = None
    steer: str = ""
    limit: float = 60.0
    json: Path | None = None


class Campaign:
    """A campaign that is under way: it makes the trials."""

    def __init__(self, options: CampaignOptions, stems: list[str], store: Store) -> None:
        self.options, self.stems, self.store = options, stems, store
        self.begun = time.monotonic()
        self._replayed: set[str] = set()

    @property
    def left(self) -> float:
        """The seconds in which trials may still be begun."""
        return self.options.seconds - (time.monotonic() - self.begun)

    def asked(self) -> Iterator[Json]:
        """The trials, by their numbers, until the time is over. Those that have ended before are left out.

        The campaign goes on beyond its time, for ``LONGEST`` seconds at most, where no violation was found and too
        little was done on a stem: then with the trials of such stems alone.
        """
        number = -1
        while self.left > -LONGEST:
            number += 1
            if self.left <= 0 and not self._goes_on():
                return
            lacks = self.left > 0 or not enough(self.store.stems.get(self.stem_of(number)))
            if number not in self.store.done and lacks:
                yield self.trial(number)

    def _goes_on(self) -> bool:
        """Too little was done on a stem, and no violation was found."""
        broken = any(f["severity"] == VIOLATION and not f["gone"] for f in self.store.findings)
        failed = any(one["kind"] != workers.KILLED for one in self.store.lost)
        return not broken and not failed and not all(enough(self.store.stems.get(stem)) for stem in self.stems)

    def stem_of(self, number: int) -> str:
        """The stem of a trial: each in its turn."""
        return self.stems[number % len(self.stems)]

    def trial(self, number: int) -> Json:
        """What a trial is told: its stem and its seed, what is known and reached, and kept runs to begin with. The
        first trial of each stem replays what was found before.
        """
        stem, seed = self.stem_of(number), self.store.seed_of(number)
        left = self.left if self.left > 0 else LONGEST_TRIAL
        replay = [] if stem in self._replayed else self.store.to_replay(stem)
        self._replayed.add(stem)
        kept = self.store.stems.get(stem)
        beginnings = self.store.covering(stem)
        subject = self.options.subject
        return {
            **{"do": "trial", "run": str(number), "number": number, "stem": stem, "seed": seed},
            **{"engine": subject.engine, "listed": subject.release, "examples": EXAMPLES, "steer": self.options.steer},
            **{"seconds": min(LONGEST_TRIAL, max(left, 1.0)), "limit": self.options.limit, "replay": replay},
            "known": [
                [[f[name] for name in DISTINCT[1:]], [_operations(shape["trace"]) for shape in f["shapes"]]]
                for f in self.store.findings
                if f["stem"] == stem
            ],
            "reached": [] if kept is None else [list(item) for item in kept.counts],
            "claims": kept is None or kept.claimed is None,
            "kept": Random(seed).sample(beginnings, min(BEGINNINGS, len(beginnings))),
        }


def run(options: CampaignOptions) -> int:
    """Does the campaign, writes the report, prints it, and returns the exit code."""
    looking = appeared.Looking(appeared.of_engine(options.subject.engine))
    report = report_of(options)
    news = looking.news()
    report["index"] = next(iter(appeared.as_json(news)), None)
    write_json(options.json, report)
    show(report)
    for one in news:
        if line := one.line():
            say(line, style="yellow")
    return int(report["exit"])


def report_of(options: CampaignOptions) -> Json:
    """The report of a campaign as plain data; ``docs/json.md`` says what its fields mean."""
    with _trials(options) as (hello, at_a_time, runs, view):
        stems = choose(options.stems, hello["stems"], "stem of this engine")
        store = Store.open(options.folder, _subject(options.subject), options.seed, secrets.randbits(32))
        try:
            campaign = Campaign(options, stems, store)
            known = {stem: known_transitions(stem) for stem in {**dict.fromkeys(stems), **store.stems}}
            with view.of(hello["label"], store, known):
                for asked, result in runs(campaign.asked()):
                    view.ended(asked, result, store.add(asked, result))
            return _report(options, hello, at_a_time, campaign, view, known)
        finally:
            store.close()


def must_be_known(subject: Subject) -> None:
    """Raises ``UsageError`` or ``EngineError`` if there is no such engine, stem or option."""
    choose(subject.stems, rooms(), "stem")
    registry.must_have(subject.engine, subject.options)
    registry.plugin(subject.engine)


@contextmanager
def _trials(options: CampaignOptions) -> Iterator[tuple[Json, int, workers.Runs, View]]:
    """What was loaded, how many trials are done at a time, who does them, and what shows them."""
    view = View(options.seconds)
    if options.ray is None:
        at_a_time = options.workers or processors()
        with workers.processes(options.subject, at_a_time, view.heard, options.limit) as (hello, runs):
            yield hello, at_a_time, runs, view
    else:
        from conformance.search.campaign import cluster

        with cluster.tasks(options.subject, options.workers, options.ray) as (hello, at_a_time, runs):
            yield hello, at_a_time, runs, view


def _subject(subject: Subject) -> Json:
    """What makes a campaign one: another engine, release, folder or option has a campaign of its own."""
    source = None if subject.source is None else str(subject.source.resolve())
    named = {"engine": subject.engine, "release": subject.release, "source": source, "device": subject.device}
    return {**named, "options": dict(subject.options)}


def _operations(trace: Json) -> list[str]:
    return [step["op"] for step in trace["steps"]]


# The report.


def _report(
    options: CampaignOptions,
    hello: Json,
    at_a_time: int,
    campaign: Campaign,
    view: View,
    known: dict[str, dict[str, KnownTransition]],
) -> Json:
    store = campaign.store
    results = [_of_stem(stem, store, names) for stem, names in known.items()]
    replace_text(
        options.folder / "coverage.json", jsonlib.dumps({r["stem"]: r["coverage"] for r in results}, indent=1) + "\n"
    )
    report = {
        **{"schema": SCHEMA, "slotproof": version.of("slotproof"), "folder": str(options.folder)},
        "subject": {**store.subject, **{name: hello[name] for name in ("label", "own", "notes", "isolation", "roots")}},
        "options": {
            **{"stems": list(options.stems), "seconds": options.seconds, "workers": at_a_time, "ray": options.ray},
            **{"steer": options.steer, "limit": options.limit},
        },
        "seed": store.seed,
        "now": {
            "seconds": round(time.monotonic() - campaign.begun, 1),
            **{"trials": view.trials, "steps": view.steps},
        },
        "total": {
            **{"trials": len(store.done), "seconds": round(store.seconds, 1)},
            **{name: sum(r[name] for r in results) for name in ("runs", "steps")},
        },
        **{"findings": store.findings, "lost": store.lost, "results": results, "index": None},
    }
    code, reason = _exit(report)
    return {**report, "exit": code, "reason": reason}


def _of_stem(name: str, store: Store, known: dict[str, KnownTransition]) -> Json:
    stem = store.stems.get(name)
    looked: dict[str, Any] = {"trials": 0, "runs": 0, "steps": 0, "ran": {}}
    if stem is not None:
        looked = {field: getattr(stem, field) for field in looked}
    kept = [] if stem is None else stem.covering
    counts = {} if stem is None else stem.counts
    claims, seldom = ([], []) if stem is None else (stem.claimed or [], seldom_of(stem))
    said = {**looked, "transitions": transitions_of(counts), "too_seldom": seldom}
    done = enough(stem)
    return {
        **{"stem": name, **looked, "enough": done, "too_little": "" if done else weigh.too_little(said)},
        **{"claimed": claims, "too_seldom": seldom},
        **{"covering": kept, "coverage": coverage.table(name, known, counts)},
    }


def transitions_of(counts: Mapping[coverage.Item, int]) -> dict[str, int]:
    """How often each transition had which outcome, such as "alloc done"."""
    return {f"{name} {outcome}": n for (name, promise, outcome), n in counts.items() if not promise}


def seldom_of(stem: Looked) -> list[str]:
    """The transitions that the engine claims and the campaign has taken too seldom."""
    return too_seldom(stem.claimed or [], transitions_of(stem.counts))


def enough(stem: Looked | None) -> bool:
    """Enough was done on a stem, see ``conformance.search.enough``."""
    return stem is not None and stem.steps >= OPERATIONS and stem.claimed is not None and not seldom_of(stem)


def _exit(report: Json) -> tuple[int, str]:
    """The exit code and its reason. A latent finding alone fails only our own implementation."""
    here = [f for f in report["findings"] if not f["gone"]]
    if any(f["severity"] == VIOLATION or report["subject"]["own"] for f in here):
        return BROKEN, "a law is broken"
    without = [one for one in report["lost"] if one["kind"] != workers.KILLED]
    if without:
        return FAILED, f"no verdict in {len(without)} trials: {without[0]['why'].splitlines()[0]}"
    few = [f"{r['stem']} ({r['too_little']})" for r in report["results"] if not r["enough"]]
    if few:
        return FAILED, f"{NOT_ENOUGH}, so no verdict: {'; '.join(few)}"
    return HOLDS, "no violation" if here else "every law holds"


# What is asked for.


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def folder_of(subject: Subject) -> Path:
    """The folder of a campaign where the user names none."""
    parts = [subject.engine, subject.release or "", *(f"{name}-{value}" for name, value in subject.options)]
    name = "-".join(part for part in parts if part).replace(":", "-").replace("/", "-")
    return Path(f"campaign-{name}")

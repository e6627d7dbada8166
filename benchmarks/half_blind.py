"""How many of the kept causes of an engine are found from nothing: ``python -m benchmarks.half_blind ENGINE RELEASE``.

For each seed the release is searched for some minutes by two judges side by side, as ``slotproof check`` searches: one
on the engine's own scheduler, one on all stems in turn. No trace is replayed and no known difference is avoided. What
is found is repaired, as a developer would do it: where the repair of a cause mends a finding, the search goes on with
that repair. A finding that no repair mends ends its judgement, and the next one begins from another seed.

A cause is *even* where the SHA-256 of its name ends in an even hexadecimal digit. Even causes may be used to shape the
rules and weights of the search, the odd ones may not. The result is docs/measurements/half_blind.json and .md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from conformance.driver.protocol import Json
from conformance.search.connection import EngineDied, Served, Subject, ToolError
from slotproof.checks.by_cause import name_causes
from slotproof.pages import kept_findings

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "measurements"
CATALOGUE = FOLDER.parent / "catalogue.json"
SCHEDULER = "server"
SHARE = 45.0  # seconds of a judgement, with shrinking


def is_even(name: str) -> bool:
    """The last hexadecimal digit of the SHA-256 of a name is even."""
    return int(hashlib.sha256(name.encode()).hexdigest()[-1], 16) % 2 == 0


@dataclass
class Searched:
    """One search of a release. ``repairs``: the causes that were found, in their order, each with the second of the
    search in which it was named. ``found``: every finding. ``failed``: judgements in which Slotproof itself failed.
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
                **{"strict": False, "listed": None, "drawn_alone": True},
            }
            try:
                with self.served.connect(repairs) as connection:
                    told = connection.ask(asked)
            except EngineDied:
                told = {"steps": 0, "new": [], "runs": 0}
            except ToolError as error:
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
                shown = {key: row[key] for key in ("law", "severity", "detail", "name", "cause", "trace")}
                self.found.append({"stem": stem, "seed": seed, "second": second, "repairs": [*repairs], **shown})


def search(subject: Subject, seed: int, seconds: float) -> Json:
    """Searches a release from nothing. The result: what was found, and what was done."""
    with Served(subject) as served:
        stems = served.ready()["stems"]
        one = Searched(served, time.monotonic() + seconds)
        seeds = iter(range(seed * 1_000, seed * 1_000 + 1_000)), iter(range(seed * 1_000_000, seed * 1_000_000 + 1_000))
        several = [stem for stem in stems if stem != SCHEDULER]
        judges = [
            threading.Thread(target=one.judge, args=(cycle([SCHEDULER]), seeds[0])),
            threading.Thread(target=one.judge, args=(cycle(several), seeds[1])),
        ]
        for judge in judges:
            judge.start()
        for judge in judges:
            judge.join()
        return {"seed": seed, "causes": one.repairs, "found": one.found, "judged": one.judged, "failed": one.failed}


# What it says.


class Outline(NamedTuple):
    """What two runs of one bug have in common. ``words``: the first words of the detail, without numbers."""

    stem: str
    law: str
    words: str


def outline(stem: str, law: str, detail: str) -> Outline:
    """The outline of a run of this stem that breaks this law."""
    return Outline(stem, law, " ".join(re.sub(r"[\d\[\]',]+", " ", detail).split()[:8]))


def outlines(engine: str, release: str) -> dict[str, set[Outline]]:
    """The outlines of each kept trace that breaks a law on this release."""
    stems = kept_findings.stems_of_traces()
    every = kept_findings.kept()["traces"]
    found: dict[str, set[Outline]] = {name: set() for name in every}
    for name, rows in every.items():
        for row in rows:
            if (row["subject"], row["release"]) == (engine, release) and row["law"]:
                found[name].add(outline(stems[name], row["law"], row["detail"]))
    return found


def entries(engine: str, release: str) -> list[Json]:
    """The entries of the catalogue that stand in a release: a cause by its name, another finding by its first trace,
    each with the outlines of its traces.
    """
    known = outlines(engine, release)
    standing = [one for one in json.loads(CATALOGUE.read_text("utf-8"))[engine] if release in one["releases"]]
    return [_entry(one, known) for one in standing]


def _entry(entry: Json, known: dict[str, set[Outline]]) -> Json:
    mine = sorted({one for name in entry["traces"] for one in known[name]})
    cause = entry["cause"] is not None
    return {"name": entry["cause"]["name"] if cause else entry["traces"][0], "cause": cause, "outlines": mine}


def page(kept: Json) -> str:
    """The searches as a document: which entries of the catalogue each seed has found, and what else it has found."""
    rows = [_row(entry, kept["searches"]) for entry in kept["entries"]]
    in_entries = {Outline(*one) for entry in kept["entries"] for one in entry["outlines"]}
    found = [row for search in kept["searches"] for row in search["found"] if not row["cause"]]
    others = Counter(one for row in found if (one := _outline(row)) not in in_entries)
    made = Environment(loader=PackageLoader("benchmarks"), undefined=StrictUndefined, trim_blocks=True)
    counts = [_count(rows, cause, even) for cause in (True, False) for even in (True, False)]
    values = {"kept": kept, "rows": rows, "counts": counts, "others": others.most_common()}
    return made.get_template("half_blind.md.j2").render(values)


def _count(rows: Sequence[Json], cause: bool, even: bool) -> str:
    mine = [row["found"] for row in rows if (row["cause"], row["even"]) == (cause, even)]
    return f"{sum(mine)} of {len(mine)}"


def _row(entry: Json, searches: Sequence[Json]) -> Json:
    """A row of the document: an entry, and the second in which each search first found it. A cause is found where its
    repair mends a finding; another entry where a finding that no repair mends has the outline of one of its traces.
    """
    name, mine = entry["name"], [Outline(*one) for one in entry["outlines"]]
    seconds = [s["causes"].get(name) if entry["cause"] else _first(s["found"], mine) for s in searches]
    found = any(second is not None for second in seconds)
    return {"name": name, "even": is_even(name), "cause": entry["cause"], "seconds": seconds, "found": found}


def _first(found: Sequence[Json], mine: Collection[Outline]) -> float | None:
    return next((row["second"] for row in found if not row["cause"] and _outline(row) in mine), None)


def _outline(row: Json) -> Outline:
    return outline(row["stem"], row["law"], row["detail"])


def main() -> int:
    """Searches a release from nothing, and writes what was found."""
    asked = argparse.ArgumentParser(prog="python -m benchmarks.half_blind")
    asked.add_argument("engine")
    asked.add_argument("release")
    asked.add_argument("--minutes", type=float, default=10.0, help="of each search")
    asked.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    asked.add_argument(
        "--folder", type=Path, default=FOLDER, help="where half_blind.json and half_blind.md are written"
    )
    given = asked.parse_args()
    kept: Json = {"engine": given.engine, "release": given.release, "minutes": given.minutes, "searches": []}
    kept["entries"] = entries(given.engine, given.release)
    for seed in given.seeds:
        kept["searches"].append(search(Subject(given.engine, given.release), seed, 60 * given.minutes))
        (given.folder / "half_blind.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        (given.folder / "half_blind.md").write_text(page(kept), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""``docs/blind.md``: which entries of the catalogue the search from nothing finds, made from ``docs/blind.json``."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment

from conformance.driver.protocol import Json
from slotproof.pages.catalogue import CatalogueEntry, entries
from slotproof.pages.finding_pages import BROKEN, KeptFinding
from slotproof.pages.kept_findings import FINDINGS

KEPT = FINDINGS.with_name("blind.json")
MINUTES = 10  # of a search, unless another number is asked for
# By the minutes of a search: how many of 100 odd causes are to be found.
AIMS: dict[float, int] = {MINUTES: 80, 10 * MINUTES: 95}


def is_even(name: str) -> bool:
    """The last hexadecimal digit of the SHA-256 of a name is even. Even causes may be used to shape the rules and
    weights of the search, the odd ones may not.
    """
    return int(hashlib.sha256(name.encode()).hexdigest()[-1], 16) % 2 == 0


class Outline(NamedTuple):
    """What two runs of one bug have in common. ``words``: the first words of the detail, without numbers."""

    stem: str
    law: str
    words: str


def outline(stem: str, law: str, detail: str) -> Outline:
    """The outline of a run of this stem that breaks this law."""
    return Outline(stem, law, " ".join(re.sub(r"[\d\[\]',]+", " ", detail).split()[:8]))


class Blind(NamedTuple):
    """An entry of the catalogue, and the second in which each search first found it."""

    name: str
    has_repair: bool
    seconds: Sequence[float | None]

    @property
    def is_even(self) -> bool:
        """See ``is_even``."""
        return is_even(self.name)

    @property
    def found(self) -> bool:
        """At least one search has found it."""
        return any(second is not None for second in self.seconds)


@dataclass(frozen=True)
class Searched:
    """The searches of one release from several seeds, for so many minutes each."""

    engine: str
    release: str
    minutes: float
    searches: Sequence[Json]
    known: Sequence[CatalogueEntry]

    @cached_property
    def rows(self) -> list[Blind]:
        """One for each entry. A cause is found where its repair mends a finding; another entry where a finding that no
        repair mends has the outline of one of its traces.
        """
        return [self._row(entry) for entry in self.known]

    def share(self, even: bool, has_repair: bool = True) -> str:
        """How many of the even or the odd ones were found."""
        mine = [row.found for row in self.rows if (row.is_even, row.has_repair) == (even, has_repair)]
        return f"{sum(mine)} of {len(mine)}"

    @property
    def others(self) -> list[tuple[Outline, int]]:
        """What was found that no repair mends and that is like no entry, and how often."""
        known = {one for entry in self.known for one in _outlines(entry, self.release)}
        every = Counter(one for search in self.searches for one in map(_outline, _unexplained(search)))
        return [(one, times) for one, times in every.most_common() if one not in known]

    def _row(self, entry: CatalogueEntry) -> Blind:
        mine = _outlines(entry, self.release)
        if entry.cause is not None:
            return Blind(entry.cause.name, True, [s["causes"].get(entry.cause.name) for s in self.searches])
        name = entry.findings[-1].kept.name  # first stands the trace on the scheduler, if there is one
        return Blind(name, False, [_first(search, mine) for search in self.searches])


def _outlines(entry: CatalogueEntry, release: str) -> set[Outline]:
    return {
        outline(one.kept.trace.stem, row["law"], row["detail"])
        for one in entry.findings
        for row in one.rows
        if row["release"] == release and row["verdict"] in BROKEN
    }


def _unexplained(search: Json) -> list[Json]:
    return [row for row in search["found"] if not row["cause"]]


def _first(search: Json, mine: Collection[Outline]) -> float | None:
    return next((row["second"] for row in _unexplained(search) if _outline(row) in mine), None)


def _outline(row: Json) -> Outline:
    return outline(row["stem"], row["law"], row["detail"])


def kept_searches() -> list[Json]:
    """What ``slotproof blind --keep`` found; empty where there is no such file, as in an installed package."""
    found: list[Json] = json.loads(KEPT.read_text("utf-8")) if KEPT.exists() else []
    return found


def searched(engine: str, searches: Iterable[Json], findings: Iterable[KeptFinding]) -> list[Searched]:
    """The searches of an engine, by release and minutes."""
    mine = [one for one in searches if one["engine"] == engine]
    known = entries(engine, findings) if mine else []
    groups = sorted({(one["release"], one["minutes"]) for one in mine})
    return [
        Searched(
            engine,
            release,
            minutes,
            sorted(
                (one for one in mine if (one["release"], one["minutes"]) == (release, minutes)),
                key=lambda one: one["seed"],
            ),
            known,
        )
        for release, minutes in groups
    ]


def pages(templates: Environment, docs: Path, found: Iterable[Searched]) -> dict[Path, str]:
    """``docs/blind.md``; nothing where no search is kept."""
    listed = list(found)
    text = templates.get_template("blind.md.j2").render(searched=listed, aims=AIMS)
    return {docs / "blind.md": text.rstrip() + "\n"} if listed else {}

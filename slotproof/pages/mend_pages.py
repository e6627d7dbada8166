"""Causes of findings that a later release does not show any more: functions of the release whose text in the next one
mends the finding (``conformance.search.mends``). ``docs/mends.json`` keeps what ``slotproof mends --keep`` found.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from conformance.driver.lockstep import CONFORMS, LATENT, VIOLATION
from conformance.driver.protocol import Json
from conformance.engines import registry
from conformance.traces.harm_found import rank_of
from slotproof.pages.kept_findings import FINDINGS, Findings

KEPT = FINDINGS.with_name("mends.json")
BROKEN = (VIOLATION, LATENT)


@dataclass(frozen=True)
class Ended:
    """A finding that a release is the last to show. ``after``: the next release. ``kept_there``: the finding's trace
    keeps the law there; else it cannot be sent there, and nothing can be said of a repair.
    """

    engine: str
    finding: str
    release: str
    after: str
    kept_there: bool


@dataclass(frozen=True)
class MendedFinding:
    """A finding with what mends it: a row of ``docs/mends.json``.

    ``functions``: those of ``release`` whose text in the release ``repaired_in`` mends it, each with its ``file``,
    ``line`` and ``function``; empty where none was found. ``others``: functions each of which mends it alone, too.
    ``lawful``: how many kept traces keep the law on both releases, and with these functions as well.
    """

    engine: str
    finding: str
    release: str
    repaired_in: str
    functions: Sequence[Json] = ()
    others: Sequence[Json] = ()
    lawful: int = 0

    @property
    def key(self) -> tuple[str, str, str]:
        """What the row is about."""
        return self.engine, self.finding, self.release

    @property
    def where(self) -> str:
        """The functions with their files and lines; empty where none was found."""
        return ", ".join(place(one) for one in self.functions)

    @property
    def title(self) -> str:
        """The names of the functions."""
        return ", ".join(str(one["function"]) for one in self.functions)

    @property
    def others_where(self) -> str:
        """The other functions with their files and lines."""
        return ", ".join(place(one) for one in self.others)


@dataclass(frozen=True)
class RepairedCause:
    """Findings that the same functions of one release mend: the traces of one cause."""

    rows: Sequence[MendedFinding]
    findings: Sequence[Any] = field(default_factory=list)

    @property
    def first(self) -> MendedFinding:
        """Any of its rows: all name the same functions."""
        return self.rows[0]

    @property
    def gravest(self) -> Any:
        """The finding with the gravest harm in the release."""
        return min(self.findings, key=lambda one: (rank_of(self.harm_of(one)), one.kept.name))

    def harm_of(self, one: Any) -> Json:
        """The harm of a finding in the release."""
        harm: Json = next(row["harm"] for row in one.rows if row["release"] == self.first.release)
        return harm

    @property
    def harm(self) -> str:
        """The gravest harm in the release, in a sentence."""
        return str(self.harm_of(self.gravest)["sentence"])


def place(function: Json) -> str:
    """A function with its file and line."""
    return f"`{function['file']}:{function['line']}` {function['function']}"


def ended(findings: Findings) -> list[Ended]:
    """Each end of each finding: for each engine the oldest release first, and of one release by name."""
    found: list[Ended] = []
    for engine in registry.released():
        for kept, rows in findings:
            mine = [row for row in rows if row["subject"] == engine.name]
            found += [
                Ended(engine.name, kept.name, one["release"], after["release"], after["verdict"] == CONFORMS)
                for one, after in pairwise(mine)
                if one["verdict"] in BROKEN and after["verdict"] not in BROKEN
            ]
    engines = [engine.name for engine in registry.released()]
    order = {(engine.name, r): n for engine in registry.released() for n, r in enumerate(engine.releases)}
    return sorted(found, key=lambda one: (engines.index(one.engine), order[one.engine, one.release], one.finding))


def lawful(findings: Findings, engine: str, release: str, after: str) -> list[str]:
    """The kept traces that keep the law on two releases of an engine."""
    return [kept.name for kept, rows in findings if _keeps(rows, engine, release) and _keeps(rows, engine, after)]


def _keeps(rows: Iterable[Json], engine: str, release: str) -> bool:
    return any((row["subject"], row["release"], row["verdict"]) == (engine, release, CONFORMS) for row in rows)


def kept_mends() -> list[MendedFinding]:
    """What ``slotproof mends --keep`` found; empty where there is no such file, as in an installed package."""
    rows = json.loads(KEPT.read_text("utf-8")) if KEPT.exists() else []
    return [MendedFinding(**row) for row in rows]


def by_finding(engine: str) -> dict[str, MendedFinding]:
    """By its name each finding of an engine that the newest of its releases mends which was tried."""
    return {one.finding: one for one in kept_mends() if one.engine == engine}


def repaired(engine: str, findings: Mapping[str, Any]) -> list[RepairedCause]:
    """The causes that later releases of an engine have repaired, the newest repair first, and of one release those with
    the most traces first. ``findings``: those of the engine, by name.
    """
    groups: dict[tuple[str, str], list[MendedFinding]] = {}
    for one in kept_mends():
        if one.engine == engine and one.functions and one.finding in findings:
            groups.setdefault((one.release, json.dumps(one.functions)), []).append(one)
    made = [RepairedCause(rows, [findings[row.finding] for row in rows]) for rows in groups.values()]
    releases = registry.plugin(engine).releases
    return sorted(made, key=lambda one: (-releases.index(one.first.release), -len(one.rows), one.first.where))

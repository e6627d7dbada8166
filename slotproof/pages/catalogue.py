"""The catalogue of an engine's findings: one entry a cause, with what it takes to meet it. It is the first table of an
engine in ``docs/findings.md``, and ``docs/catalogue.json``.

A finding whose cause has no repair yet is an entry of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from jinja2 import Environment

from conformance.driver.protocol import Json
from conformance.engines import registry
from conformance.traces import cause_files, reach_files
from conformance.traces.cause_files import Cause
from conformance.traces.reach_files import Reach
from conformance.traces.trace_files import Kept
from slotproof.pages import cause_pages, chain_pages, finding_pages, mend_pages
from slotproof.pages.chain_pages import NO_CALLER, SCHEDULERS, FoundChain
from slotproof.pages.finding_pages import BROKEN, MARKS, KeptFinding, of_engine
from slotproof.pages.mend_pages import RepairedCause

FILE = "catalogue.json"

ON_SCHEDULER = "_on_server"  # NAME_on_server shows the finding NAME on the engine's own scheduler
SHOWN = "shown on the scheduler"
UNKNOWN = "not looked for"


class Severity(StrEnum):
    """How grave an entry is, the gravest first."""

    WRONG = "wrong contents are read on a server"
    STOP = "a client stops a server"
    SERVER = "a leak, or requests that wait, on a server"
    REST = "not shown on a server"
    APART = "no caller, or the server ends by the same exception anyway"


@dataclass(frozen=True)
class CatalogueEntry:
    """A cause with its traces, or one finding.

    ``title``: as a maintainer would write it; of a finding its name. ``page``: where it is told, below ``docs/``.
    ``findings``: its traces with their rows, first that on the engine's own scheduler. ``noted``: what is known of the
    reach of a finding that the scheduler has not shown; ``chain``: the calls that lead to what it calls last.
    ``flags``: the launch flags that it needs, without those that only make a server small; empty where none is known.
    """

    title: str
    page: str
    findings: Sequence[KeptFinding]
    cause: Cause | None = None
    noted: Reach | None = None
    chain: FoundChain | None = None
    flags: Sequence[str] = ()

    @cached_property
    def on_scheduler(self) -> list[KeptFinding]:
        """Its traces on the engine's own scheduler."""
        return [one for one in self.findings if one.kept.trace.stem in SCHEDULERS]

    @cached_property
    def gravest(self) -> KeptFinding:
        """The trace with the gravest harm, among those on the scheduler where there are some."""
        return min(self.on_scheduler or self.findings, key=lambda one: one.place)

    @property
    def reach(self) -> str:
        """Whether a client can cause it."""
        if self.on_scheduler:
            return SHOWN
        if self.chain is not None and self.chain.no_caller:
            return NO_CALLER
        return self.noted.reach if self.noted else UNKNOWN

    @property
    def severity(self) -> Severity:
        """How grave it is."""
        if not self.on_scheduler:
            return Severity.APART if self.reach in (NO_CALLER, reach_files.ENDS_ANYWAY) else Severity.REST
        harms = [one.worst_harm["harm"] for one in self.on_scheduler]
        if any(harm["request"] for harm in harms):
            return Severity.WRONG
        return Severity.STOP if any(harm.get("ended") for harm in harms) else Severity.SERVER

    @property
    def upstream(self) -> str:
        """What was found in the engine's own issues and pull requests, in a word or two."""
        if self.cause is None:
            return ""
        told = self.cause.upstream
        names = ", ".join(one.partition(":")[0] for one in told.found)
        return names or f"none found, {told.searched}"

    @property
    def verdicts(self) -> list[str]:
        """The gravest verdict of its traces on each release, oldest release first."""
        columns = zip(*([row["verdict"] for row in one.rows] for one in self.findings), strict=True)
        return [next((v for v in BROKEN if v in column), column[0]) for column in columns]

    @property
    def spans(self) -> str:
        """In which releases it stands."""
        rows = [{"release": row["release"], "verdict": v} for row, v in zip(self._rows, self.verdicts, strict=True)]
        return KeptFinding(self.gravest.kept, None, rows).spans

    @property
    def stands(self) -> bool:
        """The newest release shows it."""
        return self.verdicts[-1] in BROKEN

    @property
    def _rows(self) -> list[Json]:
        return self.findings[0].rows

    def as_json(self) -> Json:
        """The entry as plain data."""
        cause = self.cause and {"name": self.cause.name, "file": self.cause.file, "function": self.cause.function}
        return {
            **{"title": self.title, "cause": cause, "severity": str(self.severity), "reach": self.reach},
            "why": self.noted.why if self.noted else "",
            "flags": [*self.flags],
            "upstream": None if self.cause is None else [*self.cause.upstream.found],
            "harm": self.gravest.worst_harm["harm"]["sentence"],
            "traces": [one.kept.name for one in self.findings],
            "functions": [] if self.cause is None else [{"file": self.cause.file, "function": self.cause.function}],
            "chain": [] if self.chain is None else [one["name"] for one in self.chain.chain],
            "repaired_in": None,
            "releases": [row["release"] for row, v in zip(self._rows, self.verdicts, strict=True) if v in BROKEN],
        }


def pages(templates: Environment, docs: Path, found: Json, findings: list[tuple[Kept, list[Json]]]) -> dict[Path, str]:
    """``docs/findings.md``, ``docs/catalogue.json`` and the page of each finding. ``found``: what ``slotproof engines``
    found last.
    """
    engines = {plugin.name: of_engine(plugin.name, findings) for plugin in registry.released()}
    checks = {name: [check for check in found["checks"] if check["subject"] == name] for name in engines}
    listed = {name: entries(name, several) for name, several in engines.items()}
    by_name = {one.kept.name: entry for several in listed.values() for entry in several for one in entry.findings}
    grouped = {
        name: {severity: [e for e in several if e.severity is severity] for severity in Severity}
        for name, several in listed.items()
    }
    repaired = {
        name: mend_pages.repaired(name, {one.kept.name: one for one in several}) for name, several in engines.items()
    }
    told = {
        name: [*(e.as_json() for e in several), *(repaired_json(name, one) for one in repaired[name])]
        for name, several in listed.items()
    }
    ends = {name: mend_pages.by_finding(name) for name in engines}
    ended = [one.engine for one in mend_pages.ended(findings) if one.kept_there]
    page = templates.get_template("findings.md.j2").render(
        engines=engines,
        checks=checks,
        marks=MARKS,
        catalogue=grouped,
        repaired={name: [(one, repaired_entry(name, one)) for one in several] for name, several in repaired.items()},
        ends=ends,
        ended={name: ended.count(name) for name in engines},
        entries=by_name,
        tried={name: len([one for one in mend_pages.kept_mends() if one.engine == name]) for name in engines},
    )
    return {
        docs / "findings.md": page.rstrip() + "\n",
        **finding_pages.pages(templates, docs, findings, by_name),
        docs / FILE: json.dumps(told, indent=1, ensure_ascii=False) + "\n",
    }


def repaired_json(engine: str, cause: RepairedCause) -> Json:
    """A cause that a later release has repaired, with the fields of an entry that stands."""
    entry = repaired_entry(engine, cause)
    first = cause.first
    more = {"functions": [*first.functions], "harm": cause.harm, "repaired_in": first.repaired_in}
    return {**entry.as_json(), **more}


def repaired_entry(engine: str, cause: RepairedCause) -> CatalogueEntry:
    """The entry of a cause that a later release has repaired. Its findings are the traces that the cause explains."""
    chains = chain_pages.by_finding(engine)
    chain = next((chains[row.finding] for row in cause.rows if row.finding in chains), None)
    gravest = cause.gravest.kept.name
    return CatalogueEntry(cause.first.title, f"findings/{gravest}.md", cause.findings, chain=chain)


def entries(engine: str, findings: Iterable[KeptFinding]) -> list[CatalogueEntry]:
    """What the newest release of an engine shows, the gravest first."""
    by_name = {one.kept.name: one for one in findings}
    causes = [cause for cause in cause_files.every() if cause.engine == engine]
    reach = reach_files.of_engine(engine)
    chains = chain_pages.by_finding(engine)
    tried = cause_pages.kept_rows()
    found = [_of_cause(cause, tried.get(cause.name), by_name) for cause in causes]
    told = {one.kept.name for entry in found for one in entry.findings}
    shown = {name: by_name[name + ON_SCHEDULER] for name in by_name if name + ON_SCHEDULER in by_name}
    told |= {one.kept.name for one in shown.values()}
    for name in by_name.keys() - told:
        both = [*([shown[name]] if name in shown else []), by_name[name]]
        page, first = f"findings/{name}.md", both[0].kept.trace
        flags = cause_files.room(engine).flags(first.config) if first.stem in SCHEDULERS else []
        found.append(CatalogueEntry(name, page, both, noted=reach.get(name), chain=chains.get(name), flags=flags))
    order = [*Severity]
    return sorted((one for one in found if one.stands), key=lambda e: (order.index(e.severity), e.gravest.place))


def _of_cause(cause: Cause, tried: Json | None, by_name: Mapping[str, KeptFinding]) -> CatalogueEntry:
    """A cause with its traces, and the findings of single stems whose names its traces on the scheduler have.
    ``tried``: its row of ``docs/causes.json``; ``None`` where the cause was never tried.
    """
    names = [*cause.names_of_traces, *(name.removesuffix(ON_SCHEDULER) for name in cause.names_of_traces)]
    found = [by_name[name] for name in dict.fromkeys(names) if name in by_name]
    flags = cause_pages.needed_flags(cause, tried) if tried else []
    return CatalogueEntry(cause.title, f"causes/{cause.name}.md", found, cause, flags=flags)

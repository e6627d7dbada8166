"""How ``docs/findings.json`` keeps what the engines show on the kept traces: one row a verdict.

A row of the file stands for all releases of an engine that show one thing on a trace, and names only what is not as in
``NOTHING``. An engine that has no part for a trace has no row. ``unpacked`` makes a row for each release again, in the
order of ``slotproof engines``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from conformance.driver.cache_folder import checkout
from conformance.driver.naming import UsageError
from conformance.driver.protocol import Json
from conformance.traces import trace_files
from conformance.traces.trace_files import Kept

ROOT = checkout()
PACKAGED = Path(__file__).parents[1] / "findings.json"  # the copy that is installed as a part of the package
FINDINGS = ROOT / "docs" / PACKAGED.name if ROOT else PACKAGED

Rows = list[Json]
Findings = list[tuple[Kept, Rows]]
NOTHING: Json = {"verdict": "unsupported", "step": None, "law": None, "kind": None, "detail": "", "harm": None}


def _none_to_drive(stem: str) -> Json:
    """What an engine without this stem shows."""
    return {**NOTHING, "step": 1, "detail": f"it has no {stem} to drive"}


def stems_of_traces() -> dict[str, str]:
    """The stem of each kept trace."""
    return {kept.name: kept.trace.stem for kept in trace_files.every()}


def packed(found: dict[str, Rows], stems: dict[str, str]) -> Json:
    """The traces with their rows, as the file has them. ``stems``: the stem of each trace."""
    columns = [(row["subject"], row["release"]) for row in next(iter(found.values()), [])]
    subjects: dict[str, list[Any]] = {}
    for subject, release in columns:
        subjects.setdefault(subject, []).append(release)
    return {"subjects": subjects, "traces": {name: _grouped(rows, stems[name]) for name, rows in found.items()}}


def _grouped(rows: Rows, stem: str) -> Rows:
    groups: list[tuple[str, Json, list[Any]]] = []
    for row in rows:
        shown = {key: value for key, value in row.items() if key not in ("subject", "release")}
        if shown == _none_to_drive(stem):
            continue
        alike = (releases for subject, said, releases in groups if (subject, said) == (row["subject"], shown))
        known = next(alike, None)
        if known is None:
            groups.append((row["subject"], shown, [row["release"]]))
        else:
            known.append(row["release"])
    return [{"subject": subject, "releases": releases, **_more(said)} for subject, said, releases in groups]


def _more(said: Json) -> Json:
    """What is not as in ``NOTHING``."""
    return {key: value for key, value in said.items() if key not in NOTHING or value != NOTHING[key]}


def unpacked(kept: Json, stems: dict[str, str]) -> dict[str, Rows]:
    """For each trace a row for each release of each engine. ``stems``: the stem of each trace."""
    return {name: _apart(groups, kept["subjects"], stems[name]) for name, groups in kept["traces"].items()}


def _apart(groups: Rows, subjects: dict[str, list[Any]], stem: str) -> Rows:
    shown = {
        (group["subject"], release): {**NOTHING, **{k: v for k, v in group.items() if k not in ("subject", "releases")}}
        for group in groups
        for release in group["releases"]
    }
    return [
        {"subject": subject, "release": release, **shown.get((subject, release), _none_to_drive(stem))}
        for subject, releases in subjects.items()
        for release in releases
    ]


# What is kept.


def kept() -> Json:
    """The verdicts that ``slotproof engines`` found last."""
    if not FINDINGS.exists():
        raise UsageError("docs/findings.json is missing: run make engines first")
    found: Json = json.loads(FINDINGS.read_text("utf-8"))
    return {"checks": found["checks"], "traces": unpacked(found, stems_of_traces())}


def with_rows(found: Json) -> Findings:
    """Each kept trace with its rows."""
    files = {one.name: one for one in trace_files.every()}
    return [(files.get(name) or trace_files.load(name), rows) for name, rows in found["traces"].items()]


def label(row: Json) -> str:
    """The engine of a row and its release."""
    return f"{row['subject']} {row['release'] or ''}".strip()


def labels(findings: Findings) -> list[str]:
    """The columns of the findings: our own implementation, then the releases."""
    return list(dict.fromkeys(label(row) for _, rows in findings for row in rows))

"""How ``docs/findings.json`` keeps what the engines show on the kept traces: one row a verdict.

A row of the file stands for all releases of an engine that show one thing on a trace, and names only what is not as in
``NOTHING``. An engine that has no part for a trace has no row. ``unpacked`` makes a row for each release again, in the
order of ``slotproof engines``.
"""

from __future__ import annotations

from typing import Any

from conformance.driver.protocol import Json
from conformance.traces import trace_files

Rows = list[Json]
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

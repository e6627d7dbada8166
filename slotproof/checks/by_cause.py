"""Which known cause a new finding is of: the cause whose repair mends the run. This is run, not judged."""

from __future__ import annotations

import time
from collections.abc import Sequence

from conformance.driver.protocol import EngineError, Json
from conformance.driver.trace import Trace
from conformance.search.connection import Served, ToolError
from conformance.traces import cause_files, trace_files
from conformance.traces.cause_files import Cause


def name_causes(
    rows: Sequence[Json], served: Served, deadline: float | None = None, repairs: Sequence[str] = ()
) -> None:
    """Writes the name of the first cause that mends it into each of these findings of a served engine; the others keep
    an empty one. ``deadline``: no more causes are tried after this time, by ``time.monotonic``. ``repairs``: the causes
    whose repairs the engine had when these were found.
    """
    if not rows:
        return
    causes = [cause for cause in cause_files.every() if cause.engine == served.subject.engine]
    left = [cause for cause in causes if cause.name not in repairs]
    for cause in sorted(left, key=lambda cause: not _is_likely(cause, rows)):
        unnamed = [row for row in rows if not row["cause"]]
        if not unnamed or (deadline is not None and time.monotonic() > deadline):
            return
        for row in _mended(unnamed, served, [*repairs, cause.name]):
            row["cause"] = cause.name


def _is_likely(cause: Cause, rows: Sequence[Json]) -> bool:
    """One of the findings breaks the law that a trace of the cause breaks on the same stem: tried first."""
    shown = {(kept.trace.stem, kept.law) for kept in map(trace_files.load, cause.names_of_traces)}
    return any((row["stem"], row["law"]) in shown for row in rows)


def _mended(rows: Sequence[Json], served: Served, repairs: Sequence[str]) -> list[Json]:
    """The findings whose runs keep the law on the repaired engine; none if the engine cannot be repaired."""
    lawful = are_lawful([Trace(**row["trace"]) for row in rows], served, repairs)
    return [row for row, one in zip(rows, lawful, strict=True) if one]


def are_lawful(traces: Sequence[Trace], served: Served, repairs: Sequence[str]) -> list[bool]:
    """Of each trace whether the engine with these repairs makes all its calls and breaks no law; of none where the
    engine cannot be repaired so.
    """
    try:
        with served.connect(repairs) as connection:
            told = [connection.outcome(trace) for trace in traces]
    except (EngineError, ToolError):
        return [False] * len(traces)
    return [not one.breaks and not one.stopped for one in told]


def line_of(row: Json) -> str:
    """What is said of the cause of a finding; empty where none is known."""
    if not row["cause"]:
        return ""
    cause = cause_files.load(row["cause"])
    return f"of the known cause {cause.name}, whose repair mends this run: {cause.title} ({cause.function})"

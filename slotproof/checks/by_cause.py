"""Which known cause a new finding is of: the cause whose repair mends the run. This is run, not judged."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from conformance.driver.lockstep import CONFORMS
from conformance.driver.protocol import EngineError, Json
from conformance.driver.trace import Trace
from conformance.search.connection import EngineDied, Served, ToolError
from conformance.traces import cause_files, trace_files
from conformance.traces.cause_files import Cause
from conformance.traces.outcome import Followed, Outcome


def name_causes(
    rows: Sequence[Json], served: Served, deadline: float | None = None, repairs: Sequence[str] = ()
) -> None:
    """Writes the name of the first cause that mends it into each of these findings of a served engine; the others keep
    an empty one. ``deadline``: no more causes are tried after this time, by ``time.monotonic``. ``repairs``: the causes
    whose repairs the engine had when these were found.

    A run may end otherwise on a repaired engine, so that no client can send its rest as it stands. Where no cause mends
    the whole run, the run is sent as far as a client may send it, and the engine is brought to rest
    (``conformance.search.followed``): to the engine with each repair, and to the engine as it was, which must break the
    law of the finding. The cause whose repair leaves nothing broken is named; of several, the one with which the fewest
    operations are left out.
    """
    if not rows:
        return
    causes = [cause for cause in cause_files.every() if cause.engine == served.subject.engine]
    left = [cause for cause in causes if cause.name not in repairs]
    otherwise: list[tuple[Json, Cause]] = []
    for cause in sorted(left, key=lambda cause: not _is_likely(cause, rows)):
        unnamed = [row for row in rows if not row["cause"]]
        if not unnamed or _is_late(deadline):
            return
        told = _outcomes([Trace(**row["trace"]) for row in unnamed], served, [*repairs, cause.name])
        for row, one in zip(unnamed, told, strict=False):
            if one.verdict == CONFORMS:
                row["cause"] = cause.name
            elif one.stopped:
                otherwise.append((row, cause))
    for row in (row for row in rows if not row["cause"] and not _is_late(deadline)):
        row["cause"] = _followed(row, [cause for one, cause in otherwise if one is row], served, repairs)


def _is_late(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() > deadline


def _followed(row: Json, causes: Sequence[Cause], served: Served, repairs: Sequence[str]) -> str:
    """The cause with whose repair the run of a finding breaks nothing where it is sent as far as it may be; empty where
    there is none, or where this way of sending does not show the finding.
    """
    trace = Trace(**row["trace"])
    if not causes or not (before := _sent_as_far(trace, served, repairs)) or not before.shows(row):
        return ""
    told = {cause.name: _sent_as_far(trace, served, [*repairs, cause.name]) for cause in causes}
    lawful = {name: one.left_out for name, one in told.items() if one and one.lawful}
    return min(lawful, key=lambda name: lawful[name], default="")


def _sent_as_far(trace: Trace, served: Served, repairs: Sequence[str]) -> Followed | None:
    """What the run shows on the engine with these repairs where it is sent as far as a client may send it; ``None``
    where the engine cannot be repaired so, or its process died.
    """
    with suppress(EngineDied, EngineError, ToolError), served.connect(repairs) as connection:
        return connection.followed(trace)
    return None


def _is_likely(cause: Cause, rows: Sequence[Json]) -> bool:
    """One of the findings breaks the law that a trace of the cause breaks on the same stem: tried first."""
    shown = {(kept.trace.stem, kept.law) for kept in map(trace_files.load, cause.names_of_traces)}
    return any((row["stem"], row["law"]) in shown for row in rows)


def _outcomes(traces: Sequence[Trace], served: Served, repairs: Sequence[str]) -> list[Outcome]:
    """What each trace shows on the engine with these repairs; nothing where the engine cannot be repaired so."""
    try:
        with served.connect(repairs) as connection:
            return [connection.outcome(trace) for trace in traces]
    except (EngineError, ToolError):
        return []


def are_lawful(traces: Sequence[Trace], served: Served, repairs: Sequence[str]) -> bool:
    """The engine with these repairs makes all calls of each of these traces, of which there is one at least, and breaks
    no law.
    """
    told = _outcomes(traces, served, repairs)
    return bool(told) and all(one.verdict == CONFORMS for one in told)


def line_of(row: Json) -> str:
    """What is said of the cause of a finding; empty where none is known."""
    if not row["cause"]:
        return ""
    cause = cause_files.load(row["cause"])
    return f"of the known cause {cause.name}, whose repair mends this run: {cause.title} ({cause.function})"

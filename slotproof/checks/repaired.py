"""Engines without their known causes, so that these hide nothing: ``slotproof check --repaired`` of a release, and the
second part of the runs beside a base.

Drawn runs avoid what is known of a release, and with it every neighbour: where drafts and sessions are known to break a
law together, no run has both. Where the cause is known, and a repair of it, the engine is repaired instead, and runs
draw all that the cause stood in the way of.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence

from conformance.driver.naming import UsageError
from conformance.driver.protocol import EngineError, Json
from conformance.driver.trace import Trace
from conformance.engines import registry
from conformance.search.connection import Served, Subject, ToolError
from conformance.traces import cause_files, known, trace_files
from conformance.traces.cause_files import Cause
from conformance.traces.compare import Status, compare
from slotproof.checks.by_cause import are_lawful

HOLDS = "without the repairs no law is broken on this trace"
STOPS = "without the repairs the trace ends sooner: {}"
BREAKS = "without the repairs the trace breaks {} in step {}: {}"


def must_be_possible(subject: Subject, base: str | None) -> None:
    """Raises ``UsageError`` unless a release is to be judged alone."""
    if subject.release is None or base is not None:
        raise UsageError("--repaired: expected an engine with --release and without --base")


def standing(served: Served) -> list[str]:
    """The names of the causes that a served release is known to have and that can be repaired there: with the repair,
    and the repairs that it needs beside it, no known trace of the cause breaks a law. Raises ``UsageError`` where there
    is none.
    """
    subject = served.subject
    listed = {one.trace for one in known.of_release(registry.plugin(subject.engine).folder, subject.release)}
    causes = [cause for cause in cause_files.every() if cause.engine == subject.engine]
    found = [cause.name for cause in causes if _is_mended(cause, listed, served)]
    if not found:
        raise UsageError(f"--repaired: no cause of {subject.engine} {subject.release} is known with its repair")
    return found


def _is_mended(cause: Cause, listed: Collection[str], served: Served) -> bool:
    traces = [trace_files.load(name).trace for name in cause.names_of_traces if name in listed]
    return bool(traces) and are_lawful(traces, served, [*cause.also_repaired, cause.name])


def leave_needed(rows: Iterable[Json], subject: Served, base: Served, deadline: float | None) -> None:
    """Leaves in each finding of repaired engines only those repairs without which it is not new beside the base.
    ``deadline``: none is tried after this time, by ``time.monotonic``.
    """
    for row in rows:
        for name in ["", *row["repaired"]]:  # first without any
            if deadline is not None and time.monotonic() > deadline:
                return
            left = [one for one in row["repaired"] if name and one != name]
            if left != row["repaired"] and _is_new(row, subject, base, left):
                row["repaired"] = left


def _is_new(row: Json, subject: Served, base: Served, repairs: Sequence[str]) -> bool:
    """The subject breaks the law of a finding on its run, and the base does not, with these repairs."""
    trace = Trace(**row["trace"])
    try:
        with subject.connect(repairs) as mine, base.connect(repairs) as theirs:
            shown, beside = mine.outcome(trace), theirs.outcome(trace)
    except (EngineError, ToolError):
        return False
    found = (one for one in shown.breaks if (one.law, one.kind, one.step) == (row["law"], row["kind"], row["step"]))
    return any(compare(one, beside) in (Status.NEW, Status.WORSE) for one in found)


def tell_without(rows: Iterable[Json], served: Served, repairs: Sequence[str]) -> None:
    """Writes into each finding of a repaired engine what its run shows on the engine without the repairs, and these
    where its law is broken with them alone.
    """
    for row in rows:
        try:
            with served.connect() as connection:
                told = connection.outcome(Trace(**row["trace"]))
        except (EngineError, ToolError) as error:
            row["base"] = STOPS.format(error)
            continue
        first = told.first
        row["repaired"] = [] if first is not None and first.law == row["law"] else [*repairs]
        if first is not None:
            row["base"] = BREAKS.format(first.law, first.step, first.detail)
        else:
            row["base"] = STOPS.format(told.stopped) if told.stopped else HOLDS

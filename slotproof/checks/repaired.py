"""``slotproof check --repaired``: a release without its known causes, so that these hide nothing.

Drawn runs avoid what is known of a release, and with it every neighbour: where overlapping steps and tracked states are
known to break a law together, no run has both. Where the cause is known, and a repair of it, the engine is repaired
instead, and runs draw all that the cause stood in the way of.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from conformance.driver.naming import UsageError
from conformance.driver.protocol import EngineError, Json
from conformance.driver.trace import Trace
from conformance.engines import registry
from conformance.search.connection import Served, Subject
from conformance.traces import cause_files, known
from conformance.traces.cause_files import Cause

HOLDS = "without the repairs no law is broken on this trace"
STOPS = "without the repairs the trace ends sooner: {}"
BREAKS = "without the repairs the trace breaks {} in step {}: {}"


def must_be_possible(subject: Subject, base: str | None) -> None:
    """Raises ``UsageError`` unless a release is to be judged alone."""
    if subject.release is None or base is not None:
        raise UsageError("--repaired: expected an engine with --release and without --base")


def standing(subject: Subject, roots: Sequence[str]) -> list[str]:
    """The names of the causes that the release has and that can be repaired, and of those that are repaired with them.
    ``roots``: the folders of the release. Raises ``UsageError`` where there is none.
    """
    listed = known.of_release(registry.plugin(subject.engine).folder, subject.release)
    traces = {difference.trace for difference in listed}
    folders = [Path(root) for root in roots]
    causes = [cause for cause in cause_files.every() if cause.engine == subject.engine and _stands(cause, folders)]
    found = [cause.name for cause in causes if traces.intersection(cause.names_of_traces)]
    if not found:
        raise UsageError(f"--repaired: no cause of {subject.engine} {subject.release} is known with its repair")
    return found


def _stands(cause: Cause, folders: Sequence[Path]) -> bool:
    try:
        cause.place(folders)
    except UsageError:
        return False
    return True


def tell_without(rows: Iterable[Json], served: Served) -> None:
    """Writes into each finding of a repaired engine what its run shows on the engine without the repairs."""
    for row in rows:
        try:
            with served.connect() as connection:
                told = connection.outcome(Trace(**row["trace"]))
        except EngineError as error:
            row["base"] = STOPS.format(error)
            continue
        first = told.first
        if first is not None:
            row["base"] = BREAKS.format(first.law, first.step, first.detail)
        else:
            row["base"] = STOPS.format(told.stopped) if told.stopped else HOLDS

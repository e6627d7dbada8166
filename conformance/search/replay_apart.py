"""Replays one trace on an engine of a user in a process of its own: an engine that hangs, or ends its process, is a
finding.
"""

from __future__ import annotations

from conformance.driver import watchdog
from conformance.driver.lockstep import ANSWER, ANSWERED, VIOLATION
from conformance.driver.protocol import EngineError, Json
from conformance.driver.trace import Trace
from conformance.search.connection import DIED, EngineDied, Served, Subject
from conformance.traces.trace_files import Kept


def row_apart(kept: Kept, subject: Subject, limit: float) -> Json:
    """The row of ``conformance.search.replay.row``. Where the engine ends its process, or a call does not end within
    ``limit`` seconds, it breaks the law that a call is answered, with this call.

    Raises ``EngineError`` if the engine cannot be loaded, or if a maker does this.
    """
    trace = kept.trace
    with Served(subject, limit) as served:
        served.ready()
        asked = {"do": "row", "stem": trace.stem, "name": kept.name, "trace": trace.as_json()}
        try:
            with served.connect() as connection:
                found: Json = connection.ask(asked)
                return found
        except EngineDied:
            dump = watchdog.written_in(served.scratch / f"death-{trace.stem}")
        reason = watchdog.reason(dump, limit) or DIED
        if config := watchdog.written_in(served.scratch / f"making-{trace.stem}"):
            what = reason.replace("the call did", "it did")
            raise EngineError(f"{subject.engine}: the maker of {trace.stem} was called with {config}: {what}")
        step = _step(trace, served)
    broken = {"verdict": VIOLATION, "step": step, "law": ANSWERED, "kind": ANSWER, "detail": reason}
    return {"engine": subject.engine, "release": subject.release, **broken, "harm": None}


def _step(trace: Trace, served: Served) -> int:
    """The number of the operation in which the process ends, from 1: the first with which the run does not end well.
    Where the run ends well when it is sent again, the last one.
    """
    for number in range(1, len(trace.steps)):
        part = Trace(trace.stem, trace.config, trace.steps[:number])
        try:
            with served.connect() as connection:
                connection.ask({"do": "outcome", "stem": trace.stem, "trace": part.as_json()})
        except EngineDied:
            return number
    return len(trace.steps)

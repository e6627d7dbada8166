"""Which known cause a new finding is of: the cause whose repair mends the run. This is run, not judged."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from conformance.driver.protocol import EngineError, Json
from conformance.driver.trace import Trace
from conformance.search.connection import Served, Subject, ToolError
from conformance.traces import cause_files


def name_causes(
    rows: Sequence[Json], subject: Subject, deadline: float | None = None, limit: float | None = None
) -> None:
    """Writes the name of the first cause that mends it into each of these findings; the others keep an empty one.
    ``deadline``: no more causes are tried after this time, by ``time.monotonic``. ``limit``: see ``Served``.
    """
    for cause in cause_files.every():
        left = [row for row in rows if not row["cause"]]
        if cause.engine != subject.engine or not left or (deadline is not None and time.monotonic() > deadline):
            continue
        for row in _mended(left, replace(subject, repair=cause.name), limit):
            row["cause"] = cause.name


def _mended(rows: Sequence[Json], repaired: Subject, limit: float | None) -> list[Json]:
    """The findings whose runs keep the law on the repaired engine; none if the engine cannot be loaded or repaired."""
    try:
        with Served(repaired, limit) as served:
            served.ready()
            with served.connect() as connection:
                told = [connection.outcome(Trace(**row["trace"])) for row in rows]
    except (EngineError, ToolError):
        return []
    return [row for row, one in zip(rows, told, strict=True) if not one.breaks and not one.stopped]


def line_of(row: Json) -> str:
    """What is said of the cause of a finding; empty where none is known."""
    if not row["cause"]:
        return ""
    cause = cause_files.load(row["cause"])
    return f"of the known cause {cause.name}, whose repair mends this run: {cause.title} ({cause.function})"

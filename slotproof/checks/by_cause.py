"""Which known cause a new finding is of: the cause whose repair mends the run. This is run, not judged."""

from __future__ import annotations

import time
from collections.abc import Sequence

from conformance.driver.protocol import Json
from conformance.search.connection import Subject
from conformance.search.of_cause import mended_elsewhere
from conformance.traces import cause_files


def name_causes(rows: Sequence[Json], subject: Subject, deadline: float | None = None) -> None:
    """Writes the name of the first cause that mends it into each of these findings; the others keep an empty one.
    ``deadline``: no more causes are tried after this time, by ``time.monotonic``.
    """
    for cause in cause_files.every():
        left = [row for row in rows if not row["cause"]]
        if cause.engine != subject.engine or not left or (deadline is not None and time.monotonic() > deadline):
            continue
        mends = mended_elsewhere(cause, subject.release, subject.source, [row["trace"] for row in left])
        for row, is_mended in zip(left, mends, strict=False):
            row["cause"] = cause.name if is_mended else ""


def line_of(row: Json) -> str:
    """What is said of the cause of a finding; empty where none is known."""
    if not row["cause"]:
        return ""
    cause = cause_files.load(row["cause"])
    return f"of the known cause {cause.name}, whose repair mends this run: {cause.title} ({cause.function})"

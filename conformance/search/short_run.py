"""A short run that breaks a law which is known to be broken: from a recording of a server to a test."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from enum import StrEnum
from typing import Any

from conformance.driver.lockstep import Finding
from conformance.driver.protocol import Json
from conformance.driver.trace import Trace
from conformance.search.hunt import Difference, Hunt, HuntLimits
from conformance.traces.outcome import Outcome

SHORT = 6  # operations; a longer run is looked for once more


def short_run(
    stem: str,
    make: Callable[[Json], Any],
    wanted: Finding,
    seconds: float,
    seed: int | None = None,
    exclude: Collection[StrEnum] = (),
) -> Difference | None:
    """Draws runs of ``stem`` on small engines that ``make`` builds, until one breaks the law of ``wanted`` in its way,
    and shrinks this run. What else is broken is passed over. ``exclude``: known differences, which the runs avoid.

    The first run that is found may be one of few that cannot be made short. So where more than ``SHORT`` operations and
    half of the time are left, another run is looked for from another seed, and the shorter one of both is returned.
    ``None`` if no run has broken the law within ``seconds``.
    """

    def is_another(finding: Finding, trace: Trace) -> bool:
        del trace
        return (finding.law, finding.kind) != (wanted.law, wanted.kind)

    def found(seconds: float, seed: int | None) -> list[Difference]:
        limits = HuntLimits(examples=None, seconds=seconds, seed=seed, avoid=bool(exclude), first=True)
        hunt = Hunt(stem, make, lambda _: Outcome(), limits, seen=is_another)
        return hunt.run((), exclude).differences[:1]

    begun = time.monotonic()
    runs = found(seconds, seed)
    left = seconds - (time.monotonic() - begun)
    if runs and len(runs[0].trace.steps) > SHORT and left > seconds / 2:
        runs += found(left, (seed or 0) + 1)
    return min(runs, key=lambda run: len(run.trace.steps), default=None)

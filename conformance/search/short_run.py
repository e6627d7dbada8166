"""A short run that breaks a law which is known to be broken: from a recording of a server to a test."""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import StrEnum
from typing import Any

from conformance.driver.lockstep import Finding
from conformance.driver.protocol import Json
from conformance.driver.trace import Trace
from conformance.search.hunt import Difference, Hunt, HuntLimits
from conformance.traces.outcome import Outcome


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

    ``None`` if no run has broken the law within ``seconds``.
    """

    def is_another(finding: Finding, trace: Trace) -> bool:
        del trace
        return (finding.law, finding.kind) != (wanted.law, wanted.kind)

    limits = HuntLimits(examples=None, seconds=seconds, seed=seed, avoid=bool(exclude), first=True)
    hunt = Hunt(stem, make, lambda _: Outcome(), limits, seen=is_another)
    return next(iter(hunt.run((), exclude).differences), None)

"""What tests of driven engines share: engines of which a call is replaced, another look at a run, and scripts on one
real release in a process of its own, since a process can hold one release.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import forked
import pytest

from conformance.driver.lockstep import Finding, LockStep
from conformance.driver.protocol import EngineError
from conformance.engines import registry
from conformance.engines.sglang import RELEASES
from conformance.engines.sglang.releases import download
from conformance.stems.host_tier.manager import host_manager

NEWEST = RELEASES[-1]  # of SGLang
SOAK = os.environ.get("HYPOTHESIS_PROFILE") == "soak"  # `make soak`: everything, with many more random runs
T = TypeVar("T")
# For each stem a right engine: ours, and where ours has not the stem the one of which the known bugs are variants.
RIGHT = {**registry.load("ours").makers, "host_tier": host_manager}


class Variant:
    """An engine of which a test replaces calls, or what the engine says of itself (``lacks`` for instance)."""

    def __init__(self, engine: Any, **replaced: Any) -> None:
        self.engine = engine
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


def judge(lock: LockStep, op: str = "finish") -> None:
    """Reads the engine once more and judges what it shows."""
    lock.run.seen = lock.run.snapshot()
    lock.judge(op)


def found(lock: LockStep, law: str, op: str = "finish") -> Finding:
    """The finding of another look at the engine; it is about this law."""
    with pytest.raises(Finding) as caught:
        judge(lock, op)
    assert caught.value.law == law, caught.value
    return caught.value


def done(lock: LockStep) -> dict[str, int]:
    """How often each transition was done."""
    return {name: n for (name, outcome), n in lock.law.counts.items() if outcome == "done"}


def between(first: str, last: str = NEWEST) -> tuple[str, ...]:
    """SGLang's releases from ``first`` to ``last``."""
    return RELEASES[RELEASES.index(first) : RELEASES.index(last) + 1]


def some(releases: Sequence[str]) -> tuple[str, ...]:
    """The newest of these releases, and all of them in ``make soak``: each costs a process that imports it. ``make
    engines`` checks all releases.
    """
    return tuple(releases) if SOAK else (releases[-1],)


def sampled(cases: Iterable[T], one_in: int) -> list[T]:
    """One in ``one_in`` of the cases, and all of them in ``make soak``: another command looks at each case, too."""
    return [*cases][:: 1 if SOAK else one_in]


def have(release: str) -> Path:
    """The sources of the release; skips the test where they cannot be had."""
    pytest.importorskip("triton")
    try:
        return download.release(release)
    except EngineError as error:
        pytest.skip(str(error))


def driven(release: str, script: str, *arguments: str) -> list[dict[str, Any]]:
    """The last line that the script printed, as JSON. The first argument of the script is the release."""
    have(release)
    answer: list[dict[str, Any]] = forked.run(release, textwrap.dedent(script), [release, *arguments]).answer()
    return answer

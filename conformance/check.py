"""Runs the stateful machine against a subject and says what it found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as seeded
from hypothesis.reporting import with_reporter
from hypothesis.stateful import run_state_machine_as_test

from conformance.allocator import AllocatorRun
from conformance.busy_rules import SessionRuns
from conformance.cache import CacheRun
from conformance.cache_rules import CacheRuns
from conformance.lock_ref import LockRefRun
from conformance.lock_rules import LockRefRuns
from conformance.machine import CONFORMS, LATENT, VIOLATION, Finding, Json, LockStep, Trace
from conformance.mamba_rules import MambaSlotsRuns
from conformance.mamba_slots import MambaSlotsRun
from conformance.session_busy import SessionRun
from conformance.shrink import shrink
from conformance.stateful import AllocatorRuns, Machine, Sink, SwaMappingRuns
from conformance.swa_mapping import SwaMappingRun

STEMS: dict[str, tuple[type[Machine], type[LockStep]]] = {
    "allocator": (AllocatorRuns, AllocatorRun),
    "swa_mapping": (SwaMappingRuns, SwaMappingRun),
    "lock_ref": (LockRefRuns, LockRefRun),
    "session_trim": (SessionRuns, SessionRun),
    "mamba_slots": (MambaSlotsRuns, MambaSlotsRun),
    "cache": (CacheRuns, CacheRun),
}
STEP_COUNT = 40  # operations in one drawn run


@dataclass
class Result:
    """What a check found: ``trace`` is the shrunk run that shows ``law`` broken."""

    stem: str
    verdict: str
    steps: int
    transitions: dict[str, int]
    law: str | None = None
    sentence: str | None = None
    detail: str | None = None
    trace: Trace | None = None
    known: list[Json] = field(default_factory=list)
    seconds: float = 0.0


def check(
    stem: str,
    make: Callable[[Json], Any],
    examples: int = 200,
    seed: int | None = None,
    strict: bool = True,
    avoid: Sequence[str] = (),
    page_sizes: tuple[int, ...] | None = None,
) -> Result:
    """Draws ``examples`` runs of ``stem`` on subjects from ``make``; without ``seed`` they are always the same.

    ``strict``: a latent finding fails the run as a violation does. ``page_sizes``: other ones than the stem's own.
    """
    sink = Sink()
    found = _drawn(stem, make, sink, examples, seed, strict, avoid, page_sizes)
    if found is None and sink.latent is not None:
        found = _drawn(stem, make, Sink(), examples, seed, True, avoid, page_sizes) or sink.latent
    transitions = {f"{name} {outcome}": n for (name, outcome), n in sorted(sink.counts.items())}
    result = Result(stem, CONFORMS, sink.steps, transitions)
    return result if found is None else _with(result, *found)


def _with(result: Result, finding: Finding, trace: Trace) -> Result:
    result.verdict = LATENT if finding.latent else VIOLATION
    result.law, result.sentence, result.detail, result.trace = finding.law, finding.sentence, finding.detail, trace
    return result


def _drawn(
    stem: str,
    make: Callable[[Json], Any],
    sink: Sink,
    examples: int,
    seed: int | None,
    strict: bool,
    avoid: Sequence[str],
    page_sizes: tuple[int, ...] | None,
) -> tuple[Finding, Trace] | None:
    rules, run_class = STEMS[stem]
    fixed = {"make": staticmethod(make), "run_class": run_class, "sink": sink}
    sizes = {} if page_sizes is None else {"page_sizes": page_sizes}
    machine = type(rules.__name__, (rules,), {**fixed, **sizes, "strict": strict, "avoid": tuple(avoid)})
    factory: Any = machine if seed is None else seeded(seed)(machine)
    try:
        with with_reporter(lambda _: None):
            run_state_machine_as_test(factory, settings=_settings(examples, seed))
    except Finding:
        assert sink.failure is not None, "a finding is kept where it is raised"
        return shrink(*sink.failure, lambda config: run_class(make(config), config, strict, avoid))
    return None


def _settings(examples: int, seed: int | None) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=STEP_COUNT,
        derandomize=seed is None,
        database=None,
        deadline=None,
        print_blob=False,
        report_multiple_bugs=False,
        phases=(Phase.generate,),  # conformance.shrink makes it small
        suppress_health_check=list(HealthCheck),
    )

"""Searches for a run of a stem on which an engine breaks a law: draws runs, shrinks what fails, and says what was
found.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as seeded
from hypothesis.reporting import with_reporter
from hypothesis.stateful import run_state_machine_as_test

from conformance.engines.protocol import Json
from conformance.lockstep import CONFORMS, LATENT, UNSUPPORTED, VIOLATION, Finding
from conformance.machine import Sink
from conformance.shrink import shrink
from conformance.stems import STEMS, start
from conformance.traces import Trace

STEP_COUNT = 40  # operations in one drawn run


@dataclass(frozen=True)
class Search:
    """How runs are drawn.

    ``examples``: how many runs. ``seed``: with ``None`` every check draws the same runs. ``strict``: a latent finding
    ends the run as a violation does. ``exclude``: the known differences that the runs avoid (``conformance.known``).
    ``page_sizes``: in tokens; with ``None`` those of the stem's machine.
    """

    examples: int = 200
    seed: int | None = None
    strict: bool = True  # a latent finding ends the run as a violation does
    exclude: Collection[StrEnum] = ()
    page_sizes: tuple[int, ...] | None = None


@dataclass
class Result:
    """What a check found.

    ``verdict``: conforms, latent or violation; unsupported if the engine supports no drawn configuration. ``steps``:
    how many operations were sent. ``transitions``: how often each transition of the law was done and refused. Where a
    law is broken: its name (``law``), what kind of law it is (``kind``), the law in English (``sentence``), where it
    broke, with the values (``detail``), and the shrunk run (``trace``).
    """

    stem: str
    verdict: str
    steps: int
    transitions: dict[str, int]
    law: str | None = None
    kind: str | None = None
    sentence: str | None = None
    detail: str | None = None
    trace: Trace | None = None
    known: list[Json] = field(default_factory=list)
    seconds: float = 0.0


def check(stem: str, make: Callable[[Json], Any], search: Search | None = None) -> Result:
    """Draws runs of ``stem`` on engines that ``make`` builds from configurations, and returns what they show.

    After a latent finding a second, strict search looks for it again, so that the latent finding can be shrunk.
    """
    asked = search or Search()
    sink = Sink()
    found = _drawn(stem, make, sink, asked)
    if found is None and sink.latent is not None:
        found = _drawn(stem, make, Sink(), replace(asked, strict=True)) or sink.latent
    transitions = {f"{name} {outcome}": n for (name, outcome), n in sorted(sink.counts.items())}
    result = Result(stem, CONFORMS if sink.runs else UNSUPPORTED, sink.steps, transitions)
    if found is not None:
        finding, result.trace = found
        result.verdict = LATENT if finding.latent else VIOLATION
        result.law, result.kind = finding.law, finding.kind
        result.sentence, result.detail = finding.sentence, finding.detail
    return result


def _drawn(stem: str, make: Callable[[Json], Any], sink: Sink, search: Search) -> tuple[Finding, Trace] | None:
    rules, run_class = STEMS[stem]
    fixed = {"make": staticmethod(make), "run_class": staticmethod(run_class), "sink": sink}
    sizes = {} if search.page_sizes is None else {"page_sizes": search.page_sizes}
    machine = type(rules.__name__, (rules,), {**fixed, **sizes, "strict": search.strict, "exclude": search.exclude})
    factory: Any = machine if search.seed is None else seeded(search.seed)(machine)
    try:
        with with_reporter(lambda _: None):
            run_state_machine_as_test(factory, settings=_settings(search))
    except Finding:
        assert sink.failure is not None, "a finding is kept where it is raised"
        return shrink(*sink.failure, lambda config: start(stem, make, config, search.strict, search.exclude))
    return None


def _settings(search: Search) -> settings:
    return settings(
        max_examples=search.examples,
        stateful_step_count=STEP_COUNT,
        derandomize=search.seed is None,
        database=None,
        deadline=None,
        print_blob=False,
        report_multiple_bugs=False,
        phases=(Phase.generate,),  # conformance.shrink does the shrinking
        suppress_health_check=list(HealthCheck),
    )

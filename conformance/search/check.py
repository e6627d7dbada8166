"""Searches for a run of a stem on which an engine breaks a law: draws runs, shrinks what fails, and says what was
found.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as seeded
from hypothesis.errors import Flaky
from hypothesis.reporting import with_reporter
from hypothesis.stateful import run_state_machine_as_test

from conformance.driver.draws import by_seed_alone
from conformance.driver.lockstep import CONFORMS, LATENT, UNSUPPORTED, VIOLATION, Finding, LockStep
from conformance.driver.protocol import Json
from conformance.driver.trace import Trace
from conformance.engines.registry import every_kind
from conformance.stems.exclusions import looks_past
from conformance.stems.kinds import Kinds
from conformance.stems.machine import Sink, StemMachine, TimeIsUp
from conformance.stems.stem_registry import ROOMS, start
from conformance.traces.harm_found import Harm
from conformance.traces.outcome import How
from conformance.traces.shrink import shrink

STEP_COUNT = 40  # operations in one drawn run


@dataclass(frozen=True)
class Search:
    """How runs are drawn.

    ``examples``: how many runs. ``seed``: with ``None`` every check draws the same runs. ``strict``: a latent finding
    ends the run as a violation does. ``exclude``: the known differences that the runs avoid
    (``conformance.stems.exclusions``). ``page_sizes``: in tokens; with ``None`` those of the stem's machine. ``parts``:
    what requests and nodes have in runs of ``session_trim``, ``cache`` and ``lock_ref``, such as ``("full", "swa")``;
    with ``None`` every kind is drawn. ``kinds``: the kinds of trees of the engine; with ``None`` those that any engine
    declares. ``steered``: half of the runs are drawn so that they are like the runs which
    ``Sink.worth`` values most.
    """

    examples: int = 200
    seed: int | None = None
    strict: bool = True  # a latent finding ends the run as a violation does
    exclude: Collection[StrEnum] = ()
    page_sizes: tuple[int, ...] | None = None
    parts: tuple[str, ...] | None = None
    kinds: Kinds | None = None
    steered: bool = False


@dataclass
class Result:
    """What a check found.

    ``verdict``: conforms, latent or violation; unsupported if the engine supports no drawn configuration. ``steps``:
    how many operations were sent. ``transitions``: how often each transition of the law was done and refused. Where a
    law is broken: its name (``law``), what kind of law it is (``kind``), the law in English (``sentence``), where it
    broke, with the values (``detail``), what a request has read that was not its own (``harm``), and the shrunk run
    (``trace``), or where ``how`` says so a run that is not shrunk; and the run from which it was shrunk (``drawn``).
    ``runs``: how many runs were started.
    ``cut_short``: the time was up before all runs were drawn.
    """

    stem: str
    verdict: str
    steps: int
    transitions: dict[str, int]
    law: str | None = None
    kind: str | None = None
    sentence: str | None = None
    detail: str | None = None
    harm: Json | None = None
    trace: Trace | None = None
    how: How = How.SHRUNK
    drawn: Trace | None = None
    runs: int = 0
    cut_short: bool = False


def check(
    stem: str,
    make: Callable[[Json], Any],
    search: Search | None = None,
    sink: Sink | None = None,
) -> Result:
    """Draws runs of ``stem`` on engines that ``make`` builds from configurations, and returns what they show.

    After a latent finding a second, strict search looks for it again, so that the latent finding can be shrunk.
    ``sink`` counts what is done; with one that has counted earlier searches, the result counts these too. Its
    ``before`` may raise ``TimeIsUp``, which cuts the search short.
    """
    asked, sink = search or Search(), sink or Sink()
    found, cut_short = None, False
    try:
        found = _drawn(stem, make, sink, asked)
        if found is None and sink.latent is not None:
            again = Sink(before=sink.before, late=sink.late, refused=sink.refused)
            found = _drawn(stem, make, again, replace(asked, strict=True))
    except TimeIsUp:
        cut_short = True
    if found is None and sink.latent is not None:
        found = FoundRun(*sink.latent, How.CUT_SHORT if cut_short else How.DRAWN, sink.latent[1])
    verdict = CONFORMS if sink.runs else UNSUPPORTED
    result = Result(stem, verdict, sink.steps, sink.transitions, runs=sink.runs, cut_short=cut_short)
    if found is not None:
        finding, result.trace, result.how, result.drawn = found
        result.verdict = LATENT if finding.latent else VIOLATION
        result.law, result.kind = finding.law, finding.kind
        result.sentence, result.detail = finding.sentence, finding.detail
        result.harm = None if finding.harm is None else Harm.of(finding.harm).as_json()
    return result


class FoundRun(NamedTuple):
    """A finding that ended a drawn run, the run as far as it was shrunk, how short that is, and the run as drawn."""

    finding: Finding
    trace: Trace
    how: How
    drawn: Trace


def _drawn(stem: str, make: Callable[[Json], Any], sink: Sink, search: Search) -> FoundRun | None:
    """The first finding that ends a run, and its run, shrunk as far as the time allows."""
    with suppress(Finding):
        draw(stem, make, sink, search)
        return None
    # Not in a handler: the finding would be the context of what an engine raises while the run is shrunk.
    assert sink.failure is not None, "a finding is kept where it is raised"
    return _shrunk(sink.failure, stem, make, sink, search)


def _shrunk(
    failure: tuple[Finding, Trace], stem: str, make: Callable[[Json], Any], sink: Sink, search: Search
) -> FoundRun:
    """The smallest failing run that is found in time, with its finding."""
    best, drawn = failure, failure[1]

    def accepts(finding: Finding, trace: Trace) -> bool:
        nonlocal best
        best = finding, trace
        return True

    def fresh(config: Json) -> LockStep:
        return start(stem, make, config, search.strict, looks_past(search.exclude))

    def in_time() -> None:
        if sink.late():
            raise TimeIsUp

    try:
        return FoundRun(*shrink(*failure, fresh, accepts, before=in_time), How.SHRUNK, drawn)
    except TimeIsUp:
        return FoundRun(*best, How.CUT_SHORT, drawn)


def draw(stem: str, make: Callable[[Json], Any], sink: Sink, search: Search) -> None:
    """Draws runs of ``stem`` on engines that ``make`` builds. Raises the ``Finding`` that ends a run; ``sink`` has the
    run. Raises ``EngineError`` where the engine can have no verdict, since it uses what is stood in for.
    """
    machine = machine_of(stem, make, sink, search)
    factory: Any = machine if search.seed is None else seeded(search.seed)(machine)
    with with_reporter(lambda _: None), by_seed_alone():
        try:
            run_state_machine_as_test(factory, settings=_settings(search))
        except (Flaky, TimeIsUp):
            if sink.failure is None or not sink.time_is_up:
                raise
            failure = sink.failure[0]  # Hypothesis repeats a run that fails, and there the time was over
        except Exception as error:
            if sink.no_verdict is None:
                raise
            raise sink.no_verdict from error
        else:
            return
    raise failure  # not in the handler: it does not come of the repetition


def machine_of(stem: str, make: Callable[[Json], Any], sink: Sink, search: Search) -> type[StemMachine]:
    """The machine that draws these runs of ``stem``."""
    rules, run_class = ROOMS[stem].machine, ROOMS[stem].run
    fixed = {"make": staticmethod(make), "run_class": staticmethod(run_class), "sink": sink}
    sizes = {} if search.page_sizes is None else {"page_sizes": search.page_sizes}
    fixed |= {"strict": search.strict, "exclude": search.exclude, "parts": search.parts}
    fixed["kinds"] = search.kinds or every_kind()
    return type(rules.__name__, (rules,), {**fixed, **sizes})


def _settings(search: Search) -> settings:
    return settings(
        max_examples=search.examples,
        stateful_step_count=STEP_COUNT,
        derandomize=search.seed is None,
        database=None,
        deadline=None,
        print_blob=False,
        report_multiple_bugs=False,
        phases=(
            Phase.generate,
            *([Phase.target] if search.steered else []),
        ),  # conformance.traces.shrink does the shrinking
        suppress_health_check=list(HealthCheck),
    )

"""The runs that are timed: drawn once by the Hypothesis machine of each stem from a fixed seed, then replayed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from conformance.driver.lockstep import LockStep
from conformance.driver.trace import Trace
from conformance.engines.registry import Loaded, every_kind
from conformance.stems.machine import Sink
from conformance.stems.stem_registry import STEMS

BATCH = 25  # runs that one seed draws


def draw(stem: str, own: Loaded, operations: int) -> list[Trace]:
    """Runs of a stem on our implementation, with so many operations in all, or a few more."""
    found: list[Trace] = []
    batches = _batches(stem, own)
    while sum(len(trace.steps) for trace in found) < operations:
        found += next(batches)
    return found


def _batches(stem: str, own: Loaded) -> Iterator[list[Trace]]:
    rules, run_class = STEMS[stem].machine, STEMS[stem].run
    fixed = {"make": staticmethod(own.makers[stem]), "run_class": staticmethod(run_class), "sink": Sink()}
    fixed["kinds"] = every_kind()
    number = 0
    while True:
        number += 1
        traces: list[Trace] = []
        machine: Any = type(rules.__name__, (rules,), {**fixed, "teardown": _collect(traces)})
        run_state_machine_as_test(seed(number)(machine), settings=_settings())
        yield traces


def _collect(traces: list[Trace]) -> Any:
    """A teardown that keeps the run's trace."""

    def teardown(machine: Any) -> None:
        if machine.run is not None:
            traces.append(machine.lock.trace)

    return teardown


def _settings() -> settings:
    return settings(
        max_examples=BATCH,
        stateful_step_count=40,
        database=None,
        deadline=None,
        derandomize=False,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )


def begin(stem: str, own: Loaded, trace: Trace) -> LockStep:
    """A fresh run on a fresh engine, as a check begins it."""
    return LockStep(STEMS[stem].run(own.makers[stem](trace.config), trace.config), trace.config)

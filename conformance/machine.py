"""Hypothesis draws the runs: the base of the six machines.

A rule of a machine sends what a caller of the engine can send in the present state, and nothing else; where it has
nothing to send, it does nothing. Pools are tiny, so that they are often exhausted and a failing run shrinks to few
operations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from hypothesis.stateful import RuleBasedStateMachine

from conformance.engines.protocol import Json, Unsupported
from conformance.lockstep import Finding, LockStep
from conformance.traces import Trace


@dataclass
class Sink:
    """What a check keeps of its runs: how many were started, how often each transition was done and refused, and the
    last failing run.
    """

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    runs: int = 0
    steps: int = 0
    failure: tuple[Finding, Trace] | None = None
    latent: tuple[Finding, Trace] | None = None


class StemMachine(RuleBasedStateMachine):
    """What every machine does with a run: start it, send operations, avoid known differences, count.

    ``make`` builds an engine from a configuration or raises ``Unsupported``. ``run_class`` is the stem's run.
    ``exclude``: the known differences to avoid. ``page_sizes``: in tokens. ``run`` is ``None`` before the start, and
    stays so where the engine supports no drawn configuration.
    """

    make: ClassVar[Callable[[Json], Any]]
    run_class: ClassVar[Callable[..., Any]]
    sink: ClassVar[Sink]
    strict: ClassVar[bool] = True
    exclude: ClassVar[Collection[StrEnum]] = ()
    page_sizes: ClassVar[tuple[int, ...]] = (1, 2, 4)

    run: Any = None
    lock: LockStep
    failed = False

    def begin(self, config: Json) -> bool:
        """Starts a run of this configuration. False if the engine does not support it."""
        cls = type(self)
        try:
            engine = cls.make(config)
        except Unsupported:
            return False
        self.run = cls.run_class(engine, config, self.strict, self.exclude)
        self.lock = LockStep(self.run, config)
        self.sink.runs += 1
        return True

    def do(self, op: str, **arguments: Any) -> None:
        """Sends one operation and keeps its finding. An operation that the engine lacks is counted and not sent."""
        if not self.offers(op):
            return
        self.sink.steps += 1
        try:
            self.lock.do(op, **arguments)
        except Finding as finding:
            self.failed = True
            self.sink.failure = (finding, self.lock.trace)
            raise
        if self.run.law.latent and not self.sink.latent:
            self.sink.latent = (self.run.law.latent, self.lock.trace)

    def teardown(self) -> None:
        """Adds the counts of this run to the check's."""
        if self.run is not None:
            self.sink.counts.update(self.run.law.counts)

    def excludes(self, difference: StrEnum) -> bool:
        """The run has to avoid this known difference."""
        return difference in self.exclude

    def pick(self, drawn: int, possible: dict[str, bool]) -> None:
        """Sends one of the operations that are possible, by a drawn number."""
        names = [name for name, can in possible.items() if can]
        if names:
            self.do(names[drawn % len(names)])

    def offers(self, op: str) -> bool:
        """The engine has the operation in this configuration. If it has not, that is counted."""
        has = op not in self.run.lacks
        if not has:
            self.run.law.counts[op, "not offered"] += 1
        return has


def started(machine: Any) -> bool:
    """The machine has a run."""
    return machine.run is not None

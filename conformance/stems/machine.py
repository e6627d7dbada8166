"""Hypothesis draws the runs: the base of the machines of all stems.

A rule of a machine sends what a caller of the engine can send in the present state, and nothing else; where it has
nothing to send, it does nothing. Pools are tiny, so that they are often exhausted and a failing run shrinks to few
operations.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Any, ClassVar
from zlib import crc32

from hypothesis import target
from hypothesis.stateful import RuleBasedStateMachine, invariant

from conformance.driver import no_verdict
from conformance.driver.lockstep import Finding, Law, LockStep, Witness
from conformance.driver.protocol import EngineError, Json, Misuse, Unsupported
from conformance.driver.trace import Trace
from conformance.stems.exclusions import looks_past
from conformance.stems.kinds import Kinds


class TimeIsUp(KeyboardInterrupt):
    """No more operations are to be sent. Hypothesis lets a ``KeyboardInterrupt`` through, and nothing else."""


STEPS_BACK = 6  # how often one run steps back before an operation that breaks a law, until it ends


def _no(*_: Any) -> bool:
    return False


def _fresh(_: Json) -> Trace | None:
    return None


def _unsteered(_: Law) -> float | None:
    return None


def wants_all(_: Json, __: Collection[str]) -> bool:
    """Every configuration will do."""
    return True


@dataclass
class Sink:
    """What a check keeps of its runs, and what it decides while they are drawn.

    ``counts``: how often each transition was done and refused. ``promised``: see ``conformance.driver.lockstep.Law``.
    ``lacks``: the operations that the engine did not have in some run. ``avoided``: by exclusion, how many drawn
    servers, messages of clients, and turns with copies to host memory it has changed. ``runs``: how many were started.
    ``failure``: the last run that ended with a finding. ``latent``: the first run with a latent finding.
    ``time_is_up``: a run was cut short by ``TimeIsUp``. ``no_verdict``: why the engine can have no verdict, if it
    cannot.

    ``passes(finding, trace)`` is called with each finding. Where it answers true for a violation, the run steps back
    before the operation that broke the law, and goes on without it; else the run fails. ``before(trace, step)`` is
    called before each operation; it may raise ``TimeIsUp``. ``after(trace, law)`` is called after each operation that
    broke no law. ``late()``: the time for making a failing run small is over.

    ``beginning(config)`` is called with each drawn configuration: the run begins with the trace that it returns, in the
    configuration of this trace, or fresh where it returns ``None``. It may depend on ``config`` alone, since Hypothesis
    asks that equal draws give equal runs. ``wanted(config, lacks)`` says whether a run is to be made in a
    configuration in which the engine lacks these operations; where it is not, another configuration takes its place.
    ``begun(config, lacks)`` is called when an engine was built. ``refused``: the configurations that the engine has
    refused, as text; they are not tried again. ``worth(law)`` is called at the end of each run: Hypothesis then draws
    runs that are like those with a high number (``hypothesis.target``); ``None`` says nothing about the run.
    ``witness``: sees each granted step of the law, see ``conformance.driver.lockstep.Witness``.
    """

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    lacks: set[str] = field(default_factory=set)
    promised: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    runs: int = 0
    steps: int = 0
    failure: tuple[Finding, Trace] | None = None
    latent: tuple[Finding, Trace] | None = None
    time_is_up: bool = False
    no_verdict: EngineError | None = None
    passes: Callable[[Finding, Trace], bool] = _no
    before: Callable[[Trace, Json], object] = _no
    after: Callable[[Trace, Law], object] = _no
    late: Callable[[], bool] = _no
    beginning: Callable[[Json], Trace | None] = _fresh
    worth: Callable[[Law], float | None] = _unsteered
    wanted: Callable[[Json, Collection[str]], bool] = wants_all
    begun: Callable[[Json, Collection[str]], object] = _no
    refused: set[str] = field(default_factory=set)
    avoided: Counter[str] = field(default_factory=Counter)
    witness: Witness | None = None

    def add(self, law: Law) -> None:
        """Adds the counts of one run."""
        self.counts.update(law.counts)
        self.promised.update(law.promised)

    @property
    def transitions(self) -> dict[str, int]:
        """``counts`` with a text for each transition and outcome, such as "alloc done"."""
        return {f"{name} {outcome}": n for (name, outcome), n in sorted(self.counts.items())}


class StemMachine(RuleBasedStateMachine):
    """What every machine does with a run: start it, send operations, avoid known differences, count.

    ``make`` builds an engine from a configuration or raises ``Unsupported``. ``run_class`` is the stem's run.
    ``exclude``: the known differences to avoid. ``page_sizes``: in tokens. ``parts``: what requests and nodes
    have, see ``Search``. ``kinds``: the kinds of trees to draw from. ``run`` is ``None`` before the start, and stays so
    where the engine supports no drawn configuration.
    """

    make: ClassVar[Callable[[Json], Any]]
    run_class: ClassVar[Callable[..., Any]]
    sink: ClassVar[Sink]
    strict: ClassVar[bool] = True
    exclude: ClassVar[Collection[StrEnum]] = ()
    page_sizes: ClassVar[tuple[int, ...]] = (1, 2, 4)
    parts: ClassVar[tuple[str, ...] | None] = None
    kinds: ClassVar[Kinds]

    run: Any = None
    lock: LockStep
    failed = False
    skips = False  # a rule has stepped back: its other operations are not sent
    steps_back = 0
    goes_on = False  # the run began with a kept trace

    def begin(self, config: Json) -> bool:
        """Starts a run of this configuration, or with a trace that the sink has for it. False if the engine does not
        support it.
        """
        kept = self.sink.beginning(config)
        if kept is not None and self._begins_with(kept):
            return True
        text = json.dumps(config, sort_keys=True)
        if text in self.sink.refused or not self.sink.wanted(config, ()):
            return False
        try:
            with self._keeping_reasons(), no_verdict.watched():
                self._start(config)
        except Unsupported:
            self.sink.refused.add(text)
            return False
        self.sink.begun(config, self.run.lacks)
        if not self.sink.wanted(config, self.run.lacks):
            self.run = None
            return False
        self.sink.runs += 1
        self.has_begun()
        return True

    def begin_one_of(self, first: Json, others: Iterable[Json]) -> bool:
        """Starts a run of the first configuration; where the engine does not support it, of one of the others, in an
        order that depends on the first alone. So each kind that the engine supports is drawn as often as any other.
        """
        if self.begin(first):
            return True
        rest = list(others)
        Random(crc32(json.dumps(first, sort_keys=True).encode())).shuffle(rest)
        return any(self.begin(config) for config in rest)

    def _begins_with(self, kept: Trace) -> bool:
        """Starts a run with the operations of a kept trace. False if the engine cannot make all of them."""
        try:
            with self._keeping_reasons(), no_verdict.watched():
                self._start(kept.config)
            for step in kept.steps:
                self.sink.before(self.lock.trace, step)
                self.sink.steps += 1
                with self._keeping_reasons():
                    self.lock.do(**step)
        except TimeIsUp:
            self.failed = self.skips = True
            raise
        except (Finding, Misuse, Unsupported):
            self.run = None
            return False
        self.sink.runs += 1
        self._goes_on_from_there()
        return True

    def _goes_on_from_there(self) -> None:
        """The operations of a kept run are done. From here on rules are drawn."""
        self.goes_on = True
        self.end_rule()
        self.has_begun()

    def end_rule(self) -> None:
        """Called after a kept run, which may be cut in the middle of a rule: ends what rules expect to be at an end."""

    def has_begun(self) -> None:
        """Called when a run has begun: reads from its trace, which is not empty where it begins with a kept trace, what
        the rules go on from.
        """

    def follow(self, kept: Trace) -> int:
        """Starts a run with the operations of a kept trace, and leaves out each one that no caller may send in the
        state that this engine is in. Returns how many were left out. Raises ``Finding`` where one breaks a law,
        ``Unsupported`` for one that the engine lacks, and ``Misuse`` for one that could be sent in part only.
        """
        self._start(kept.config)
        left_out = sum(not self.lock.does(step) for step in kept.steps)
        self._goes_on_from_there()
        return left_out

    def _start(self, config: Json) -> None:
        cls = type(self)
        engine = cls.make(config)
        self.run = cls.run_class(engine, config, self.strict, looks_past(self.exclude))
        self.run.law.witness = self.sink.witness
        self.lock = LockStep(self.run, config)

    def do(self, op: str, **arguments: Any) -> None:
        """Sends one operation and keeps its finding. An operation that the engine lacks is counted and not sent."""
        if self.skips or not self.offers(op):
            return
        try:
            self.sink.before(self.lock.trace, {"op": op, **arguments})
        except TimeIsUp:
            self.failed = self.skips = self.sink.time_is_up = True
            raise
        self.sink.steps += 1
        latents = len(self.run.law.latents)
        found: Finding | None = None
        try:
            with self._keeping_reasons():
                self.lock.do(op, **arguments)
        except Finding as finding:
            found = finding
        except Misuse:
            self.failed = True
            if not self.steps_back and not self.goes_on:
                raise
            self.skips = True  # the rule relied on an operation that was taken back, or on a fresh run
        if found is not None:  # not in the handler: the finding is not what an exception of the repetition comes of
            self._has(found)
            return
        for latent in self.run.law.latents[latents:]:
            self.sink.latent = self.sink.latent or (latent, self.lock.trace)
            self.sink.passes(latent, self.lock.trace)
        if not self.failed:
            self.sink.after(self.lock.trace, self.run.law)

    def _has(self, finding: Finding) -> None:
        """Steps back before the operation that broke the law, where the sink passes the finding; else raises it."""
        if self.sink.passes(finding, self.lock.trace):
            self._step_back()
            return
        self.failed = True
        self.sink.failure = (finding, self.lock.trace)
        raise finding

    @contextmanager
    def _keeping_reasons(self) -> Iterator[None]:
        """Keeps the ``EngineError`` that leaves the block: Hypothesis may raise another error in its place."""
        try:
            yield
        except EngineError as error:
            self.sink.no_verdict = error
            raise

    def _step_back(self) -> None:
        """Starts again and repeats the run without its last operation. The rest of the rule is skipped.

        The run ends where it has stepped back too often, or where the repetition does not show what the run showed.
        """
        self.skips, self.steps_back = True, self.steps_back + 1
        config, steps = self.lock.trace.config, self.lock.trace.steps[:-1]
        if self.steps_back > STEPS_BACK:
            self.failed = True
            return
        try:
            with self._keeping_reasons(), no_verdict.watched():
                self._start(config)
            for step in steps:
                with self._keeping_reasons():
                    self.lock.do(**step)
        except (Finding, Misuse, Unsupported):
            self.failed = True

    @invariant()
    def a_rule_has_ended(self) -> None:
        """Operations are sent again after a rule that has stepped back, unless the run has ended."""
        self.skips = self.failed

    def teardown(self) -> None:
        """Adds the counts of this run to the check's."""
        if self.run is None:
            return
        self.sink.add(self.run.law)
        self.sink.lacks.update(self.run.lacks)
        worth = self.sink.worth(self.run.law)
        if worth is not None:
            target(worth)

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

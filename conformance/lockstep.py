"""The lock-step: the one driver of every run. It calls the engine, takes one snapshot, has the answer explained as steps
of the law, and judges.

A *run* is a sequence of operations on rows, requests and sessions (``extend row 0 by 3 tokens``), never on slot numbers:
which page is handed out is the engine's choice, so a sequence can be replayed on any engine. A stem gives the driver its
operations, the explanation of each answer, and the projection of a snapshot onto the law's state (``StemRun``).
"""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from conformance.diff import Change, Names, against_law, changes, value_of
from conformance.engines.protocol import Json, Misuse, OutOfMemory
from conformance.traces import Trace
from spec.logic import Invariant, Requirement, Stem, Step

VIOLATION, LATENT, CONFORMS = "violation", "latent", "conforms"
# What a finding names as its law beside the invariants and transitions of the spec.
ANSWERED = "lawful_call_is_answered"
REFUSED = "refused_changes_nothing"
ENOUGH = "enough_is_granted"
ENOUGH_SENTENCE = "A call that fits is granted."
BAD_INPUT = "bad_input_is_refused"
# What kind of thing was broken.
INVARIANT, PROMISE, CHOICE, DIFFERENCE, ANSWER = "invariant", "promise", "choice", "difference", "answer"
OFTEN = 64  # one judgement in so many evaluates every law, though the engine shows the law's own state


class Finding(AssertionError):
    """The engine broke a law. ``law``: its name; ``kind``: an invariant, the promise or the choice of a transition, a
    difference after one, or an answer; ``sentence``: the law in English; ``detail``: where it broke, with the values.
    """

    def __init__(self, law: str, sentence: str, detail: str, latent: bool = False, kind: str = ANSWER) -> None:
        super().__init__(f"{law}: {sentence} ({detail})")
        self.law, self.sentence, self.detail, self.latent, self.kind = law, sentence, detail, latent, kind


@dataclass(frozen=True)
class Call:
    """One call to the engine. ``risky``: it may kill the process, so it is tried in a forked process first."""

    name: str
    send: Callable[[], Any]
    risky: bool = False


Calls = Generator[Call | None, Any, None]
Operation = Callable[..., Calls]
"""An operation yields its calls to the engine, one by one, and explains each answer before it yields the next call. The
driver judges between two calls, and at the end. Where the law takes a step for the next call before it is made, the
operation yields ``None`` first: judge now.
"""

REFUSAL = object()  # the answer of a call that raised OutOfMemory
_END = object()  # an operation yields nothing more


class Law:
    """The law's side of a run: its state, which transitions alone change, and what was found to break it.

    ``strict``: a latent finding ends the run as a violation does. ``ignores``: findings that are looked past, since they
    are known. ``names``: how the law's numbers are said; a run sets better ones than numbers.
    """

    def __init__(
        self, stem: Stem, state: Any, strict: bool = True, ignores: Callable[[Finding], bool] = lambda _: False
    ) -> None:
        self.stem, self.state, self.strict, self.ignores = stem, state, strict, ignores
        self.names = Names()
        self.counts: Counter[tuple[str, str]] = Counter()
        self.latent: Finding | None = None
        self.refusals: list[Finding] = []  # calls that were refused though there is room, since the last judgement
        self.last = ""  # the transition that was taken last
        self.operation = ""  # the operation that runs

    def sentence(self, name: str) -> str:
        """A transition's law in English, or that of a refused call."""
        known = self.stem.transitions.get(name)
        return " ".join((known.__doc__ or "").split()) if known else "A refused call leaves everything as it was."

    def caller_step(self, name: str, *arguments: Any) -> Step[Any]:
        """A step that the caller decides. A promise that is false is the run's own mistake (``Misuse``)."""
        step = self.stem.transitions[name](self.state, *arguments)
        self.must_keep(name, step)
        if step.fits:
            self._must_hold(CHOICE, name, step.choice, arguments)
            self._take(name, step)
        else:
            self.count(name, "refused")
        return step

    def engine_step(self, name: str, *arguments: Any) -> Step[Any]:
        """A step that explains what the engine did: its promises are the engine's to keep, and there must be room."""
        step = self.stem.transitions[name](self.state, *arguments)
        self.must_fit(name, bool(step.fits))
        self._must_hold(PROMISE, name, step.promises, arguments)
        self._must_hold(CHOICE, name, step.choice, arguments)
        self._take(name, step)
        return step

    def _take(self, name: str, step: Step[Any]) -> None:
        for call in step.calls:  # the provers show that what a transition calls is lawful; each run looks again
            if not call.step.granted:
                raise AssertionError(f"{name} calls {call.transition.__name__} unlawfully: {call.step.broken()}")
        self.state = step.then
        self.count(name, "done")

    def count(self, name: str, outcome: str) -> None:
        """The transition was done, or refused."""
        self.counts[name, outcome] += 1
        self.last = name

    @staticmethod
    def must_keep(name: str, step: Step[Any]) -> None:
        """Raises ``Misuse`` if a promise of the step is false."""
        if not step.kept:
            raise Misuse(f"{name}: {'; '.join(f'{r.sentence!r} is false' for r in step.promises if not r.holds)}")

    def _must_hold(self, kind: str, name: str, asked: tuple[Requirement, ...], arguments: tuple[Any, ...]) -> None:
        broken = [r.sentence for r in asked if not r.holds]
        if broken:
            what = " and ".join(f'"{sentence}"' for sentence in broken)
            verb = "is" if len(broken) == 1 else "are"
            values = self._values(name, arguments)
            detail = f"{self.operation} broke a {kind} of {name}: {what} {verb} false: {values}"
            raise Finding(name, self.sentence(name), detail, kind=kind)

    def _values(self, name: str, arguments: tuple[Any, ...]) -> str:
        """The arguments of a transition in words."""
        known = list(inspect.signature(self.stem.transitions[name]).parameters)[1:]
        pairs = zip(known, arguments, strict=False)
        return ", ".join(value_of(parameter, value, self.names) for parameter, value in pairs)

    def must_fit(self, name: str, fits: bool) -> None:
        """The engine granted a call."""
        if not fits:
            raise Finding(REFUSED, "A call that does not fit is refused.", f"{name} was granted")

    def refused(self, name: str, fits: bool) -> None:
        """The engine said out of memory. That is found last where there is room: a leak may be the reason."""
        if fits:
            self.refusals.append(Finding(ENOUGH, ENOUGH_SENTENCE, f"{name} said out of memory", latent=True))
        self.count(name, "refused")

    def report(self, finding: Finding) -> None:
        """Raises a violation; a latent finding is kept and the run goes on, unless the run is strict."""
        if self.ignores(finding):
            return
        if not finding.latent or self.strict:
            raise finding
        self.latent = self.latent or finding


class StemRun(Protocol):
    """What a stem gives the driver. ``seen``: the last snapshot. ``lacks``: the operations that the engine does not have
    in this configuration, so that they cannot be sent.
    """

    law: Law
    operations: Mapping[str, Operation]
    lacks: Collection[str]
    seen: Any

    def snapshot(self) -> Any:
        """One read of the engine."""

    def follow(self) -> None:
        """Takes the law's steps for what the engine does of its own accord, as sorting a list or evicting a node."""

    def project(self) -> Any:
        """The law's state with everything that the snapshot shows in its place; the law's own where nothing differs."""

    def hidden(self, change: Change) -> bool:
        """No caller can tell this difference, as the mapping of a free slot; only a latent law may speak of it."""

    def beyond_state(self) -> list[str]:
        """Differences in what the snapshot shows and the law's state has no field for, as a page that is listed twice."""

    def judge(self) -> None:
        """Raises a finding about what no law of the state says, as who owns which row of the engine."""


class LockStep:
    """One run: operations are done to the law and to the engine, and compared after each call."""

    def __init__(self, run: StemRun, config: Json) -> None:
        self.run, self.law = run, run.law
        self.trace = Trace(self.law.stem.name, dict(config))
        self.judged = 0
        self._theorems = [law for law in self.law.stem.invariants.values() if law.theorem]

    def do(self, op: str, **arguments: Any) -> None:
        """Does one operation; raises ``Finding`` where the engine breaks a law, ``Misuse`` where nobody may send it."""
        operation = self.run.operations.get(op)
        if operation is None:
            raise Misuse(f"{self.law.stem.name} has no operation {op!r}")
        self.trace.steps.append({"op": op, **arguments})
        self.law.operation = op
        if op in self.run.lacks:
            raise Misuse(f"the engine has no {op} in this configuration")
        calls = operation(**arguments)
        call: Any = next(calls, _END)
        while call is not _END:
            if call is None:
                self.judge(op)
                call = _sent(calls, None)
                continue
            answer = self._answer(call)
            self.run.seen = self.run.snapshot()
            call = _sent(calls, answer)
            if call is not None and call is not _END:
                self.judge(op)
        self.judge(op)

    def _answer(self, call: Call) -> Any:
        """The engine's answer to a lawful call; an exception is a finding, and so is the death of the process."""
        if call.risky and (died_of := killed_by(call.send)):
            raise Finding(ANSWERED, "A lawful call is answered.", f"{call.name} killed the process: {died_of}")
        try:
            return call.send()
        except OutOfMemory:
            return REFUSAL
        except (Misuse, Finding):
            raise
        except Exception as error:
            first = str(error).splitlines()[0] if str(error) else ""
            what = f"{call.name} raised {type(error).__name__}: {first}"
            raise Finding(ANSWERED, "A lawful call is answered.", what) from error

    def judge(self, op: str) -> None:
        """The laws on what the engine shows first, since they say what is wrong; then whatever else differs; last of all
        calls that were refused though there is room.
        """
        run, law = self.run, self.law
        run.follow()
        observed = run.project()
        differs = changes(law.state, observed)
        self._laws(observed, differs)
        told = [against_law(change, law.names) for change in differs if not run.hidden(change)] + run.beyond_state()
        if told:
            name = law.last or op
            raise Finding(name, law.sentence(name), "; ".join(told), kind=DIFFERENCE)
        run.judge()
        while law.refusals:
            law.report(law.refusals.pop(0))

    def _laws(self, observed: Any, differs: list[Change]) -> None:
        broken = self.broken(observed, differs)
        if not broken:
            return
        visible = [change for change in differs if not self.run.hidden(change)]
        words = [against_law(change, self.law.names) for change in visible or differs] + self.run.beyond_state()
        detail = "; ".join(words) or "nothing else differs from the law"
        for law in sorted(broken, key=lambda law: law.latent):
            self.law.report(Finding(law.name, law.sentence, detail, law.latent, INVARIANT))

    def broken(self, observed: Any, differs: list[Change]) -> list[Invariant]:
        """The laws that the observed state breaks, in what is current (a backup is the law's own).

        Where nothing differs, the observed state is the law's own, of which the provers show that it keeps every law:
        there the theorems are evaluated each time, and all laws once in ``OFTEN`` judgements.
        """
        self.judged += 1
        every = bool(differs) or self.judged % OFTEN == 0
        return [
            law for law in (self.law.stem.invariants.values() if every else self._theorems) if breaks(law, observed)
        ]


def breaks(law: Invariant, state: Any) -> bool:
    """A current part of the state breaks the law (finite reading)."""
    return any(not law.holds(part) for label, part in law.parts(state) if "saved" not in label.split("."))


def _sent(calls: Calls, answer: Any) -> Any:
    """The operation explains the answer; what it yields next."""
    try:
        return calls.send(answer)
    except StopIteration:
        return _END


def refusing(call: Callable[[], Any], law: Law, kind: str) -> Call:
    """A call with bad input of one kind: it must be answered with a clear error, and nothing may change."""
    law.counts["bad input", kind] += 1

    def send() -> None:
        try:
            call()
        except (ValueError, TypeError, RuntimeError):
            return
        raise Finding(BAD_INPUT, "Bad input is answered with a clear error.", f"{kind} was accepted")

    return Call(kind, send)


def killed_by(call: Callable[[], Any]) -> str:
    """The signal that ``call`` dies of in a forked process, empty if it lives (an exception is living)."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            call()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else ""

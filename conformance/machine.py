"""The lock-step: do the same thing to the spec and to the subject, then compare all that can be observed.

A *run* is a sequence of operations on rows (``extend row 0 by 3 tokens``), never of slot numbers: which page is handed
out is the subject's choice, so the same sequence can be replayed on any subject. No engine is known here by name.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from spec.logic import Invariant, Stem, Step

Json = dict[str, Any]

VIOLATION, LATENT, CONFORMS = "violation", "latent", "conforms"
ANSWERED = "lawful_call_is_answered"
REFUSED = "refused_changes_nothing"
ENOUGH = "enough_is_granted"


class Finding(AssertionError):
    """The subject broke a law. ``law`` is its name, ``sentence`` its English, ``detail`` where it broke."""

    def __init__(self, law: str, sentence: str, detail: str, latent: bool = False) -> None:
        super().__init__(f"{law}: {sentence} ({detail})")
        self.law, self.sentence, self.detail, self.latent = law, sentence, detail, latent


class Misuse(Exception):
    """An operation that no caller may send in this state; a run that contains it proves nothing."""


@dataclass
class Trace:
    """A configuration and the operations that were done; plain JSON, so that it can be kept and replayed."""

    stem: str
    config: Json
    steps: list[Json] = field(default_factory=list)

    def lines(self) -> list[str]:
        """One operation a line, as a call."""
        return [f"{s['op']}({', '.join(f'{k}={v}' for k, v in s.items() if k != 'op')})" for s in self.steps]


def killed_by(call: Callable[[], Any]) -> str:
    """The signal that ``call`` dies of in a forked process, empty if it lives (an exception is living)."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            call()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else ""


class LockStep:
    """One run of a subject beside the spec. Subclasses name the stem, its operations, and what can be observed.

    ``strict``: a latent finding ends the run too. ``avoid``: known differences that operations must look past.
    """

    stem: Stem

    def __init__(self, subject: Any, config: Json, strict: bool = True, avoid: Iterable[str] = ()) -> None:
        self.subject, self.config, self.strict, self.avoid = subject, config, strict, frozenset(avoid)
        self.state: Any = None
        self.trace = Trace(self.stem.name, dict(config))
        self.counts: Counter[tuple[str, str]] = Counter()
        self.latent: Finding | None = None
        self.last = ""

    # What subclasses say.

    def observed(self) -> Any:
        """The spec's state with everything that can be observed replaced by what the subject shows."""
        raise NotImplementedError

    def differences(self, seen: Any) -> str:
        """What a caller can tell apart between the spec's state and the observed one; empty if nothing."""
        raise NotImplementedError

    # The lock-step itself.

    def do(self, op: str, **arguments: Any) -> None:
        """Does one operation on both sides and compares; raises ``Finding`` where the subject breaks a law."""
        operation = getattr(self, "op_" + op, None)
        if operation is None:
            raise Misuse(f"{self.stem.name} has no operation {op!r}")
        self.trace.steps.append({"op": op, **arguments})
        operation(**arguments)
        self.compare(op)

    def step(self, name: str, *arguments: Any) -> Step[Any]:
        """The spec's word on one call; the state moves on if it is granted."""
        step = self.stem.transitions[name](self.state, *arguments)
        self.must_keep(name, step)
        if step.fits:
            wrong = step.broken()
            if wrong:
                raise Finding(name, self.sentence(name), "not so: " + "; ".join(wrong))
            self._calls_are_lawful(name, step)
            self.state = step.then
        self.counts[name, "done" if step.fits else "refused"] += 1
        self.last = name
        return step

    @staticmethod
    def _calls_are_lawful(name: str, step: Step[Any]) -> None:
        """What a transition calls is lawful: the provers show it, and each run looks again."""
        for call in step.calls:
            if not call.step.granted:
                raise AssertionError(f"{name} calls {call.transition.__name__}, but not so: {call.step.broken()}")

    @staticmethod
    def must_keep(name: str, step: Step[Any]) -> None:
        """A caller that breaks a promise is the run's own mistake."""
        if not step.kept:
            raise Misuse(f"{name}: {'; '.join(r.sentence for r in step.promises if not r.holds)}")

    def offers(self, name: str) -> bool:
        """The subject has this call in the run's configuration."""
        del name
        return True

    def must_offer(self, name: str) -> None:
        """A call that the engine does not have cannot be sent."""
        if not self.offers(name):
            raise Misuse(f"the subject has no {name} in this configuration")

    def sentence(self, name: str) -> str:
        """The law of a transition in English."""
        known = self.stem.transitions.get(name)
        return " ".join((known.__doc__ or "").split()) if known else "A refused call leaves everything as it was."

    def ask(self, name: str, call: Callable[[], Any], risky: bool = False) -> Any:
        """The subject's answer to a lawful call; an exception is a finding, and so is the death of the process."""
        if risky and (name_of := killed_by(call)):
            raise Finding(
                ANSWERED, "A lawful call is answered, not crashed on.", f"{name} killed the process: {name_of}"
            )
        try:
            return call()
        except Misuse:
            raise
        except Exception as error:
            what = f"{name} raised {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            raise Finding(ANSWERED, "A lawful call is answered, not crashed on.", what) from error

    def op_bad(self, kind: str) -> None:
        """Bad input: a clear error, and nothing changed."""
        self.must_refuse(kind, lambda: self.subject.bad(kind))

    def must_refuse(self, kind: str, call: Callable[[], Any]) -> None:
        """The call is bad input of this kind."""
        self.counts["bad input", kind] += 1
        try:
            call()
        except (ValueError, TypeError, RuntimeError):
            return
        raise Finding("bad_input_is_refused", "Bad input is answered with a clear error.", f"{kind} was accepted")

    def compare(self, op: str) -> None:
        """The laws on the observed state first, since they say what is wrong; then whatever else differs."""
        seen = self.observed()
        broken = self.broken(seen)
        for law, part in sorted(broken, key=lambda b: b[0].latent):
            self._report(law, part, seen)
        difference = self.differences(seen)
        if difference:
            name = self.last or op
            raise Finding(name, self.sentence(name), difference)

    def broken(self, seen: Any) -> list[tuple[Invariant, str]]:
        """The laws that the observed state breaks, in what is current (a saved part is the spec's own)."""
        return [
            (law, label)
            for law in self.stem.invariants.values()
            for label, part in law.parts(seen)
            if "saved" not in label.split(".") and not law.holds(part)
        ]

    def _report(self, law: Invariant, part: str, seen: Any) -> None:
        where = f"{part or 'state'}: {self.differences(seen) or self.details(seen)}"
        self.report(Finding(law.name, law.sentence, where, law.latent))

    def report(self, finding: Finding) -> None:
        """Raises a violation; a latent finding is kept and the run goes on, unless the run is strict."""
        if not finding.latent or self.strict:
            raise finding
        self.latent = self.latent or finding

    def details(self, seen: Any) -> str:
        """What differs where no caller looks (for latent findings)."""
        del seen
        return "nothing that a caller can tell"

"""The lock-step: the driver of every run. It calls the engine, reads one snapshot, explains the answer, and compares.

A *run* is a sequence of operations on rows, requests and sessions, such as "extend row 0 by 3 tokens". Operations
never name slots: which page is handed out is the engine's choice. So a recorded run can be replayed on any engine. The
*law* is the state machine of the stem in ``spec/``; a *step* of the law is one of its transitions. An operation
explains what the engine did as steps of the law. Then the driver compares the engine's snapshot with the law's state.

A stem gives the driver a ``StemRun``: its operations, and the projection of a snapshot onto the law's state.
"""

from __future__ import annotations

import contextlib
import faulthandler
import inspect
import os
import signal
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping
from typing import Any, NamedTuple, Protocol

from conformance.driver import exception_origin, no_verdict, watchdog
from conformance.driver.diff import FieldDifference, Names, against_lines, changes, value_of
from conformance.driver.operations import must_take
from conformance.driver.printable import first_line, message_of
from conformance.driver.protocol import EngineError, Json, Misuse, OutOfMemory, Unsupported
from conformance.driver.shadow import READS_OWN, READS_OWN_SENTENCE, Shadow, WrongSlot
from conformance.driver.trace import Trace
from conformance.stems.kv_events.published import Listener, publishing_call
from spec.logic import Invariant, Requirement, Stem, Step

VIOLATION, LATENT, CONFORMS, UNSUPPORTED = "violation", "latent", "conforms", "unsupported"
# Names of laws that a finding can have beside those of the invariants and transitions in ``spec/``.
ANSWERED = "lawful_call_is_answered"
ANSWERED_SENTENCE = "A lawful call is answered."
REFUSED = "refused_changes_nothing"
REFUSED_SENTENCE = "A call that does not fit is refused."
ENOUGH = "enough_is_granted"
ENOUGH_SENTENCE = "A call that fits is granted."
BAD_INPUT = "bad_input_is_refused"
QUIESCENT = "quiescent"
QUIET = "With no request, no session and an evicted tree, every pool is full and every row is idle."
NO_STEP = "After a call the engine shows what the law has. A refused call leaves everything as it was."
# The kinds of laws that a finding can break, see ``Finding``.
INVARIANT, PROMISE, CHOICE, DIFFERENCE, ANSWER = "invariant", "promise", "choice", "difference", "answer"
WORDS_OF_KIND = {
    INVARIANT: "law {}",
    PROMISE: "promise of {}",
    CHOICE: "choice of {}",
    DIFFERENCE: "difference after {}",
    ANSWER: "answer: {}",
}
MOST_OF_STACK = 1 << 16  # bytes, what a pipe holds
OFTEN = 64  # every 64th judgement evaluates all laws, also where the engine shows the law's own state


class Finding(AssertionError):
    """The engine broke a law.

    ``law``: the name of the broken law. ``kind``: what was broken, namely an invariant, a promise or a choice of a
    transition, a difference after one, or an answer. ``sentence``: the law in English. ``detail``: where it broke,
    with the values. ``latent``: no caller can tell yet; it harms only who reads a value that nobody may read now.
    ``stack``: the functions in which the process died, as ``faulthandler`` writes them; empty if it did not die.
    ``harm``: what a request has read that was not its own, where the operation that broke the law shows it.
    """

    def __init__(self, law: str, sentence: str, detail: str, latent: bool = False, kind: str = ANSWER) -> None:
        super().__init__(f"{law}: {sentence} ({detail})")
        self.law, self.sentence, self.detail, self.latent, self.kind = law, sentence, detail, latent, kind
        self.stack = ""
        self.harm: WrongSlot | None = None


Ignores = Callable[[Finding], bool]
"""Says of a finding that it is known and must not end the run."""


def nothing(_: Finding) -> bool:
    """Ignores no finding."""
    return False


class EngineCall(NamedTuple):
    """One call to the engine.

    ``risky``: it may kill the process, so it is tried in a forked process first. ``refusable``: the engine may raise
    ``OutOfMemory``, and then the answer is ``REFUSAL``. ``declinable``: the engine's contract may exclude this call;
    then it raises one of ``CLEAR_ERRORS`` with a message, and the answer is ``REFUSAL``. ``unjudged``: the engine is in
    the middle of something, and goes on with it; what it shows before this call is not judged. ``law``: the name of the
    law that an exception breaks, and its sentence.
    """

    name: str
    send: Callable[[], Any]
    risky: bool = False
    refusable: bool = False
    declinable: bool = False
    unjudged: bool = False
    law: tuple[str, str] = (ANSWERED, ANSWERED_SENTENCE)


Calls = Generator[EngineCall | None, Any, None]
Operation = Callable[..., Calls]
"""An operation yields its calls to the engine, one by one, and is sent the answer of each. It explains an answer as
steps of the law before it yields the next call. The driver judges between two calls and at the end. If the law takes a
step for the next call before this call is made, the operation yields ``None`` before the step, which means "judge now".
"""

REFUSAL = object()  # the answer of a call that raised OutOfMemory, or that the engine declined
CLEAR_ERRORS = (ValueError, TypeError, RuntimeError, AssertionError)  # with a message: how an engine declines a call
_END = object()  # an operation yields nothing more


Witness = Callable[[str, Any, Step[Any], tuple[Any, ...]], None]
"""Sees each granted step: the name of its transition, the state before, the step, and the arguments."""


class Law:
    """The law's side of a run: its state, and what was found to break it. Transitions change the state; besides, a run
    may bring free lists into the order in which the engine shows them.

    ``strict``: a latent finding ends the run as a violation does. ``ignores``: says of a finding that it is known and
    must not end the run. ``names``: how the law's numbers are named in messages. ``counts``: how often each transition
    was done and refused. ``promised``: for each transition and each sentence of a promise of it, how often the
    transition was done and refused while the promise was asked, and how often the promise was false (``broken``).
    ``witness``: see ``Witness``.
    """

    def __init__(self, stem: Stem, state: Any, strict: bool = True, ignores: Ignores = nothing) -> None:
        if stem.sizes is not None and not stem.sizes(state):
            raise AssertionError(f"the state of {stem.name} is not as the proofs assume: {stem.sizes.__doc__}")
        self.stem, self.state, self.strict, self.ignores = stem, state, strict, ignores
        self.names = Names()
        self.counts: Counter[tuple[str, str]] = Counter()
        self.promised: Counter[tuple[str, str, str]] = Counter()
        self.latents: list[Finding] = []  # one for each law and kind, in the order of their first occurrence
        self.refusals: list[Finding] = []  # calls since the last judgement that were refused although they fit
        self.witness: Witness | None = None
        self.last = ""  # the transition that the operation has taken last; empty where it has taken none
        self.operation = ""  # the operation that runs

    def sentence(self, name: str) -> str:
        """A transition in English: its docstring. ``name`` may be an operation that has taken none."""
        known = self.stem.transitions.get(name)
        return " ".join((known.__doc__ or "").split()) if known else NO_STEP

    def caller_step(self, name: str, *arguments: Any) -> Step[Any]:
        """Takes a step that the caller decides, and returns it. A step that does not fit is counted as refused and not
        taken.

        Raises ``Misuse`` if a promise of the step is false, since the caller may not send such a call. Raises
        ``Finding`` if a choice of the engine is unlawful.
        """
        step = self.stem.transitions[name](self.state, *arguments)
        self.must_keep(name, step)
        if step.fits:
            self._must_hold(CHOICE, name, step.choice, arguments)
            self._take(name, step, arguments)
        else:
            self.count(name, "refused")
            self._promised(name, step, "refused")
        return step

    def engine_step(self, name: str, *arguments: Any) -> Step[Any]:
        """Takes a step that explains what the engine did, and returns it.

        Raises ``Finding`` if a promise or a choice of the step is false, or if the step does not fit.
        """
        step = self.stem.transitions[name](self.state, *arguments)
        self.must_fit(name, bool(step.fits))
        self._must_hold(PROMISE, name, step.promises, arguments)
        self._must_hold(CHOICE, name, step.choice, arguments)
        self._take(name, step, arguments)
        return step

    def _take(self, name: str, step: Step[Any], arguments: tuple[Any, ...]) -> None:
        for call in step.calls:  # the provers show that these calls are lawful; each run checks it again
            if not call.step.granted:
                raise AssertionError(f"{name} calls {call.transition.__name__} unlawfully: {call.step.broken()}")
        if self.witness is not None:
            self.witness(name, self.state, step, arguments)
        self.state = step.then
        self.count(name, "done")
        self._promised(name, step, "done")

    def count(self, name: str, outcome: str) -> None:
        """Counts that the transition was ``done`` or ``refused``."""
        self.counts[name, outcome] += 1
        self.last = name

    def _promised(self, name: str, step: Step[Any], outcome: str) -> None:
        for promise in step.promises:
            self.promised[name, promise.sentence, outcome] += 1

    def must_keep(self, name: str, step: Step[Any]) -> None:
        """Raises ``Misuse`` if a promise of the step is false."""
        if not step.kept:
            self.promised.update((name, r.sentence, "broken") for r in step.promises if not r.holds)
            raise Misuse(f"{name}: {'; '.join(f'{r.sentence!r} is false' for r in step.promises if not r.holds)}")

    def _must_hold(self, kind: str, name: str, asked: tuple[Requirement, ...], arguments: tuple[Any, ...]) -> None:
        broken = [r.sentence for r in asked if not r.holds]
        if broken:
            if kind == PROMISE:
                self.promised.update((name, sentence, "broken") for sentence in broken)
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
        """Raises ``Finding`` if the engine granted a call that does not fit."""
        if not fits:
            raise Finding(REFUSED, REFUSED_SENTENCE, f"{name} was granted")

    def refused(self, name: str, fits: bool) -> None:
        """The engine refused a call for lack of memory. If the call fits, that is a finding, reported after all others
        of the operation: a leak may be the reason.
        """
        if fits:
            self.refusals.append(Finding(ENOUGH, ENOUGH_SENTENCE, f"{name} said out of memory", latent=True))
        self.count(name, "refused")

    def report(self, finding: Finding) -> None:
        """Raises a violation. A latent finding is kept in ``latents`` and the run goes on, unless the run is strict."""
        if self.ignores(finding):
            return
        if not finding.latent or self.strict:
            raise finding
        if (finding.law, finding.kind) not in ((known.law, known.kind) for known in self.latents):
            self.latents.append(finding)


class StemRun(Protocol):
    """What a stem gives the driver.

    ``engine``: what is driven. ``operations``: by name. ``lacks``: the operations that the engine does not have in this
    configuration. ``seen``: the last snapshot, which the driver sets. ``shadow``: what the memory of the engine
    contains.
    """

    engine: Any
    law: Law
    shadow: Shadow
    operations: Mapping[str, Operation]
    lacks: Collection[str]
    seen: Any

    def snapshot(self) -> Any:
        """Reads the engine once."""

    def follow(self) -> None:
        """Takes the law's steps for what the engine did without being asked, such as sorting a list or evicting a
        node.
        """

    def project(self) -> Any:
        """The law's state, with every value that the snapshot shows replaced by the shown one. The law's own state
        object where nothing differs.
        """

    def hidden(self, change: FieldDifference) -> bool:
        """True if no caller can tell this difference, as in the mapping of a free slot. Only a latent law may speak of
        it.
        """

    def beyond_state(self) -> list[str]:
        """Differences for which the law's state has no field, in words, such as a page that is listed twice."""

    def judge(self) -> None:
        """Raises a finding about what no invariant of the state says, such as which of the engine's rows has which
        owner.
        """


class LockStep:
    """One run: each operation is done to the law and to the engine, and the two are compared after each call.

    ``watch``: entered around each call to the engine (not around snapshots), for who tells which functions it calls.
    ``often``: where the engine shows the law's own state, one of so many judgements evaluates all laws; 0 for none.
    By default ``OFTEN``, or so many times as seldom as the run asks (``seldom``), which has many judgements in one
    operation. ``sent``: how many calls were sent to the engine.
    """

    def __init__(self, run: StemRun, config: Json, often: int | None = None) -> None:
        self.run, self.law = run, run.law
        self.often = OFTEN * getattr(run, "seldom", 1) if often is None else often
        self.trace = Trace(getattr(run, "name", self.law.stem.name), dict(config))
        self.judged = self.sent = 0
        self.listener = Listener(publishing_call(run.engine))
        self.watch: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext

    def do(self, op: str, **arguments: Any) -> None:
        """Does one operation and records it in ``trace``.

        Raises ``Finding`` where the engine breaks a law, and ``Unsupported`` where the engine lacks the operation in
        this configuration. Raises ``Misuse`` where no caller may send the operation now, or where the stem has no
        operation with this name and these arguments.
        """
        watchdog.again()
        operation = self.run.operations.get(op)
        if operation is None:
            raise Misuse(f"{self.law.stem.name} has no operation {op!r}")
        try:
            must_take(operation, arguments)
        except TypeError as error:
            raise Misuse(f"{op}({', '.join(arguments)}): {error}") from None
        self.trace.steps.append({"op": op, **arguments})
        self.law.operation, self.law.last = op, ""
        self.run.shadow.begin(len(self.trace.steps))
        if op in self.run.lacks:
            raise Unsupported(f"the engine has no {op} in this configuration")
        try:
            self._send(op, operation(**arguments))
        except Finding as finding:
            finding.harm = self.run.shadow.wrong
            raise

    def does(self, step: Json) -> bool:
        """Does one step of a trace as ``do`` does. False where no caller may send the operation now: then nothing was
        done, and ``trace`` does not have the step. Raises ``Misuse`` where a part of the operation was done.
        """
        state, sent, count = self.law.state, self.sent, len(self.trace.steps)
        try:
            self.do(**step)
        except Misuse:
            if self.law.state is not state or self.sent != sent:
                raise
            del self.trace.steps[count:]
            return False
        return True

    def _send(self, op: str, calls: Calls) -> None:
        """Sends the calls of an operation, one by one, and judges what the engine shows after them."""
        call: Any = next(calls, _END)
        while call is not _END:
            if call is None:
                self.judge(op)
                call = _sent(calls, None)
                continue
            self.sent += 1
            answer = self._answer(call)
            self.run.seen = _sent_to_engine(EngineCall("snapshot", self.run.snapshot))
            call = _sent(calls, answer)
            if call is not None and call is not _END and not call.unjudged:
                self.judge(op)
        self.judge(op)

    def _answer(self, call: EngineCall) -> Any:
        """The engine's answer to a lawful call. The death of the process is a finding, and so is an exception."""
        if call.risky and (death := killed_by(call.send)):
            finding = Finding(ANSWERED, ANSWERED_SENTENCE, f"{call.name} killed the process: {death.signal}")
            finding.stack = death.stack
            raise finding
        with self.watch():
            return _sent_to_engine(call)

    def judge(self, op: str) -> None:
        """Compares the engine with the law, and raises the first finding.

        The order is: invariants of the law on the state that the engine shows, since they say what is wrong; any other
        visible difference; the stem's own judgement; what was read; what the engine has published; calls that were
        refused although they fit. A law whose breach no caller can tell yet comes after what was read.
        """
        run, law = self.run, self.law
        run.follow()
        observed = run.project()
        differs = changes(law.state, observed)
        self._laws(observed, differs)
        told = against_lines([change for change in differs if not run.hidden(change)], law.names) + run.beyond_state()
        if told:
            name = law.last or op
            raise Finding(name, law.sentence(name), "; ".join(told), kind=DIFFERENCE)
        run.judge()
        self._contents()
        self._published()
        while law.refusals:
            law.report(law.refusals.pop(0))

    def _contents(self) -> None:
        """Raises ``Finding`` if a request has read what was not its own."""
        if (wrong := self.run.shadow.wrong) is not None:
            self.law.report(Finding(READS_OWN, READS_OWN_SENTENCE, str(wrong), kind=INVARIANT))

    def _published(self) -> None:
        """Raises ``Finding`` if the KV events that the engine has published say what its cache does not have."""
        asked: EngineCall = EngineCall("published", self.listener.judge)
        if (broken := _sent_to_engine(asked)) is not None:
            self.law.report(Finding(broken.law, broken.sentence, broken.detail, kind=INVARIANT))

    def _laws(self, observed: Any, differs: list[FieldDifference]) -> None:
        broken = self.broken(observed, differs)
        if not broken:
            return
        visible = [change for change in differs if not self.run.hidden(change)]
        words = against_lines(visible or differs, self.law.names) + self.run.beyond_state()
        detail = "; ".join(words) or "nothing else differs from the law"
        for law in sorted(broken, key=lambda law: law.latent):
            if law.latent:
                self._contents()
            self.law.report(Finding(law.name, law.sentence, detail, law.latent, INVARIANT))

    def broken(self, observed: Any, differs: list[FieldDifference]) -> list[Invariant]:
        """The laws that the observed state breaks. The saved copy in a backup is not judged, since the engine does not
        show it.

        Where nothing differs, the observed state is the law's own. The provers show that this state keeps every law,
        so then all laws are evaluated only once in ``often`` judgements. Where something differs, the law's ledgers
        say nothing about what the engine shows; and of what no caller can tell only latent laws speak.
        """
        self.judged += 1
        if not differs and (not self.often or self.judged % self.often):
            return []
        laws = [law for law in self.law.stem.invariants.values() if not (law.ledger and differs)]
        if differs and all(map(self.run.hidden, differs)):
            laws = [law for law in laws if law.latent]
        return [law for law in laws if breaks(law, observed)]


def breaks(law: Invariant, state: Any) -> bool:
    """The law does not hold in a current part of the state (finite reading); backups are left out."""
    return any(not law.holds(part) for label, part in law.parts(state) if "saved" not in label.split("."))


def _sent_to_engine(call: EngineCall) -> Any:
    """The answer of the engine, where an exception is a finding.

    ``EngineError`` is no finding: the engine was not loaded whole, for example it called a package that is stood in
    for, so there is no verdict. Nor is there one where the engine hides this error, where it imports a package that
    is not installed, or where Slotproof's own code raised the exception (``conformance.driver.exception_origin``).
    """
    try:
        with no_verdict.watched():
            return call.send()
    except (Misuse, Unsupported, Finding, EngineError):
        raise
    except Exception as error:
        if call.refusable and isinstance(error, OutOfMemory):
            return REFUSAL
        exception_origin.must_be_the_engines(error, call.name)
        if call.declinable and isinstance(error, CLEAR_ERRORS) and message_of(error).strip():
            return REFUSAL
        what = f"{call.name} raised {type(error).__name__}: {first_line(message_of(error))}"
        raise Finding(*call.law, what) from error


def _sent(calls: Calls, answer: Any) -> Any:
    """Hands the answer to the operation. Returns the next call that the operation yields, or ``_END``."""
    try:
        return calls.send(answer)
    except StopIteration:
        return _END


def refusing(call: Callable[[], Any], law: Law, kind: str) -> EngineCall:
    """A call with bad input of one kind. The engine must answer with a clear error; anything else is a finding."""
    law.counts["bad input", kind] += 1

    def send() -> None:
        try:
            call()
        except (ValueError, TypeError, RuntimeError) as error:
            exception_origin.must_be_the_engines(error, kind)
            return
        raise Finding(BAD_INPUT, "Bad input is answered with a clear error.", f"{kind} was accepted")

    return EngineCall(kind, send)


class Death(NamedTuple):
    """How a process died. ``signal``: the name of the signal. ``stack``: the Python functions in which it was then, as
    ``faulthandler`` writes them; empty if it was not given the time, as with SIGKILL.
    """

    signal: str
    stack: str


def killed_by(call: Callable[[], Any]) -> Death | None:
    """How a forked process dies that makes the call; ``None`` if it survives. An exception is no death."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            faulthandler.enable(writable, all_threads=False)
            call()
        os._exit(0)
    os.close(writable)
    _, status = os.waitpid(child, 0)
    os.set_blocking(readable, False)  # a process that the call started may still have the pipe open
    with open(readable, "rb", buffering=0) as pipe:
        stack = (pipe.read(MOST_OF_STACK) or b"").decode(errors="replace")
    return Death(signal.Signals(os.WTERMSIG(status)).name, stack) if os.WIFSIGNALED(status) else None

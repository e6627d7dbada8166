"""What a trace shows on one engine: every law that breaks, and whether all its operations could be sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from conformance.driver.lockstep import (
    ANSWERED,
    ANSWERED_SENTENCE,
    CONFORMS,
    LATENT,
    UNSUPPORTED,
    VIOLATION,
    Finding,
    Law,
    LockStep,
)
from conformance.driver.protocol import EngineError, Json, Misuse, Unsupported
from conformance.driver.trace import Trace
from conformance.stems.stem_registry import ROOMS, start
from conformance.traces.harm_found import Harm


class How(StrEnum):
    """How short the run of a finding is."""

    SHRUNK = "shrunk"  # no search has found a shorter one
    KEPT = "kept"  # a kept trace of the project, as it is
    CUT_SHORT = "cut short"  # the time was over before it was shrunk to the end
    DRAWN = "as drawn"  # nobody has shrunk it


@dataclass(frozen=True)
class Break:
    """One law that a trace breaks on an engine.

    ``severity``: violation or latent. ``step``: the number of the operation after which the law is broken, from 1; 0
    where the engine cannot be built.
    ``law``, ``kind``, ``sentence``, ``detail``: see ``conformance.driver.lockstep.Finding``. ``harm``: what a request
    has read that was not its own in this operation (``conformance.traces.harm_found``); ``None`` if nothing is known of
    it.
    """

    severity: str
    step: int
    law: str
    kind: str
    sentence: str
    detail: str
    harm: Json | None = None

    @classmethod
    def of(cls, finding: Finding, step: int) -> Break:
        """The finding of the operation with this number."""
        severity = LATENT if finding.latent else VIOLATION
        harm = None if finding.harm is None else Harm.of(finding.harm).as_json()
        return cls(severity, step, finding.law, finding.kind, finding.sentence, finding.detail, harm)

    def row(self, trace: Trace, **more: Any) -> Json:
        """The break as a finding of a report: what is broken, and the run that breaks it. All findings have all fields,
        ``docs/json.md`` says what they mean; ``more``: those that differ from the usual.
        """
        common = {"name": "", "base": "", "times": 1, "how": How.KEPT if more.get("name") else How.SHRUNK}
        found = {
            "stem": trace.stem,
            **asdict(self),
            "trace": trace.as_json(),
            **common,
            "cause": "",
            "repaired": [],
            "folded": [],
            "story": [],
            **more,
        }
        return {**found, "how": str(found["how"]), "shrunk": found["how"] in (How.SHRUNK, How.KEPT)}

    def is_like(self, other: Break) -> bool:
        """Both are about one law, broken in one way, such as a promise of it. The severities may differ."""
        return (self.law, self.kind) == (other.law, other.kind)


@dataclass(frozen=True)
class Outcome:
    """What a trace shows on an engine.

    ``breaks``: the laws that break, in the order of their steps: latent findings, and a violation last, since it ends
    the run. ``stopped``: why an operation could not be sent to the engine, empty if all could; ``stopped_at``: the
    number of this operation. ``misused``: no caller may send this operation in the state that the run is in, whatever
    the engine has chosen before.
    """

    breaks: tuple[Break, ...] = ()
    stopped: str = ""
    stopped_at: int | None = None
    misused: bool = False

    @property
    def first(self) -> Break | None:
        """The violation; if there is none, the first latent finding."""
        return next((b for b in reversed(self.breaks) if b.severity == VIOLATION), next(iter(self.breaks), None))

    @property
    def verdict(self) -> str:
        """Violation, latent, unsupported or conforms. An engine that lacks a call of the trace is unsupported, whatever
        latent law it broke before; where it goes another way, so that no caller may send the rest, these laws count.
        """
        if self.stopped and not self.misused:
            return UNSUPPORTED
        return self.first.severity if self.first else UNSUPPORTED if self.stopped else CONFORMS

    def like(self, found: Break) -> Break | None:
        """The break that is about the law of ``found``."""
        return next((b for b in self.breaks if b.is_like(found)), None)

    def as_json(self) -> Json:
        """The outcome as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Json) -> Outcome:
        """The outcome that ``as_json`` made plain."""
        return cls(tuple(Break(**b) for b in data["breaks"]), data["stopped"], data["stopped_at"], data["misused"])


@dataclass(frozen=True)
class Followed:
    """What a run shows that is sent to an engine as far as a client may send it (``conformance.search.followed``).

    ``law`` and ``kind`` of the finding, empty where no law broke. ``left_out``: how many operations of the run were
    not sent, if no law broke. ``stopped``: why the engine could not be brought to rest; empty if it could, and where a
    law broke.
    """

    law: str = ""
    kind: str = ""
    left_out: int = 0
    stopped: str = ""

    @property
    def lawful(self) -> bool:
        """The run was sent, the engine came to rest, and no law broke."""
        return not self.law and not self.stopped

    def shows(self, found: Json) -> bool:
        """It broke the law of the finding ``found``, and of this law the same kind, such as a promise."""
        return (self.law, self.kind) == (found["law"], found["kind"])

    def as_json(self) -> Json:
        """The answer as plain data."""
        return asdict(self)


def not_built(what: str) -> Finding:
    """The finding that the engine's own code fails while the engine is built. ``what``: the exception, and where."""
    return Finding(ANSWERED, ANSWERED_SENTENCE, f"the engine cannot be built: {what}")


def outcome(
    trace: Trace,
    make: Callable[[Json], Any],
    heard: Callable[[Finding], object] = lambda _: None,
    ended: Callable[[Law], object] = lambda _: None,
    stepped: Callable[[Law], object] = lambda _: None,
) -> Outcome:
    """Replays the trace on a fresh engine that ``make`` builds. ``heard`` is called with each finding, in the order of
    ``Outcome.breaks``; ``ended`` at the end of the run with the law's side of it, which knows what was counted; and
    ``stepped`` after each operation, also after one that broke a law or could not be sent.

    A trace without operations asks whether the engine can be built: where the engine's own code fails, this is a break
    in step 0. Raises ``EngineError`` for a trace of an unknown stem, and where the engine was not loaded whole.
    """
    if trace.stem not in ROOMS:
        raise EngineError(f"no stem {trace.stem!r}: there are {', '.join(ROOMS)}")
    try:
        lock = start(trace.stem, make, trace.config, strict=False)
    except (EngineError, Unsupported) as reason:
        if reason.unbuilt and not trace.steps:
            finding = not_built(reason.unbuilt)
            heard(finding)
            return Outcome((Break.of(finding, 0),))
        if isinstance(reason, EngineError):
            raise
        return Outcome((), str(reason), 1)
    try:
        return _replayed(trace, lock, heard, stepped)
    finally:
        ended(lock.law)


def _replayed(
    trace: Trace, lock: LockStep, heard: Callable[[Finding], object], stepped: Callable[[Law], object]
) -> Outcome:
    breaks: list[Break] = []
    for number, step in enumerate(trace.steps, start=1):
        latents = len(lock.law.latents)
        violation: Finding | None = None
        stopped, misused = "", False
        try:
            lock.do(**step)
        except Finding as finding:
            violation = finding
        except Unsupported as reason:
            stopped = str(reason)
        except Misuse as misuse:
            stopped, misused = str(misuse), not misuse.by_engine
        stepped(lock.law)
        for found in (*lock.law.latents[latents:], *([] if violation is None else [violation])):
            breaks.append(Break.of(found, number))
            heard(found)
        if violation is not None:
            return Outcome(tuple(breaks))
        if stopped:
            return Outcome(tuple(breaks), stopped, number, misused)
    return Outcome(tuple(breaks))

"""Tells a trace to a person: its operations as calls, which of the engine's functions each of them called, and what it
changed on the engine.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from conformance.driver.diff import Names, changes, told_lines
from conformance.driver.lockstep import WORDS_OF_KIND, Finding, LockStep
from conformance.driver.protocol import Json, Misuse, Unsupported
from conformance.driver.trace import Trace
from conformance.stems.block_cache.picture import of_requests
from conformance.stems.stem_registry import start
from conformance.telling.changed import Changed
from conformance.telling.memory import MemoryPicture
from conformance.telling.picture import frame
from conformance.telling.where import CallRecorder, Frame, Raised, Roots, raised
from conformance.traces.harm_found import Harm


@dataclass(frozen=True)
class ToldOperation:
    """One operation: the call, what it changed, what was wrong after it, and a picture of the state after it.

    ``engine``: the engine's functions that it called, in order. ``deeper``: functions that these called are left out;
    ``below``: those of them that ``engine`` does not have, each once. ``raised``: the exception with which the engine
    answered and the exceptions that caused it, or how the process died.
    """

    call: str
    changed: str
    wrong: str
    picture: Json
    engine: list[Frame] = field(default_factory=list)
    deeper: bool = False
    below: list[Frame] = field(default_factory=list)
    raised: list[Raised] = field(default_factory=list)

    @classmethod
    def from_json(cls, data: Json) -> ToldOperation:
        """The operation that ``dataclasses.asdict`` made plain."""
        raised = [Raised(one["what"], [Frame(**frame) for frame in one["frames"]]) for one in data["raised"]]
        frames = {name: [Frame(**frame) for frame in data[name]] for name in ("engine", "below")}
        return cls(**{**data, **frames, "raised": raised})

    @property
    def functions(self) -> list[Frame]:
        """The engine's functions that it called, each once: first those whose text differs from the base's."""
        once: dict[tuple[str, int], Frame] = {}
        for one in (*self.engine, *self.below):
            once.setdefault((one.file, one.line), one)
        return sorted(once.values(), key=lambda one: not one.changed)


def tell(
    trace: Trace,
    make: Callable[[Json], Any],
    roots: Sequence[Path] = (),
    base: Sequence[Path] | None = None,
    beside: int = 0,
) -> list[ToldOperation]:
    """Replays the trace on a fresh engine and describes each operation. ``roots``: where the engine's own code is, see
    ``Loaded``; without them no function is named. ``base``: where the code of the base is, with which the functions are
    compared. ``beside``: the first operation lets another request in, and is step 0 (``Harm.beside``).
    """
    lock = start(trace.stem, make, trace.config, strict=False)
    own = Roots(roots, None if base is None else Changed(base))
    told: list[ToldOperation] = []
    before, requests = lock.run.project(), _requests(lock.run)
    for line, step in zip(trace.lines(), trace.steps, strict=True):
        calls, wrong, latents, errors = CallRecorder(own), [], len(lock.law.latents), []
        lock.watch = calls.watched
        ended = False
        broken: list[Finding] = []
        try:
            lock.do(**step)
        except Finding as finding:
            broken, ended = [finding], True
            errors = raised(finding, own)
        except Misuse as misuse:
            wrong, ended = [f"nobody may send this: {misuse}"], True
        except Unsupported as reason:
            wrong, ended = [f"not sent: {reason}"], True
        broken = lock.law.latents[latents:] + broken
        wrong = [f"latent: {in_words(f)}" if f.latent else in_words(f) for f in broken] + wrong
        after = _shown(lock.run, before)
        engine, deeper, below = calls.frames()
        said = changed(before, after, lock.law.names)
        picture = {"does": _does(lock, step["op"]), **_picture(lock, before, after, broken)}
        requests_before, requests = requests, _requests(lock.run)
        _add(picture, requests_before, requests)
        picture |= _harmed(lock, beside)
        told.append(ToldOperation(line, said, "\n".join(wrong), picture, engine, deeper, below, errors))
        if ended:
            break  # the law and the engine no longer agree, or the run cannot go on
        before = after
    return told


def _picture(lock: LockStep, before: Any, after: Any, broken: Sequence[Finding]) -> Json:
    """The engine before the operation and after it, and where it broke a law the law's state and what it broke."""
    names = lock.law.names
    found = {"before": frame(before, names)["panels"], **frame(after, names)}
    if broken:
        found["law"] = frame(lock.law.state, names)["panels"]
        found["broken"] = [
            {**{key: getattr(f, key) for key in ("law", "kind", "sentence", "detail", "latent")}, "words": of_kind(f)}
            for f in broken
        ]
    return found


def _harmed(lock: LockStep, beside: int) -> Json:
    """What a request read in the operation that was not written for it, where it did. ``beside``: see ``Harm``."""
    wrong = lock.run.shadow.wrong
    if wrong is None:
        return {}
    drawer = MemoryPicture(lock.trace.config, lock.run.shadow)
    said = Harm.of(wrong, beside=beside)
    return {"harmed": {"page": drawer.page_of(wrong, lock.run.seen), "reader": said.request, "says": said.where}}


@runtime_checkable
class KnowsRequests(Protocol):
    """A run whose engine has requests that the law's state does not have, such as one that waits without blocks."""

    def of_requests(self) -> Mapping[int, Json]:
        """What a picture shows of each request."""


def _requests(run: Any) -> list[Json]:
    return [of_requests(run.of_requests())] if isinstance(run, KnowsRequests) else []


def _add(picture: Json, before: list[Json], after: list[Json]) -> None:
    """The requests stand first in each of the pictures of a step; the law's own picture has them as the engine has."""
    for name, panels in (("before", before), ("panels", after), ("law", after)):
        if name in picture:
            picture[name] = [*(panel for panel in panels if panel["items"]), *picture[name]]


def _does(lock: LockStep, name: str) -> str:
    """The operation in English: the first paragraph of its docstring."""
    said = inspect.getdoc(lock.run.operations.get(name)) or ""
    return " ".join(said.partition("\n\n")[0].split())


def of_kind(finding: Finding) -> str:
    """What was broken: ``law NAME``, ``promise of NAME`` and so on."""
    return WORDS_OF_KIND[finding.kind].format(finding.law)


def in_words(finding: Finding) -> str:
    """What was broken, the law in English, and where it broke."""
    return f"{of_kind(finding)}. {finding.sentence} {finding.detail}"


def _shown(run: Any, before: Any) -> Any:
    """The state as the engine shows it; ``before`` if the snapshot cannot be projected onto the law's state."""
    try:
        return run.project()
    except (Finding, KeyError):
        return before


def changed(before: Any, after: Any, names: Names | None = None) -> str:
    """What differs between two states, in words."""
    return "; ".join(told_lines(changes(before, after), names or Names())) or "nothing"

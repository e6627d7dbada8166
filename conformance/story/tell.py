"""Tells a trace to a person: its operations as calls, what each of them changed on the engine, and a test to paste."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from conformance import stems
from conformance.diff import Names, changes, told_lines
from conformance.engines import registry
from conformance.engines.protocol import Json, Misuse
from conformance.lockstep import WORDS_OF_KIND, Finding
from conformance.stems import start
from conformance.story.picture import frame
from conformance.traces import Trace


@dataclass(frozen=True)
class Told:
    """One operation: the call, what it changed, what was wrong after it, and a picture of the state after it."""

    call: str
    changed: str
    wrong: str
    picture: Json


def tell(trace: Trace, make: Callable[[Json], Any]) -> list[Told]:
    """Replays the trace on a fresh engine and describes each operation."""
    lock = start(trace.stem, make, trace.config, strict=False)
    told: list[Told] = []
    before = lock.run.project()
    for line, step in zip(trace.lines(), trace.steps, strict=True):
        latent, wrong, ended = lock.law.latent, "", False
        try:
            lock.do(**step)
        except Finding as finding:
            what = WORDS_OF_KIND[finding.kind].format(finding.law)
            wrong, ended = f"{what}. {finding.sentence} {finding.detail}", True
        except Misuse as misuse:
            wrong, ended = f"nobody may send this: {misuse}", True
        if lock.law.latent is not latent:
            wrong = f"latent: {lock.law.latent}"
        after = _shown(lock.run, before)
        told.append(Told(line, changed(before, after, lock.law.names), wrong, frame(after)))
        if ended:
            break  # the law and the engine no longer agree, or the run cannot go on
        before = after
    return told


def _shown(run: Any, before: Any) -> Any:
    """The state as the engine shows it; ``before`` if the snapshot cannot be projected onto the law's state."""
    try:
        return run.project()
    except (Finding, KeyError):
        return before


def changed(before: Any, after: Any, names: Names | None = None) -> str:
    """What differs between two states, in words."""
    return "; ".join(told_lines(changes(before, after), names or Names())) or "nothing"


def as_test(trace: Trace, engine: str, release: str | None) -> str:
    """A pytest to paste. It fails as long as the engine breaks the law."""
    steps = ",\n        ".join(map(repr, trace.steps))
    where = f'load("{engine}"' + (f', release="{release}")' if release else ")")
    return f'''def test_found_by_slotproof() -> None:
    from {registry.__name__} import load
    from {stems.__name__} import start

    config = {trace.config!r}
    run = start("{trace.stem}", {where}.makers["{trace.stem}"], config)
    steps = [
        {steps},
    ]
    for step in steps:
        run.do(**step)
'''

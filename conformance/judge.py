"""What a process that serves an engine answers: the outcome of a trace, and the judgement on a stem.

A judgement is plain data, since it crosses a process boundary and becomes the JSON of ``slotproof check``:
``docs/json.md`` says what its fields mean.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from enum import StrEnum
from importlib import import_module
from typing import Any

import spec
from conformance import known, traces
from conformance.check import Result, Search, check
from conformance.compare import Status
from conformance.connection import Connection
from conformance.contents.harm import harm
from conformance.engines import registry
from conformance.engines.protocol import Json
from conformance.engines.registry import Loaded
from conformance.hunt import Difference, Hunt, Hunted, Limits
from conformance.known import Known
from conformance.lockstep import CONFORMS, LATENT, UNSUPPORTED, VIOLATION
from conformance.machine import TimeIsUp
from conformance.outcome import Break, Outcome, outcome
from conformance.ran import Ran
from conformance.story.tell import tell
from conformance.traces import Trace

Make = Callable[[Json], Any]
Progress = Callable[[str, Trace | None, Json | None, int], None]


def outcome_of(loaded: Loaded, asked: Json, _: Progress) -> Json:
    """What ``asked["trace"]`` shows on the engine. One that has nothing for the stem cannot make the first call."""
    make, trace = loaded.makers.get(asked["stem"]), Trace(**asked["trace"])
    return (outcome(trace, make) if make else Outcome((), f"it has no {asked['stem']} to drive", 1)).as_json()


# An engine alone.


def alone(loaded: Loaded, asked: Json, progress: Progress) -> Json:
    """Replays the known differences of the release ``asked["listed"]``, then draws runs that avoid them."""
    begun, stem = time.monotonic(), asked["stem"]
    make = Ran(loaded.makers[stem])
    listed = listed_of(asked)
    replayed = [_replayed(k, make, progress) for k in listed if k.stem == stem]
    result = _draw(make, asked, excluded(stem, listed), begun, progress)
    found = [] if result.law is None else [_found(result, loaded)]
    rows = {name: [row for occurs, row in replayed if occurs == (name == "known")] for name in ("known", "gone")}
    judged = {**_looked(result.runs, result.steps, result.transitions, stem), "cut_short": result.cut_short}
    verdict = _gravest([*found, *rows["known"]]) or (CONFORMS if result.runs else UNSUPPORTED)
    seconds = round(time.monotonic() - begun, 1)
    ran = {"ran": make.as_json()}
    return {"stem": stem, "verdict": verdict, **judged, **ran, "seconds": seconds, "new": found, **rows}


def listed_of(asked: Json) -> list[Known]:
    """The known differences of the release ``asked["listed"]`` of the engine."""
    return known.of_release(registry.plugin(asked["engine"]).folder, asked["listed"])


def excluded(stem: str, listed: Iterable[Known]) -> frozenset[StrEnum]:
    """What drawn runs leave out: the known differences of the stem, and of the stems that it is made of."""
    stems, waiting = set(), [import_module(f"{spec.__name__}.{stem}").stem]
    while waiting:
        found = waiting.pop()
        stems.add(found.name)
        waiting += found.parts.values()
    return known.exclusions([k.exclude for k in listed if k.exclude and k.stem in stems])


def _replayed(difference: Known, make: Make, progress: Progress) -> tuple[bool, Json]:
    """Whether the engine still shows a known difference, and what it shows on the trace."""
    kept = traces.load(difference.trace)
    progress(kept.name, kept.trace, None, 0)
    first = outcome(kept.trace, make).first
    if first is not None and (first.severity, first.law) == (difference.verdict, difference.law):
        return True, first.row(kept.trace, name=kept.name)
    today = "holds" if first is None else f"is {first.severity}: {first.law}, {first.detail}"
    listed = Break(
        difference.verdict, len(kept.trace.steps), difference.law, "", kept.why, f"listed, but today it {today}"
    )
    return False, listed.row(kept.trace, name=kept.name)


def _draw(make: Make, asked: Json, exclude: frozenset[StrEnum], begun: float, progress: Progress) -> Result:
    """Draws runs until one breaks a law, or enough operations are done, or the time is up."""
    stem, seed, examples = asked["stem"], asked["seed"], asked["examples"]

    def before(steps: int) -> Callable[[Trace, Json], None]:
        def sends(trace: Trace, step: Json) -> None:
            if asked["seconds"] is not None and time.monotonic() - begun > asked["seconds"]:
                raise TimeIsUp
            progress("drawn runs", trace, step, steps)

        return sends

    search = Search(examples or 200, seed, strict=asked["strict"], exclude=exclude)
    result = check(stem, make, search, before(0))
    number = seed or 0
    while (
        result.law is None
        and result.runs
        and not result.cut_short
        and ((examples is None and asked["seconds"] is not None) or result.steps < asked["steps"])
    ):
        number += 1
        more = check(stem, make, Search(search.examples, number, search.strict, exclude), before(result.steps))
        result = more.after(result)
    return result


def _found(result: Result, loaded: Loaded) -> Json:
    """The finding of drawn runs, with its story."""
    assert result.trace is not None
    law, kind, sentence, detail = (word or "" for word in (result.law, result.kind, result.sentence, result.detail))
    found = Break(result.verdict, len(result.trace.steps), law, kind, sentence, detail)
    story, came = _story(result.trace, loaded), harm(result.trace, found.step, loaded.makers[result.trace.stem])
    return found.row(result.trace, story=story, harm=came)


# An engine beside a base.


def beside(loaded: Loaded, asked: Json, progress: Progress) -> Json:
    """What the engine breaks and the base at the socket ``asked["base"]`` does not."""
    stem = asked["stem"]
    with Connection(asked["base"]) as base:
        limits = Limits(asked["examples"], asked["seconds"], asked["seed"], first=asked.get("first", False))
        kept = [(k.name, k.trace) for k in traces.every() if k.trace.stem == stem]
        again = [(name, Trace(**trace)) for name, trace in asked["again"]]
        make = Ran(loaded.makers[stem])
        hunt = Hunt(stem, make, base.outcome, limits, progress)
        hunted = hunt.run([*again, *kept], excluded(stem, listed_of(asked)))
    return {**_beside(hunted, loaded), "ran": make.as_json()}


def _beside(hunted: Hunted, loaded: Loaded) -> Json:
    stem = hunted.stem
    lists: dict[str, list[Json]] = {
        str(status): [difference_row(d, loaded) for d in hunted.differences if d.status is status] for status in Status
    }
    lists["gone"] = [
        g.found.row(g.trace, name=g.name, detail=f"the subject {g.detail}; the base: {g.found.detail}")
        for g in hunted.gone
    ]
    looked = _looked(hunted.runs, hunted.steps, hunted.transitions, stem)
    verdict = _gravest([*lists["new"], *lists["worse"]]) or (CONFORMS if hunted.runs else UNSUPPORTED)
    return {
        "stem": stem,
        "verdict": verdict,
        **looked,
        "cut_short": hunted.cut_short,
        "seconds": hunted.seconds,
        **lists,
    }


def difference_row(found: Difference, loaded: Loaded) -> Json:
    """The difference as a finding of a report; with its story, unless it is known."""
    more = {"name": found.name, "base": found.base, "times": found.times, "shrunk": found.shrunk}
    if found.status is not Status.KNOWN:
        make = loaded.makers[found.trace.stem]
        more |= {"story": _story(found.trace, loaded), "harm": harm(found.trace, found.found.step, make)}
    return found.found.row(found.trace, **more)


# What both have.


def _story(trace: Trace, loaded: Loaded) -> list[Json]:
    """The operations of a trace as plain data, each with the engine's functions that it called."""
    return [asdict(step) for step in tell(trace, loaded.makers[trace.stem], loaded.roots)]


def _gravest(rows: Iterable[Json]) -> str | None:
    severities = {row["severity"] for row in rows}
    return next((severity for severity in (VIOLATION, LATENT) if severity in severities), None)


def _looked(runs: int, steps: int, transitions: dict[str, int], stem: str) -> Json:
    """How hard was looked: runs, operations, refusals, and the transitions of the law that no run reached."""
    names = import_module(f"{spec.__name__}.{stem}").stem.transitions
    return {
        "runs": runs,
        "steps": steps,
        "refused": sum(n for name, n in transitions.items() if name.endswith(" refused")),
        "transitions": transitions,
        "never_reached": [name for name in names if not transitions.get(f"{name} done")],
    }

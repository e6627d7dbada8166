"""What a process that serves an engine answers: the outcome of a trace, and the judgement on a stem.

A judgement is plain data, since it crosses a process boundary and becomes the JSON of ``slotproof check``:
``docs/json.md`` says what its fields mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from conformance.driver.clock import Clock
from conformance.driver.lockstep import LATENT, VIOLATION
from conformance.driver.protocol import EngineError, Json, Unsupported
from conformance.driver.trace import Trace
from conformance.engines import registry
from conformance.engines.registry import Loaded
from conformance.search.check import Result, Search, check
from conformance.search.common_causes import CommonCauses, common_causes
from conformance.search.connection import Connection
from conformance.search.done import Done, replay
from conformance.search.enough import RUNS
from conformance.search.followed import followed
from conformance.search.harm import harm
from conformance.search.hunt import Difference, Hunt, Hunted, HuntLimits, Repairs
from conformance.search.ran import Ran
from conformance.search.replay import row
from conformance.stems import exclusions
from conformance.stems.found import law_of, servers
from conformance.stems.machine import Sink, TimeIsUp
from conformance.stems.stem_registry import ROOMS
from conformance.telling.tell import tell
from conformance.traces import cause_files, known, trace_files
from conformance.traces.compare import Status
from conformance.traces.known import KnownDifference
from conformance.traces.outcome import Break, How, Outcome, not_built, outcome
from conformance.traces.trace_files import Kept

Make = Callable[[Json], Any]
Progress = Callable[[str, Trace | None, Json | None, int], None]


def outcome_of(loaded: Loaded, asked: Json, _: Progress) -> Json:
    """What ``asked["trace"]`` shows on the engine. One that has nothing for the stem cannot make the first call."""
    make, trace = loaded.makers.get(asked["stem"]), Trace(**asked["trace"])
    return (outcome(trace, make) if make else Outcome((), f"it has no {asked['stem']} to drive", 1)).as_json()


def followed_of(loaded: Loaded, asked: Json, _: Progress) -> Json:
    """What ``asked["trace"]`` shows where it is sent as far as a client may send it, and the engine comes to rest."""
    return followed(Trace(**asked["trace"]), loaded.makers[asked["stem"]]).as_json()


def row_of(loaded: Loaded, asked: Json, _: Progress) -> Json:
    """What ``asked["trace"]`` shows on the engine, as a row of ``slotproof replay``."""
    return row(Kept(asked["name"], "", "", "", Trace(**asked["trace"])), loaded)


# An engine alone.


def alone(loaded: Loaded, asked: Json, progress: Progress) -> Json:
    """Replays the known differences of the release ``asked["listed"]``, then draws runs that avoid them. With
    ``asked["further"]`` another process does this and what is least; this one only draws further runs.
    """
    search = Alone(loaded, asked, progress, Clock(asked["seconds"]))
    listed = () if asked.get("further") else search.listed
    replayed = [(k, search.replayed(k)) for k in listed if k.stem == search.stem]
    found = search.new()
    rows: dict[str, list[Json]] = {
        "known": [row for _, (occurs, row) in replayed if occurs],
        # with repairs, a known difference that no longer shows may have been mended by one of them
        "gone": [row for _, (occurs, row) in replayed if not occurs and not asked.get("repaired")],
    }
    verdict = _gravest([*found, *rows["known"]])
    return {**search.done.as_json(verdict, search.cut_short), "ran": search.make.as_json(), "new": found, **rows}


class DrawnRuns(Protocol):
    """The drawn runs of a search on one engine alone, and what they break: ``EveryShape`` or ``FirstFinding``."""

    sink: Sink
    done: Done

    def draw(self, examples: int, seed: int | None) -> bool:
        """Draws so many runs. True if the time was up before all were drawn."""

    @property
    def ended(self) -> bool:
        """No more runs are wanted."""

    @property
    def broke(self) -> bool:
        """Some run has broken a law."""

    def told(self) -> list[Json]:
        """What was found, as findings of a report."""


class EveryShape:
    """Drawn runs that go on past what they break, as those beside a base do (``Hunt``): so that a frequent bug hides
    no rare one. Findings of one law, kind and severity that one operation shows have one shape. When all runs are
    drawn, the shortest run of each shape is shrunk. A finding says in how many runs its law was broken, and each other
    shape of it, in ``folded``, in how many runs that shape was met.
    """

    def __init__(self, loaded: Loaded, asked: Json, progress: Progress, make: Make, clock: Clock) -> None:
        self.loaded, self.exclude = loaded, excluded(asked["stem"], listed_of(asked))
        limits = HuntLimits(None, asked["seconds"], asked["seed"], shapes=1, kinds=loaded.kinds)
        self.hunt = Hunt(asked["stem"], make, lambda _: Outcome(), limits, progress, clock=clock)
        self.sink, self.done = self.hunt.sink, self.hunt.done

    def draw(self, examples: int, seed: int | None) -> bool:
        return self.hunt.draw(examples, seed, self.exclude)

    @property
    def ended(self) -> bool:
        return False

    @property
    def broke(self) -> bool:
        return bool(self.hunt.candidates)

    def told(self) -> list[Json]:
        found = [_without_base(one) for one in self.hunt.new()]
        return [difference_row(one, self.loaded, self.done, among=len(found) - n) for n, one in enumerate(found)]


class FirstFinding:
    """Drawn runs that end with the first finding, for a caller that wants no other.

    ``asked`` may have ``shrinking``, the seconds in which the run is made smaller, where the caller wants to go on
    soon; and ``untold``: the finding is told without its story and its harm.
    """

    def __init__(self, loaded: Loaded, asked: Json, progress: Progress, make: Make, clock: Clock) -> None:
        self.loaded, self.asked, self.progress, self.make = loaded, asked, progress, make
        self.stem: str = asked["stem"]
        self.exclude = excluded(self.stem, listed_of(asked))
        self.sink = Sink(before=self._before, late=self._shrinks_no_more)
        self.done = Done(self.stem, make, self.sink, clock, loaded.kinds)
        self.shrinking = Clock(asked.get("shrinking"))
        self.result: Result | None = None

    def _before(self, trace: Trace, step: Json) -> None:
        if self.done.must_stop():
            raise TimeIsUp
        self.progress("drawn runs", trace, step, self.sink.steps)

    def _shrinks_no_more(self) -> bool:
        self.done.ends()
        self.shrinking.begin()
        return self.shrinking.is_up() or self.done.is_late()

    def draw(self, examples: int, seed: int | None) -> bool:
        search = Search(examples, seed, self.asked["strict"], self.exclude, kinds=self.loaded.kinds)
        self.result = check(self.stem, self.make, search, self.sink)
        return self.result.cut_short

    @property
    def ended(self) -> bool:
        return self.broke

    @property
    def broke(self) -> bool:
        return self.result is not None and self.result.law is not None

    def told(self) -> list[Json]:
        if self.result is None or self.result.law is None:
            return []
        return [_found(self.result, self.loaded, None if self.asked.get("untold") else self.done)]


class Alone:
    """The search for what one engine breaks on one stem: everything that drawn runs show in the time, or where
    ``asked`` has ``first`` the first finding alone.
    """

    def __init__(self, loaded: Loaded, asked: Json, progress: Progress, clock: Clock) -> None:
        self.asked, self.progress = asked, progress
        self.stem: str = asked["stem"]
        self.make = Ran(loaded.makers[self.stem])
        self.listed = listed_of(asked)
        runs = FirstFinding if asked.get("first") else EveryShape
        self.runs: DrawnRuns = runs(loaded, asked, progress, self.make, clock)
        self.sink, self.done = self.runs.sink, self.runs.done
        self.cut_short = False

    def replayed(self, difference: KnownDifference) -> tuple[bool, Json]:
        """Whether the engine still shows a known difference, and what it shows on the trace."""
        kept = trace_files.load(difference.trace)
        first = self._outcome(kept).first
        if first is not None and (first.severity, first.law) == (difference.verdict, difference.law):
            return True, first.row(kept.trace, name=kept.name)
        today = "holds" if first is None else f"is {first.severity}: {first.law}, {first.detail}"
        detail = f"listed, but today it {today}"
        row = Break(difference.verdict, len(kept.trace.steps), difference.law, "", kept.why, detail)
        return False, row.row(kept.trace, name=kept.name)

    def _outcome(self, kept: Kept) -> Outcome:
        self.progress(kept.name, kept.trace, None, self.sink.steps)
        return replay(kept.trace, self.make, self.done.effort)

    def new(self) -> list[Json]:
        """What breaks that is not known of the release: what drawn runs show; or where they show nothing and did too
        little, what kept traces show, or else what further drawn runs show first.
        """
        self.cut_short = self._draw()
        # No kept trace is replayed, and the time is kept.
        drawn_alone = self.asked.get("drawn_alone", False) or self.asked.get("further", False)
        if self.runs.broke or self.done.effort.enough or not self.sink.runs or drawn_alone:
            return self.runs.told()
        shown = [(kept, first) for kept in self._unlisted() if (first := self._outcome(kept).first) is not None]
        if shown:
            return [first.row(kept.trace, name=kept.name) for kept, first in shown]
        for seed in self.done.effort.rounds(self.asked["seed"]):
            self.runs.draw(RUNS, seed)
            if self.runs.broke:
                break
        return self.runs.told()

    def _unlisted(self) -> list[Kept]:
        """The kept traces of the stem that are no known differences."""
        listed = {difference.trace for difference in self.listed}
        return [kept for kept in trace_files.every() if kept.trace.stem == self.stem and kept.name not in listed]

    def _draw(self) -> bool:
        """Draws as many runs as were asked for, or as there is time for, until enough operations are done. True if the
        time was up before. A run looks at the clock before each operation; one that has none does not.
        """
        asked, number = self.asked, self.asked["seed"] or 0
        examples = asked["examples"] or ROOMS[self.stem].runs
        late = self.runs.draw(examples, asked["seed"])
        more = asked["examples"] is None and asked["seconds"] is not None
        while not (late or self.runs.ended) and self.sink.runs and (more or self.sink.steps < asked["steps"]):
            number += 1
            late = self.done.must_stop() or self.runs.draw(examples, number)
        return late


def listed_of(asked: Json) -> list[KnownDifference]:
    """The known differences of the release ``asked["listed"]`` of the engine, without those of the causes that are
    repaired in this process (``asked["repaired"]``).
    """
    repaired = {name for cause in asked.get("repaired", ()) for name in cause_files.load(cause).names_of_traces}
    listed = known.of_release(registry.plugin(asked["engine"]).folder, asked["listed"])
    return [difference for difference in listed if difference.trace not in repaired]


def excluded(stem: str, listed: Iterable[KnownDifference]) -> frozenset[StrEnum]:
    """What drawn runs leave out: the known differences of the stem, and of the stems that it is made of. Whole servers
    get the messages of like clients in each of their rooms.
    """
    stems, waiting = {stem, *(servers() if stem in servers() else ())}, [law_of(stem)]
    while waiting:
        found = waiting.pop()
        stems.add(found.name)
        waiting += found.parts.values()
    return exclusions.exclusions([k.exclude for k in listed if k.exclude and k.stem in stems])


def _found(result: Result, loaded: Loaded, done: Done | None) -> Json:
    """The finding of drawn runs, with its story and its harm as far as the time of ``done`` allows; without both where
    it is ``None``.
    """
    assert result.trace is not None
    law, kind, sentence, detail = (word or "" for word in (result.law, result.kind, result.sentence, result.detail))
    found = Break(result.verdict, len(result.trace.steps), law, kind, sentence, detail)
    said = {} if done is None else _said(result.trace, found.step, result.drawn, loaded, done)
    return found.row(result.trace, how=result.how, **said)


# An engine beside a base.


class Built:
    """A maker of the subject. Where the subject's own code fails while the engine is built, and the base is built from
    this configuration, this is a finding; runs then go on with another configuration.
    """

    def __init__(self, stem: str, make: Make, base: Callable[[Trace], Outcome]) -> None:
        self.stem, self.make, self.base = stem, make, base
        self.failed: dict[str, Trace] = {}  # by the exception the first run, without operations

    def __call__(self, config: Json) -> Any:
        """A fresh engine of this configuration."""
        try:
            return self.make(config)
        except (EngineError, Unsupported) as error:
            if not error.unbuilt:
                raise
            trace = Trace(self.stem, dict(config))
            if self._base_is_built(trace):  # else no server has this configuration
                self.failed.setdefault(error.unbuilt, trace)
            raise Unsupported(str(error)) from error

    def _base_is_built(self, trace: Trace) -> bool:
        try:
            return self.base(trace) == Outcome()
        except EngineError:
            return False

    def rows(self) -> list[Json]:
        """The findings, as those of a report."""
        return [
            Break.of(not_built(what), 0).row(trace, base="the base is built from this configuration", how=How.DRAWN)
            for what, trace in self.failed.items()
        ]


def beside(loaded: Loaded, asked: Json, progress: Progress) -> Json:
    """What the engine breaks and the base at the socket ``asked["base"]`` does not. Where both have known causes of the
    base, and the repairs of these mend both, runs are drawn with these repairs too. ``asked["subject"]``: the socket of
    the process that serves this engine. With ``asked["further"]`` another process replays all kept traces and does
    what is least; this one replays those of the known causes, and draws further runs.
    """
    stem, roots = asked["stem"], [Path(root) for root in asked["roots"]]
    with ExitStack() as stack:
        base = stack.enter_context(Connection(asked["base"], asked.get("limit")))
        first = asked.get("first", False)
        further = asked.get("further", False)
        limits = HuntLimits(
            asked["examples"], asked["seconds"], asked["seed"], minimum=not further, first=first, kinds=loaded.kinds
        )
        common = _common(loaded, asked, roots)
        every = [one for one in trace_files.every() if one.trace.stem == stem]
        kept = [(one.name, one.trace) for one in every if not further or one.name in common.shown.values()]
        again = [(name, Trace(**trace)) for name, trace in asked["again"]]
        built = Built(stem, loaded.makers[stem], base.outcome)
        make = Ran(built)
        hunt = Hunt(stem, make, base.outcome, limits, progress)
        repairs = partial(_repairs, hunt, common, asked, stack) if common.shown else None
        hunted = hunt.run(kept, excluded(stem, listed_of(asked)), repairs, again)
        return {**_beside(hunt, hunted, built, loaded, roots), "ran": make.as_json()}


def _common(loaded: Loaded, asked: Json, roots: Sequence[Path]) -> CommonCauses:
    """The causes that the base is known to have in this stem, as far as both have their lines."""
    law = law_of(asked["stem"])
    shown = {one.trace for one in listed_of(asked) if one.stem in ROOMS and law_of(one.stem) == law}
    sockets = [asked["subject"], asked["base"]]
    return common_causes(asked["engine"], shown, [roots, loaded.roots], sockets, asked.get("limit"))


def _repairs(hunt: Hunt, common: CommonCauses, asked: Json, stack: ExitStack) -> Repairs | None:
    """The repairs of the causes that mend subject and base; ``None`` if there are none."""

    def tick(name: str, trace: Trace) -> None:
        hunt.tick(name, trace, None, hunt.sink.steps)

    names = common.mended([gone.name for gone in hunt.gone], tick)
    if not names:
        return None
    mended = stack.enter_context(Connection(asked["base"], asked.get("limit"), names))
    left = excluded(asked["stem"], listed_of({**asked, "repaired": names}))
    return Repairs(names, partial(_repair, names), mended.outcome, left)


def _repair(names: Iterable[str]) -> None:
    """Repairs the engine of this process."""
    for name in names:
        cause_files.load(name).apply()


def _beside(hunt: Hunt, hunted: Hunted, built: Built, loaded: Loaded, roots: Sequence[Path]) -> Json:
    lists: dict[str, list[Json]] = {
        str(status): [difference_row(d, loaded, hunt.done, roots) for d in hunted.differences if d.status is status]
        for status in Status
    }
    for found in (found for status, rows in lists.items() if status != Status.KNOWN for found in rows):
        found["repaired"] = [*hunt.repaired]
    lists[Status.NEW] += built.rows()
    lists["gone"] = [
        g.found.row(g.trace, name=g.name, detail=f"the subject {g.detail}; the base: {g.found.detail}")
        for g in hunted.gone
    ]
    verdict = _gravest([*lists["new"], *lists["worse"]])
    return {**hunt.done.as_json(verdict, hunted.cut_short), **lists}


def difference_row(
    found: Difference, loaded: Loaded, done: Done, roots: Sequence[Path] | None = None, among: int = 1
) -> Json:
    """The difference as a finding of a report; unless it is known with its story and its harm, as far as the time
    allows. ``roots``: where the base's code is, where there is a base. ``among``: so many findings are still to be
    told, this one with them, and share the time that is left.
    """
    more: Json = {"name": found.name, "base": found.base, "times": found.times, "how": found.how}
    more["folded"] = [shape_row(shape) for shape in found.shapes]
    if found.status is not Status.KNOWN:
        more |= _said(found.trace, found.found.step, found.drawn, loaded, done, roots, among)
    return found.found.row(found.trace, **more)


def shape_row(shape: Difference) -> Json:
    """Another shape of a finding as plain data: what its run shows, without a story."""
    row = shape.found.row(shape.trace, name=shape.name, base=shape.base, times=shape.times, how=shape.how)
    return {
        "status": str(shape.status),
        **{key: row[key] for key in ("step", "detail", "base", "name", "times", "how", "trace")},
    }


def _without_base(found: Difference) -> Difference:
    """The difference without what a base shows, since there was none."""
    return replace(found, base="", shapes=tuple(replace(shape, base="") for shape in found.shapes))


# What both have.


def _said(
    trace: Trace,
    step: int,
    drawn: Trace | None,
    loaded: Loaded,
    done: Done,
    roots: Sequence[Path] | None = None,
    among: int = 1,
) -> Json:
    """What is said of a finding: its operations as plain data, each with the engine's functions that it called, which
    are compared with those of the base in ``roots``; and what came of it. Where the time is over there is no story, and
    no harm is looked for. ``drawn``: the run from which the trace was shrunk. ``among``: so many findings share the
    time that is left.
    """
    make, left = loaded.makers[trace.stem], done.running.left
    mine = Clock(None if left is None else left / among)
    mine.begin()
    story = [] if mine.is_up() else [asdict(told) for told in tell(trace, make, loaded.roots, roots)]
    return {"story": story, "harm": harm(trace, step, make, drawn, mine.left)}


def _gravest(rows: Iterable[Json]) -> str | None:
    severities = {row["severity"] for row in rows}
    return next((severity for severity in (VIOLATION, LATENT) if severity in severities), None)

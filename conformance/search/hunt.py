"""Looks for the laws that a subject breaks and a base holds: ``slotproof check --base``.

Drawn runs go on past what the base breaks too: the run steps back before that operation and goes on without it. So a
new difference is found though known ones are all around. Each new one is shrunk on the condition that the base still
holds, so shrinking cannot slide into a known difference.

``conformance.search.judge.Alone`` searches an engine without a base in this way: then no law counts as broken by the
base, and everything that the subject breaks is new.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import count
from typing import Any

from conformance.driver.clock import Clock
from conformance.driver.lockstep import VIOLATION, Finding
from conformance.driver.protocol import Json
from conformance.driver.shadow import READS_OWN
from conformance.driver.trace import Trace
from conformance.search.check import Search, draw
from conformance.search.done import Done, replay
from conformance.search.enough import RUNS
from conformance.stems.exclusions import looks_past
from conformance.stems.kinds import Kinds
from conformance.stems.machine import Sink, TimeIsUp
from conformance.stems.stem_registry import start
from conformance.traces.compare import RANK, Status, compare, in_words
from conformance.traces.outcome import Break, How, Outcome
from conformance.traces.shrink import shrink

ROUND = 20  # runs that are drawn at a time; every second round avoids the known differences of the base
SHAPES = 3  # how many runs with one broken law, broken by one operation, are shrunk beside a base
SHRINKING = 0.35  # the part of a stem's time that is kept for shrinking
AS_THEY_ARE = 0.6  # the part of a stem's time in which both engines are as they are, where they can be repaired


@dataclass(frozen=True)
class Difference:
    """A law that the subject breaks, beside the base.

    ``trace``: the run; ``how`` says whether it is shrunk. ``base``: what the base shows on it, in words. ``name``: the
    name of a kept trace, empty for a drawn run. ``times``: in how many runs the law was broken; of one of the
    ``shapes``, in how many runs the operation that ended its drawn run broke the law. ``shapes``: other runs that
    break the law, most likely for one reason with this one: another operation breaks it, or other operations come
    before. They have no shapes themselves. ``drawn``: the run from which ``trace`` was shrunk.
    """

    status: Status
    found: Break
    trace: Trace
    base: str
    name: str = ""
    times: int = 1
    how: How = How.SHRUNK
    shapes: tuple[Difference, ...] = ()
    drawn: Trace | None = None

    @property
    def operations(self) -> frozenset[str]:
        """The names of the operations of the trace."""
        return frozenset(step["op"] for step in self.trace.steps)

    def says_more_than(self, other: Difference) -> bool:
        """Both are about one law that one operation breaks, and every operation of ``other`` is in this trace too: so
        this one most likely shows what ``other`` shows in a shorter way.
        """
        alike = self.found.is_like(other.found) and self.found.severity == other.found.severity
        one_end = self.trace.steps[-1]["op"] == other.trace.steps[-1]["op"]
        return alike and one_end and other.operations <= self.operations


@dataclass(frozen=True)
class Gone:
    """A law that the base breaks on a kept trace, and the subject holds. ``detail``: what the subject shows."""

    found: Break
    trace: Trace
    name: str
    detail: str


@dataclass
class Hunted:
    """What a hunt on one stem found, and how hard it looked.

    ``runs``, ``steps``: runs and operations. ``transitions``: how often each transition of the law was done and
    refused. ``cut_short``: the time was over before all runs were drawn.
    """

    stem: str
    differences: list[Difference] = field(default_factory=list)
    gone: list[Gone] = field(default_factory=list)
    runs: int = 0
    steps: int = 0
    transitions: dict[str, int] = field(default_factory=dict)
    cut_short: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class HuntLimits:
    """How long a hunt on one stem goes on.

    ``examples``: the number of drawn runs, ``None`` for as many as there is time for. ``seconds``: the time from the
    first operation on, shrinking included; ``None`` without a limit. One of the two must be given. ``minimum``: where
    nothing new was found the hunt goes on, beyond both, until enough was done (``conformance.search.enough``).
    ``seed``, ``steered``, ``kinds``: see ``Search``. ``together``: how many runs one seed draws. ``avoid``: all rounds
    avoid the known differences, not every second one alone. ``first``: nothing more is drawn after the first violation
    that is new or worse, and it alone is shrunk. ``shapes``: how many runs with one broken law, broken by one
    operation, are shrunk.
    """

    examples: int | None = 200
    seconds: float | None = None
    seed: int | None = None
    together: int = ROUND
    avoid: bool = False
    steered: bool = False
    minimum: bool = False
    first: bool = False
    shapes: int = SHAPES
    kinds: Kinds | None = None


@dataclass(frozen=True)
class Repairs:
    """Repairs of known causes that subject and base have in common, so that these causes hide nothing that is new.
    ``causes``: their names. ``repair``: repairs the subject, until this process ends. ``base``: replays a trace on the
    repaired base. ``exclude``: the known differences that runs of repaired engines still avoid.
    """

    causes: Sequence[str]
    repair: Callable[[], None]
    base: Callable[[Trace], Outcome]
    exclude: Collection[StrEnum]


@dataclass(frozen=True)
class _Candidate:
    """A run with a finding that the base does not show. ``avoided``: the known differences that the run avoided."""

    status: Status
    finding: Finding
    trace: Trace
    name: str = ""
    avoided: Collection[StrEnum] = ()

    @property
    def law(self) -> tuple[str, ...]:
        """The broken law, its kind, and whether the finding is latent: runs with one of these are one finding."""
        return self.finding.law, self.finding.kind, str(self.finding.latent)

    @property
    def shape(self) -> tuple[str, ...]:
        """``law``, and the operation that broke it: runs with one of these have one shape."""
        return *self.law, str(self.trace.steps[-1]["op"])


class Hunt:
    """One search on one stem. ``make`` builds the subject; ``base`` replays a trace on the base. ``tick`` is called
    before each operation with what the search does and how many operations it has sent. ``seen`` says of a finding of a
    drawn run that it was found before: then it is neither shrunk nor told. ``clock``: the time of the search; with
    ``None`` a clock of ``HuntLimits.seconds``.
    """

    def __init__(
        self,
        stem: str,
        make: Callable[[Json], Any],
        base: Callable[[Trace], Outcome],
        limits: HuntLimits,
        tick: Callable[[str, Trace | None, Json | None, int], None] = lambda *_: None,
        seen: Callable[[Finding, Trace], bool] = lambda *_: False,
        clock: Clock | None = None,
    ) -> None:
        self.stem, self.make, self.base, self.limits, self.tick, self.seen = stem, make, base, limits, tick, seen
        self.clock = clock or Clock(limits.seconds)
        self.sink = Sink(passes=self._passes, before=self._before)
        self.done = Done(stem, make, self.sink, self.clock, limits.kinds)
        self.cut_short = False
        self.repaired: Sequence[str] = ()  # the causes that are repaired in both engines
        self._numbers = count()  # of the rounds of drawn runs
        self._left: int | None = limits.examples  # so many runs are to be drawn; None: as many as there is time for
        self._until = 1.0  # the part of the time after which runs that show nothing new end
        self.candidates: dict[tuple[str, ...], list[_Candidate]] = {}  # by their shape
        self.met: Counter[tuple[str, ...]] = Counter()  # in how many runs each law, and each shape, was met
        self._met_in: dict[tuple[str, ...], object] = {}  # the last run in which each was met
        self._avoided: Collection[StrEnum] = ()  # by the runs that are being drawn
        self.known: dict[tuple[str, str, str], Difference] = {}
        self.gone: list[Gone] = []

    def run(
        self,
        kept: Iterable[tuple[str, Trace]],
        exclude: Collection[StrEnum],
        repairs: Callable[[], Repairs | None] | None = None,
        again: Sequence[tuple[str, Trace]] = (),
    ) -> Hunted:
        """Replays the kept traces, draws runs, and shrinks what is new. ``exclude``: known differences of the base,
        which every second round of drawn runs avoids. ``repairs``: called where nothing is new; if there are some,
        further runs are drawn with both engines repaired, and what these show is shrunk and told on repaired engines
        too (``repaired``). ``again``: traces that are replayed first, and on repaired engines too.
        """
        self._until = 1.0 if repairs is None else AS_THEY_ARE
        self._replay_all([*again, *kept])
        self.cut_short |= self._draw(exclude)
        if repairs is not None and not self.candidates:
            self._until = 1.0
            exclude = self._draw_further(exclude, repairs(), again)
        if (ends := self._ends_the_search()) is None:
            self._go_on(exclude)
        else:
            self.candidates = {(): [ends]}
        differences = [*self.new(), *self.known.values()]
        seconds = round(self.clock.passed, 1)
        return Hunted(
            *(self.stem, differences, self.gone, self.sink.runs, self.sink.steps),
            *(self.sink.transitions, self.cut_short, seconds),
        )

    # The time.

    def _time_is_up(self, part: float) -> bool:
        """This part of the time has gone by."""
        return self.done.is_late(part)

    def _searched_enough(self) -> bool:
        """The time is up, but for the time that shrinking needs where there is something to shrink."""
        part = 1 - SHRINKING if self.candidates else self._until
        return self.done.must_stop(part) or self._ends_the_search() is not None

    def _ends_the_search(self) -> _Candidate | None:
        """The violation for which ``first`` waits, if it was met."""
        found = (c for shapes in self.candidates.values() for c in shapes) if self.limits.first else ()
        return next((c for c in found if c.status in (Status.NEW, Status.WORSE) and not c.finding.latent), None)

    def _before(self, trace: Trace, step: Json) -> None:
        if self._searched_enough():
            raise TimeIsUp
        self.tick("drawn runs", trace, step, self.sink.steps)

    # Kept traces.

    def _replay_all(self, kept: Iterable[tuple[str, Trace]]) -> None:
        for name, trace in kept:
            if self._searched_enough():
                self.cut_short = True
                return
            self._replay(name, trace)

    def _replay(self, name: str, trace: Trace) -> None:
        self.tick(name, trace, None, self.sink.steps)
        heard: list[Finding] = []
        mine, theirs = replay(trace, self.make, self.done.effort, heard.append), self.base(trace)
        for found, finding in zip(mine.breaks, heard, strict=True):
            status = compare(found, theirs)
            if status is Status.KNOWN:
                self._is_known(found, trace, name, theirs)
            else:
                cut = Trace(trace.stem, trace.config, trace.steps[: found.step])
                self._suspect(_Candidate(status, finding, cut, name))
        for broken in theirs.breaks:
            ended = any(b.severity == VIOLATION and b.step <= broken.step for b in mine.breaks)
            if mine.like(broken) is None and not ended:
                detail = f"cannot make the call of step {mine.stopped_at}: {mine.stopped}" if mine.stopped else "holds"
                self.gone.append(Gone(broken, trace, name, detail))

    # Drawn runs.

    def _draw_further(
        self, exclude: Collection[StrEnum], repairs: Repairs | None, again: Sequence[tuple[str, Trace]]
    ) -> Collection[StrEnum]:
        """Draws runs with both engines repaired, half as many as before; without repairs what is left of the runs.
        Returns what the runs avoid.
        """
        if repairs is None:
            self.cut_short = self._draw(exclude)
            return exclude
        repairs.repair()
        self.base, self.repaired = repairs.base, repairs.causes
        if self.limits.examples is not None:
            self._left = -(-self.limits.examples // 2)
        self._replay_all(again)
        self.cut_short |= self._draw(repairs.exclude)
        return repairs.exclude

    def _draw(self, exclude: Collection[StrEnum]) -> bool:
        """Draws the runs that are left, or as many as there is time for. True if the time was up before. A run looks at
        the clock before each operation; one that has none does not.
        """
        seed = self.limits.seed
        while self._left is None or self._left > 0:
            if self.sink.runs and self._searched_enough():
                return True
            number, together = next(self._numbers), self.limits.together
            examples = together if self._left is None else min(together, self._left)
            avoided = exclude if number % 2 or self.limits.avoid else ()
            before = self.sink.runs
            if self.draw(examples, seed if number == 0 else (seed or 0) * 100_003 + number, avoided):
                return True
            if self._left is not None:
                self._left -= examples
            if self.sink.runs == before:
                break
        return False

    def draw(self, examples: int, seed: int | None, avoided: Collection[StrEnum]) -> bool:
        """Draws so many runs, which go on past what they break. True if the time was up before all were drawn."""
        limits, self._avoided = self.limits, avoided
        search = Search(examples, seed, strict=False, exclude=avoided, kinds=limits.kinds, steered=limits.steered)
        try:
            draw(self.stem, self.make, self.sink, search)
        except TimeIsUp:
            return True
        return False

    def _go_on(self, exclude: Collection[StrEnum]) -> None:
        """Draws further runs until enough was done, where nothing new was found. They avoid the known differences."""
        if self.limits.minimum and self.sink.runs + self.sink.steps and not self.candidates:
            for seed in self.done.effort.rounds(self.limits.seed):
                if self.draw(RUNS, seed, exclude) or self.candidates:
                    return

    def _passes(self, finding: Finding, trace: Trace) -> bool:
        """Judges a finding of a drawn run. The run always goes on."""
        if self.seen(finding, trace):
            return True
        cut = Trace(trace.stem, dict(trace.config), [dict(step) for step in trace.steps])
        found, theirs = Break.of(finding, len(cut.steps)), self.base(cut)
        status = compare(found, theirs)
        if status is Status.KNOWN:
            self._is_known(found, cut, "", theirs)
        else:
            self._suspect(_Candidate(status, finding, cut, avoided=self._avoided))
        return True

    def _is_known(self, found: Break, trace: Trace, name: str, theirs: Outcome) -> None:
        key = (found.law, found.kind, found.severity)
        words = in_words(Status.KNOWN, found, theirs)
        seen = self.known.get(key)
        best = seen if seen and (seen.name or len(seen.trace.steps) <= len(trace.steps)) else None
        best = best or Difference(Status.KNOWN, found, trace, words, name, 0, How.KEPT if name else How.DRAWN)
        self.known[key] = replace(best, times=(seen.times if seen else 0) + 1)

    def _suspect(self, found: _Candidate) -> None:
        """Counts the run, and keeps the shortest runs in which one operation breaks one law."""
        for met in (found.law, found.shape):
            run = found.name or self.sink.runs
            self.met[met] += self._met_in.get(met) != run  # a run that goes on can break a law again
            self._met_in[met] = run
        kept = [*self.candidates.get(found.shape, []), found]
        kept.sort(key=lambda c: (RANK[c.status], len(c.trace.steps)))
        self.candidates[found.shape] = kept[: self.limits.shapes]

    # Shrinking.

    def new(self) -> list[Difference]:
        """What is not known, one finding a law; violations first. The shortest run of each law is shrunk before any
        other shape of it is begun, and the laws share the time for this. Other shapes of a law are folded under its
        finding.
        """
        self.done.ends()
        laws: dict[tuple[str, ...], list[list[_Candidate]]] = {}
        for shapes in self.candidates.values():
            laws.setdefault(shapes[0].law, []).append(shapes)
        waiting = [_in_turn(groups) for groups in laws.values()]
        waiting.sort(key=lambda queue: (RANK[queue[0].status], queue[0].finding.latent))
        found = [[self._shrunk(queue[0], len(waiting) - n)] for n, queue in enumerate(waiting)]
        others = sum(len(queue) - 1 for queue in waiting)
        for place in range(1, max(map(len, waiting), default=0)):
            for told, queue in zip(found, waiting, strict=True):
                if place < len(queue):
                    told.extend(self._other_shape(queue[place], told, others))
                    others -= 1
        folded = [
            replace(_folded(shapes), times=self.met[queue[0].law]) for queue, shapes in zip(waiting, found, strict=True)
        ]
        return sorted(folded, key=_gravity)

    def _other_shape(self, candidate: _Candidate, shapes: list[Difference], among: int) -> list[Difference]:
        """The candidate as another shape, shrunk while there is time. After that, and of a latent finding, only one run
        for each operation that breaks the law is a shape.
        """
        ends = candidate.trace.steps[-1]["op"] in {shape.trace.steps[-1]["op"] for shape in shapes}
        if ends and (candidate.finding.latent or self._time_is_up(1)):
            return []
        return [self._shrunk(candidate, among)]

    def _shrunk(self, candidate: _Candidate, among: int) -> Difference:
        """The candidate with the shortest run that is found in time. Its status may become clearer: where the base
        breaks another law first, a shorter run can show that it holds this one. ``among``: so many candidates are still
        to be shrunk, this one with them, and share the time that is left.
        """
        status, best = candidate.status, (candidate.finding, candidate.trace)
        left = self.done.left
        share = Clock(None if left is None else left / among)
        share.begin()

        def accepts(finding: Finding, trace: Trace) -> bool:
            nonlocal status, best
            self.tick(f"shrinking a run that breaks {finding.law}", trace, None, self.sink.steps)
            now = compare(Break.of(finding, len(trace.steps)), self.base(trace))
            if now is Status.KNOWN or RANK[now] > RANK[status]:
                return False
            status, best = now, (finding, trace)
            return True

        def fresh(config: Json) -> Any:
            return start(self.stem, self.make, config, False, looks_past(candidate.avoided))

        def in_time() -> None:
            if share.is_up() or self._time_is_up(1):
                raise TimeIsUp

        late = False
        try:
            best = shrink(*best, fresh, accepts, before=in_time)
        except TimeIsUp:
            late = True
        finding, trace = best
        found = Break.of(finding, len(trace.steps))
        words = in_words(status, found, self.base(trace))
        return Difference(
            status,
            found,
            trace,
            words,
            candidate.name,
            self.met[candidate.shape],
            how=How.CUT_SHORT if late else How.SHRUNK,
            drawn=candidate.trace,
        )


def _in_turn(groups: list[list[_Candidate]]) -> list[_Candidate]:
    """The runs that break one law, in the order in which they are shrunk: first one for each operation that breaks it,
    the shortest first.
    """
    order = [(place, RANK[c.status], len(c.trace.steps), n) for n, g in enumerate(groups) for place, c in enumerate(g)]
    return [groups[n][place] for place, _, _, n in sorted(order)]


def _folded(found: list[Difference]) -> Difference:
    """The clearest of the runs that break one law, with the others as its shapes, but for those that say no more."""
    shown: list[Difference] = []
    for one in found:
        if any(one.says_more_than(other) and RANK[other.status] <= RANK[one.status] for other in shown):
            continue
        shown = [d for d in shown if not (d.says_more_than(one) and RANK[one.status] <= RANK[d.status])] + [one]
    first, *others = sorted(shown, key=lambda d: (RANK[d.status], d.how is not How.SHRUNK, len(d.trace.steps)))
    return replace(first, shapes=tuple(others))


def _gravity(difference: Difference) -> tuple[int, bool, bool]:
    """The order of differences: the least known first; of these what a request has read that was not its own, then
    other violations.
    """
    found = difference.found
    return RANK[difference.status], found.law != READS_OWN, found.severity != VIOLATION

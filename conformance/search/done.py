"""What a search on one stem has done: as the entry of a report, and for how long it goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.driver.clock import Clock
from conformance.driver.lockstep import CONFORMS, UNSUPPORTED, VIOLATION, Finding, Law
from conformance.driver.protocol import Json
from conformance.driver.trace import Trace
from conformance.search.enough import NOT_ENOUGH, Effort
from conformance.stems.found import law_of
from conformance.stems.kinds import Kinds
from conformance.stems.machine import Sink
from conformance.traces.outcome import Outcome, outcome


def replay(
    trace: Trace, make: Callable[[Json], Any], effort: Effort, heard: Callable[[Finding], object] = lambda _: None
) -> Outcome:
    """What a kept trace shows. Its operations count as those of a drawn run."""
    ended: list[Law] = []
    found = outcome(trace, make, heard, ended.append)
    for law in ended:
        effort.replayed(trace, law, clean=not found.breaks and not found.stopped)
    return found


TELLING = 0.15  # the part of the time that is kept for the story and the harm of what was found


class Done:
    """Counts what is done on a stem. ``clock``: the time that the search may take, from the first operation on.
    ``kinds``: see ``Search``.
    """

    def __init__(
        self, stem: str, make: Callable[[Json], Any], sink: Sink, clock: Clock, kinds: Kinds | None = None
    ) -> None:
        self.stem, self.sink, self.clock = stem, sink, clock
        self.effort = Effort(stem, make, sink, kinds)
        self._last: Clock | None = None

    @property
    def running(self) -> Clock:
        """The clock that counts now: where the search goes on since too little was done, that of these rounds; and
        after them, the one that ``ends`` has begun.
        """
        further = self.effort.limit
        return self._last or (self.clock if further.begun is None else further)

    def ends(self) -> None:
        """The search is over. Where it went on since too little was done, what it found is made smaller and told within
        the time that the search had at first, which begins once more.
        """
        if self._last is None and self.effort.limit.begun is not None:
            seconds = self.effort.limit.seconds if self.clock.seconds is None else self.clock.seconds
            self._last = Clock(seconds, self.clock.now)
            self._last.begin()

    def is_late(self, part: float = 1.0) -> bool:
        """This part of the time for drawing and shrinking is over; the rest is kept for telling what was found."""
        return self.running.is_up(part * (1 - TELLING))

    @property
    def left(self) -> float | None:
        """The seconds that are left for drawing and shrinking, 0 where none are; ``None`` without a limit."""
        clock = self.running
        return None if clock.seconds is None else max((1 - TELLING) * clock.seconds - clock.passed, 0.0)

    def must_stop(self, part: float = 1.0) -> bool:
        """As ``is_late``, before an operation: the first one begins the time."""
        self.clock.begin()
        return self.is_late(part)

    def as_json(self, gravest: str | None, cut_short: bool) -> Json:
        """The entry of a report, as ``docs/json.md`` says it. ``gravest``: the gravest severity of what was found."""
        sink, effort = self.sink, self.effort
        none_wanted = not sink.runs and not cut_short  # the engine supports no configuration that is drawn
        enough = none_wanted or gravest == VIOLATION or effort.enough
        verdict = gravest or (CONFORMS if sink.runs else UNSUPPORTED)
        verdict = verdict if enough else NOT_ENOUGH
        names = law_of(self.stem).transitions
        return {
            **{"stem": self.stem, "verdict": verdict, "enough": enough, "runs": sink.runs, "steps": sink.steps},
            "refused": sum(n for (_, outcome), n in sink.counts.items() if outcome == "refused"),
            "transitions": sink.transitions,
            "avoided": dict(sorted(sink.avoided.items())),
            "never_reached": [name for name in names if not sink.counts[name, "done"]],
            "claimed": sorted(effort.claims),
            "too_seldom": [] if none_wanted else effort.too_seldom,
            **{"cut_short": cut_short, "seconds": round(self.clock.passed, 1), "over": round(self.clock.over, 1)},
        }

"""The forward passes and the transfers in flight of a run over one cache, as jobs of the law."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from conformance.driver.lockstep import Law
from spec.in_flight import NO_JOB, InFlightState
from spec.mamba_slots_state import OWN


class PassOfRow(NamedTuple):
    """A pass over one row of the law. ``first``: the page index of the first token that it computes. ``track``: the
    role of the slot of the track buffer that it writes, if any.
    """

    row: int
    first: int
    track: int = OWN


class Flights:
    """The steps in flight, oldest first, each with the jobs of its passes. They end in the order of their launch.
    Transfers into rows end in any order.
    """

    def __init__(self, law: Law) -> None:
        self._law = law
        self._steps: deque[list[int]] = deque()

    @property
    def any(self) -> bool:
        """A step is in flight."""
        return bool(self._steps)

    def launched(self, passes: Iterable[PassOfRow]) -> None:
        """A step is sent to the device: a pass of each of these rows."""
        self._steps.append([])
        for one in passes:
            job = self._new()
            self._unseen(self._law.engine_step, "launch", one.row, job, one.track, one.first)
            self._steps[-1].append(job)

    def ended(self) -> None:
        """The oldest step in flight is done; nothing, where none is in flight."""
        for job in self._steps.popleft() if self._steps else ():
            self._unseen(self._law.caller_step, "end_pass", job)

    def ended_but(self, count: int) -> None:
        """Every step in flight is done, but the ``count`` newest."""
        while len(self._steps) > count:
            self.ended()

    def receives(self, row: int, first: int) -> None:
        """A transfer into a row begins: the other server may write its pages, of the SWA pool those from the page index
        ``first`` on.
        """
        self._unseen(self._law.engine_step, "receive", row, self._new(), first)

    def received(self, row: int, done: bool) -> None:
        """The transfer that a row awaits is over. ``done``: all has come."""
        self._unseen(self._law.caller_step, "arrive" if done else "fall_short", row, self._law.state.awaits(row))

    def of(self, row: int) -> bool:
        """A pass of this row is in flight."""
        flight: InFlightState = self._law.state.flight
        return any(flight.row(job) == row for step in self._steps for job in step)

    def _new(self) -> int:
        flight: InFlightState = self._law.state.flight
        number: int = next(job for job in flight.jobs.items() if flight.kind(job) == NO_JOB)
        return number

    def _unseen(self, take: Callable[..., Any], name: str, *arguments: int) -> None:
        """Takes a step that changes nothing that an engine shows: a difference is told after the step before."""
        last = self._law.last
        take(name, *arguments)
        self._law.last = last

"""What is in flight in a run of ``block_cache``, as jobs of the law: which pass and which transfer has which number."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from conformance.driver.lockstep import Law
from spec.block_cache import LOADS, RUNS, BlockCacheState
from spec.finite import Seq, Set
from spec.in_flight import NO_JOB, InFlightState
from spec.lengths import Length, in_pages, in_tokens


def first_state(st: BlockCacheState, row: int, start: int) -> int:
    """The first place of a row with states that its pass uses which begins at the token ``start`` or later: that of the
    state from which the pass goes on.
    """
    return int(max(st.first(row), (start - 1) // st.block_size(row)))


def first_read(st: BlockCacheState, row: int, start: int) -> int:
    """The first place of a row that its pass reads which computes the tokens from ``start`` on. For a row with states
    it is the first that the row has.
    """
    if not st.windowed(row) or st.stateful(row):
        return int(st.first(row))
    size = st.block_size(row)
    before = in_tokens(Length(st.window(row), st.window_rest(row)), size)
    return int(max(0, (start - before) // size))


class Jobs:
    """The jobs of a run. A pass ends with its step, a transfer when the scheduler is told that it is done.

    ``passes``: forward passes are jobs, too. Without transfers no promise and no law asks for them.
    """

    def __init__(self, law: Law, passes: bool = True) -> None:
        self._law, self._passes = law, passes
        self._steps: deque[list[int]] = deque()  # of each step in flight, its passes
        self._loads: dict[int, dict[int, int]] = {}  # by request, the transfer into each of its rows
        self._sends: dict[int, list[int]] = {}  # by request, the transfers out of its rows

    def _unseen(self, take: Callable[..., Any], name: str, *arguments: int) -> None:
        """Takes a step that changes nothing that an engine shows: a difference is told after the step before."""
        last = self._law.last
        take(name, *arguments)
        self._law.last = last

    def _new(self) -> int:
        flight: InFlightState = self._law.state.flight
        number: int = next(job for job in flight.jobs.items() if flight.kind(job) == NO_JOB)
        return number

    # Passes.

    def step_begins(self) -> None:
        """A step is sent to the workers."""
        self._steps.append([])

    def launched(self, rows: Mapping[int, int]) -> None:
        """The step that was sent last has a pass of these rows, which reads each from this place on."""
        for row, since in rows.items() if self._passes else ():
            job = self._new()
            self._unseen(self._law.engine_step, "launch", row, job, since)
            self._steps[-1].append(job)

    def step_ends(self) -> None:
        """The oldest step in flight is done."""
        for job in self._steps.popleft():
            self._unseen(self._law.caller_step, "end", job)

    # Transfers.

    def admits(self, request: int, row: int, story: int, skipped: int, found: Seq, to: Length, chosen: Seq) -> None:
        """A request gets a row, and a transfer into the row begins at once (``spec.block_cache.admit_and_load``)."""
        job = self._new()
        self._law.engine_step("admit_and_load", row, story, job, skipped, found, to, chosen)
        self._loads.setdefault(request, {})[row] = job

    def loads(self, request: int, rows: Iterable[int]) -> None:
        """A transfer begins into those rows of a request that run."""
        jobs = self._loads.setdefault(request, {})
        for row in rows:
            if row not in jobs:
                job = self._new()
                self._law.engine_step("load", row, job)
                jobs[row] = job

    def loads_again(self, rows: Iterable[int]) -> None:
        """Another transfer begins into rows of a request into which one is under way. The law refuses it."""
        for row in rows:
            self._law.engine_step("load", row, self._new())

    def loaded(self, request: int, computed: int) -> None:
        """A transfer into the rows of a request is done; so many tokens of the text are there. Rows that were kept,
        since the request has ended, wait for nothing.
        """
        for row, job in self._loads.pop(request, {}).items():
            if self._law.state.phase(row) == LOADS:
                to = in_pages(computed, self._law.state.block_size(row))
                self._law.engine_step("loaded", row, job, to, Set())
            else:
                self._unseen(self._law.caller_step, "end", job)

    def sends(self, request: int, rows: Iterable[int]) -> None:
        """Another server reads the blocks of a request from now on."""
        jobs = self._sends[request] = []
        for row in rows:
            if self._law.state.phase(row) == RUNS:
                job = self._new()
                self._unseen(self._law.engine_step, "send", row, job)
                jobs.append(job)

    def sent(self, request: int) -> None:
        """Another server has read the blocks of a request."""
        for job in self._sends.pop(request, ()):
            self._unseen(self._law.caller_step, "end", job)

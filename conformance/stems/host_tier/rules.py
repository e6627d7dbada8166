"""The machine that draws runs of ``host_tier``: few slots, and requests whose texts often begin alike.

A rule sends what a scheduler with a connector can send in the present state, and nothing else. Each run ends with
``drain``: every copy ends, every job is reported and every request finishes; then the host is reset, and every slot is
free.
"""

from __future__ import annotations

from itertools import product

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from conformance.driver.protocol import Json
from conformance.stems.host_tier.config import POLICIES
from conformance.stems.host_tier.contents import HostJob, HostRequest
from conformance.stems.host_tier.exclusions import HostTierExclusion as Exclusion
from conformance.stems.host_tier.run import JOBS, HostTierRun
from conformance.stems.machine import StemMachine
from spec.host_tier_state import WRITING

REQUESTS = 3
WORK, LAST = 10, 19  # of the picks: what a request does comes before WORK, the last one is a reset
CONFIG = {
    "slots": st.sampled_from((3, 2, 1, 4, 5)),
    "keys": st.sampled_from((8, 5, 3, 6, 7)),
    "parts": st.sampled_from((1, 1, 2)),
    "policy": st.sampled_from(POLICIES),
    "threshold": st.sampled_from((1, 1, 1, 2)),
    "events": st.booleans(),
}
TEXTS = ([1, 2, 3, 4], [1, 2, 5], [6, 7], [8], [1, 2, 3], [6, 7, 4])
requests, picks, places = st.integers(1, REQUESTS), st.integers(0, LAST), st.integers(0, 7)
moves = st.lists(st.tuples(requests, picks, st.integers(0, len(TEXTS) - 1), places), min_size=2, max_size=5)


class HostTierMachine(StemMachine):
    """Requests that begin, store, load and finish, and jobs whose copies begin and end at any time."""

    run: HostTierRun | None

    @initialize(config=st.fixed_dictionaries(CONFIG))
    def start(self, config: Json) -> None:
        """Makes an engine of a drawn size, and the law. Where the engine lacks a policy, a threshold or events, it is
        driven with others.
        """
        first = {**config, "requests": REQUESTS}
        policies = ("lru",) if self.excludes(Exclusion.ARC) else POLICIES
        if first["policy"] not in policies:
            first["policy"] = policies[0]
        kinds = product(policies, (1, 2), (True, False))
        self.begin_one_of(first, [{**first, "policy": p, "threshold": t, "events": e} for p, t, e in kinds])

    @property
    def begun(self) -> HostTierRun:
        """The run, after the start."""
        assert self.run is not None
        return self.run

    def teardown(self) -> None:
        """Ends everything, unless the run has failed before."""
        try:
            if self.run is not None and not self.failed:
                self.drain()
        finally:
            super().teardown()

    def drain(self) -> None:
        """Every copy ends, every job is reported, and every request finishes. Then the host forgets everything."""
        for job, known in list(self.begun.jobs.items()):
            if known.flies:
                self.do("end", job=job, well=True)
            if job in self.begun.jobs:
                self.do("report", job=job)
        for request in list(self.begun.requests):
            self.do("finish", request=request)
        self.do("reset")

    # Rules.

    @rule(moves=moves)
    def go(self, moves: list[tuple[int, int, int, int]]) -> None:
        """A few requests and jobs do their next step."""
        if self.run is None:  # Hypothesis needs one rule that is always possible
            return
        for request, how, text, place in moves:
            if how == LAST:
                self._reset(place)
            elif how >= WORK and self.begun.jobs:
                self._goes_on(how, place)
            elif request in self.begun.requests:
                self._works(request, self.begun.requests[request], how % WORK, place)
            else:
                self._begins(request, TEXTS[text])

    def _begins(self, request: int, text: list[int]) -> None:
        keys = [key for key in text if self.begun.state.every_key.has(key)]
        if keys:
            self.do("begin", request=request, keys=keys)

    def _works(self, request: int, of: HostRequest, how: int, place: int) -> None:
        first = place % len(of.keys)
        if how < 3:
            self._offer(request, of, how, place)
        elif how < 7:
            self._load(request, of, place)
        elif how == 7:
            self._touch(request, of, first)
        elif how == 8 and place < 3:
            self.do("look_up", request=request, first=first, last=len(of.keys))
        elif place < 2:
            self._compute(request, of, of.filled + 1 + place)
        else:
            self.do("finish", request=request)

    def _compute(self, request: int, of: HostRequest, to: int) -> None:
        """A forward pass; where a request has all that it needs, nothing."""
        to = min(to, len(of.keys) * self.begun.parts)
        loads = any(job.of is of and not job.stores for job in self.begun.jobs.values())
        if of.filled < to and not loads:
            self.do("compute", request=request, to=to)

    def _offer(self, request: int, of: HostRequest, how: int, place: int) -> None:
        """A request offers what it has, most often all of it, after a forward pass. What a reset has left in flight
        ends first, as where the workers wait for it.
        """
        self._compute(request, of, of.filled + (place + 1) * self.begun.parts)
        whole = of.filled // self.begun.parts
        loads = any(job.of is of and not job.stores for job in self.begun.jobs.values())
        first = place % whole if whole and how == 2 else 0
        if not whole or loads or not (job := self._free_job()):
            return
        for lost, known in list(self.begun.jobs.items()):
            if known.lost:
                self.do("end", job=lost, well=place % 2 == 0)
        known_keys = [key for key in of.keys[first:whole] if self.begun.state.phase(key)]
        if not (known_keys and self.excludes(Exclusion.OFFER_OF_KNOWN)):
            self.do("offer", request=request, first=first, last=whole, job=job)

    def _load(self, request: int, of: HostRequest, place: int) -> None:
        """A request loads what it finds. Some schedulers touch all its keys before."""
        has_job = any(job.request == request for job in self.begun.jobs.values())
        job = self._free_job()
        if job and not has_job and of.filled < len(of.keys) * self.begun.parts:
            if place % 2:
                self._touch(request, of, 0)
            self.do("load", request=request, count=1 + place % len(of.keys), job=job)

    def _touch(self, request: int, of: HostRequest, first: int) -> None:
        written = any(self.begun.state.phase(key) == WRITING for key in of.keys[first:])
        if not (written and self.excludes(Exclusion.TOUCH_WHILE_WRITTEN)):
            self.do("touch", request=request, first=first, last=len(of.keys))

    def _goes_on(self, how: int, place: int) -> None:
        """A job does its next step: its copies begin or end, or its end is reported. Some jobs are given up before
        their copies begin, and some copies fail.
        """
        jobs: dict[int, HostJob] = self.begun.jobs
        job = sorted(jobs)[place % len(jobs)]
        known = jobs[job]
        if known.flies:
            self.do("end", job=job, well=how != WORK)
        elif known.begun or how == WORK + 1:
            self.do("report", job=job)
        else:
            self.do("start", job=job)

    def _reset(self, place: int) -> None:
        if place < 2:
            self.do("reset")

    def _free_job(self) -> int | None:
        return next((job for job in range(1, JOBS + 1) if job not in self.begun.jobs), None)

"""Drives a tier of host memory on after a law was broken: requests begin, store, load, and finish."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from conformance.driver.onward import Move, send
from conformance.driver.shadow import BLOCKS
from conformance.stems.host_tier.contents import HostJob, HostRequest, copied, read_back
from conformance.stems.host_tier.protocol import FOUND, Offered
from conformance.stems.host_tier.run import HostTierRun


class OnwardHost:
    """The requests and jobs of a run of ``host_tier``, driven without the law.

    ``strangers``: the requests that began after the law was broken.
    """

    def __init__(self, run: HostTierRun) -> None:
        self.run, self.engine, self.shadow, self.parts = run, run.engine, run.shadow, run.parts
        self.requests, self.jobs = dict(run.requests), list(run.jobs.values())
        self.strangers: list[int] = []
        self.moves: dict[str, Callable[[], Move]] = {
            "begin": lambda: iter(()),
            "stranger": self.stranger,
            "again": self.again,
            "decode": self.decode,
            "finish": self.finish,
            "leave": self.leave,
        }

    def stranger(self) -> Move:
        """A request begins with keys that are not on the host, computes them, and stores what the engine takes."""
        there = self.run.seen.slots
        keys = [key for key in self.run.state.every_key.items() if key not in there][:1]
        if keys and (request := self._begins(keys)):
            self.strangers.append(request)
            yield f"request {request} begins", None
            yield from self._stores(request)

    def again(self) -> Move:
        """For each key on the host a request begins that loads it and reads it."""
        for key in sorted(self.run.seen.slots):
            if key and (request := self._begins([key])):
                self.strangers.append(request)
                yield from self._loads(request)
                yield from self._finishes([request])

    def decode(self) -> Move:
        """The copies of each job begin and end, the loads last; the engine hears of it."""
        for job in sorted(self.jobs, key=lambda one: not one.stores):
            yield from self._ends(job)
        self.jobs = []

    def finish(self) -> Move:
        """The request that began first finishes."""
        yield from self._finishes(list(self.requests)[:1])

    def leave(self) -> Move:
        """The strangers finish."""
        yield from self._finishes(list(self.strangers))

    # Calls.

    def _begins(self, keys: Sequence[int]) -> int | None:
        idle = (n for n in range(1, self.run.most_requests + 1) if n not in self.requests)
        request = next(idle, None)
        if request is not None:
            self.requests[request] = HostRequest(list(keys))
            send(self.run, partial(self.engine.begin, request, list(keys)))
        return request

    def _blocks(self, count: int) -> list[int]:
        used = {block for of in self.requests.values() for block in of.blocks}
        used |= {block for job in self.jobs for block in job.blocks}
        free: Iterator[int] = (block for block in self.run.state.flight.blocks.items() if block not in used)
        return [block for block, _ in zip(free, range(count), strict=False)]

    def _stores(self, request: int) -> Move:
        of = self.requests[request]
        texts = self.run.texts(of.keys)
        of.blocks = self._blocks(len(texts))
        self.shadow.write(BLOCKS, of.blocks, texts, f"request {request}")
        of.filled = len(of.blocks)
        answer: Offered | None = send(self.run, partial(self.engine.offer, request, list(of.keys)))
        if answer is None or list(answer.stored) != list(of.keys):
            return
        yield f"request {request} stores key {of.keys[0]}", None
        job = HostJob(request, of, answer.stored, answer.slots, of.blocks, stores=True)
        yield from self._ends(job)

    def _loads(self, request: int) -> Move:
        of = self.requests[request]
        if send(self.run, partial(self.engine.look_up, request, of.keys[0])) != FOUND:
            return
        slots = send(self.run, partial(self.engine.promise, request, list(of.keys)))
        of.blocks = self._blocks(self.parts)
        job = HostJob(request, of, of.keys, slots, of.blocks, stores=False)
        yield f"request {request} loads key {of.keys[0]}", None
        yield from self._ends(job)

    def _ends(self, job: HostJob) -> Move:
        """The copies of a job end well, and the engine hears of it; a request reads what was loaded."""
        if not job.ended:
            self.shadow.begin(self.shadow.step + 1)
            copied(self.shadow, job, self.parts, well=True)
            if not job.stores and self.requests.get(job.request) is job.of:
                job.of.filled = len(job.of.blocks)
                read_back(self.shadow, job.request, job.of, self.run.texts(job.of.keys))
            yield f"the copies of request {job.request} end", self.shadow.wrong
        if job.lost:
            return
        if job.stores:
            well = job.well or not job.ended
            send(self.run, partial(self.engine.stored, job.request, list(job.keys), well))
        else:
            send(self.run, partial(self.engine.loaded, job.request, list(job.keys)))
        yield f"the end of the copies of request {job.request} is reported", None

    def _finishes(self, requests: Sequence[int]) -> Move:
        for request in requests:
            self.strangers = [r for r in self.strangers if r != request]
            if self.requests.pop(request, None) is not None:
                send(self.run, partial(self.engine.finish, request))
                yield f"request {request} finishes", None

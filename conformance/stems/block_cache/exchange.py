"""Transfers of KV cache between servers: what a run knows of them, and what they write and read.

A transfer into a request's blocks begins with a step. It may be done at once, before earlier steps are computed:
nothing orders it behind what the workers compute. The scheduler is told with this step or a later one. A transfer out
of a request's blocks begins when the request has ended, and reads them at any moment until the scheduler is told that
it is done.

A copy to host memory begins after the step with which it was launched is computed, and is done at any moment after
that. The workers wait for some copies before they begin a step; only then they begin the transfers into blocks of that
step. The scheduler is told with a later step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from conformance.driver.protocol import Misuse
from conformance.stems.block_cache.memory import Misread
from conformance.stems.block_cache.protocol import Copies, Launched, RequestLoad, Tables, Transfers
from conformance.stems.block_cache.worker import Workers


class Incoming(NamedTuple):
    """A transfer into blocks: ``step``: the number of the step with which it began; ``text``: the request's tokens."""

    load: RequestLoad
    step: int
    text: tuple[int, ...]


class Outgoing(NamedTuple):
    """A transfer out of blocks, which hold the tokens ``text``."""

    tables: Tables
    text: tuple[int, ...]


class HostStore(NamedTuple):
    """A copy to host memory, launched with this step."""

    copies: Copies
    step: int


class Exchange:
    """The transfers of a run. ``size``: the tokens of whole blocks in every group of layers."""

    def __init__(self, workers: Workers, size: int) -> None:
        self._workers, self._size = workers, size
        self._launched = self._completed = 0
        self._incoming: dict[int, Incoming] = {}
        self._outgoing: dict[int, Outgoing] = {}
        self._received: dict[int, int] = {}
        self._sent: list[int] = []
        self._stores: dict[int, HostStore] = {}
        self._stored: list[int] = []
        self._reset = 0  # the last step before the last reset of host memory
        self._flushes: dict[int, tuple[int, ...]] = {}  # by step that is not computed, the copies that it waits for

    def incoming(self) -> list[int]:
        """The requests into whose blocks a transfer is under way that may be done now."""
        return [request for request in self._incoming if request not in self._received and self._has_begun(request)]

    def _has_begun(self, request: int) -> bool:
        """A transfer begins behind the copies to host memory for which the workers wait before its step."""
        step = self._incoming[request].step
        return all(self._may_end(job, step) for job in self._waited_for(step))

    def _waited_for(self, step: int) -> list[int]:
        """The copies that are not done and for which the workers wait before this step or an earlier one."""
        jobs = dict.fromkeys(job for at, jobs in self._flushes.items() if at <= step for job in jobs)
        return [job for job in jobs if job in self._stores and job not in self._stored]

    def _may_end(self, job: int, step: int) -> bool:
        """What the copy reads is computed when the workers begin this step."""
        return min(self._stores[job].step, step - 1) <= self._completed

    def loading(self) -> list[int]:
        """The requests of whose transfer the scheduler does not know yet that it is done."""
        return list(self._incoming)

    def is_from_host(self, request: int) -> bool:
        """The transfer into the blocks of a request comes from host memory."""
        return bool(self._incoming[request].load.copies)

    def outgoing(self) -> list[int]:
        """The requests that have ended and whose blocks are still read."""
        return [request for request in self._outgoing if request not in self._sent]

    def storing(self) -> list[int]:
        """The copies to host memory that may be done now."""
        return [job for job, one in self._stores.items() if one.step <= self._completed and job not in self._stored]

    def copies(self) -> bool:
        """The scheduler does not know yet of each copy to host memory that it is done."""
        return bool(self._stores)

    def known(self) -> list[int]:
        """The requests with a transfer of which the scheduler does not know yet that it is done."""
        return [*self._incoming, *self._outgoing]

    def is_quiet(self) -> bool:
        """No transfer is under way, and the scheduler knows of all that are done."""
        return not self._incoming and not self._outgoing and not self._stores

    def launched(self, step: Launched, texts: Mapping[int, Sequence[int]]) -> None:
        """A step was sent to the workers. ``texts``: the tokens of each request."""
        self._launched += 1
        for request, load in step.loads.items():
            self._incoming[request] = Incoming(load, self._launched, tuple(texts[request]))
        self._flushes[self._launched] = step.flushed
        for job, copies in step.stores.items():
            self._stores[job] = HostStore(copies, self._launched)

    def ended(self, request: int, tables: Tables, text: Sequence[int]) -> None:
        """A request has ended, and another server reads the blocks of its tokens ``text``."""
        self._outgoing[request] = Outgoing(tables, tuple(text))

    def arrives(self, request: int, lost: int) -> None:
        """A transfer into blocks is done, but for so many of its last blocks."""
        if request not in self.incoming():
            raise Misuse(f"no transfer into blocks of request {request} is under way", by_engine=True)
        load, step, text = self._incoming[request]
        self._flush(step)
        size = self._size
        end = max(load.first, (-(-load.end // size) - lost) * size) if lost else load.end
        self._workers.received(request, load, text, end)
        self._received[request] = end

    def begins(self) -> None:
        """The workers begin the oldest step in flight: the copies that it waits for are done before."""
        waited = self._flushes[self._completed + 1]
        self._flush(self._completed + 1)
        for request in self.incoming():
            if self._incoming[request].load.copies and self._incoming[request].load.job in waited:
                self.arrives(request, 0)

    def _flush(self, step: int) -> None:
        for job in self._waited_for(step):
            self._store(job)
        for at in [at for at in self._flushes if at <= self._completed]:
            del self._flushes[at]

    def stores(self, job: int) -> None:
        """A copy to host memory is done."""
        if job not in self.storing():
            raise Misuse(f"no copy {job} to host memory is under way", by_engine=True)
        self._store(job)

    def _store(self, job: int) -> None:
        copies, step = self._stores[job]
        self._workers.copied_to_host(copies)
        if step <= self._reset:
            self._workers.forget_places(place for _, place in copies)
        self._stored.append(job)

    def forgets_host(self) -> None:
        """Host memory was reset. What it holds, and what copies under way still write, is of old weights: no load that
        begins later may read it.
        """
        self._reset = self._launched
        self._workers.forget_host()

    def leaves(self, request: int) -> Misread | None:
        """Another server has read the blocks of a request. Returns the first slot that does not hold its token."""
        if request not in self.outgoing():
            raise Misuse(f"no other server reads blocks of request {request}", by_engine=True)
        self._sent.append(request)
        tables, text = self._outgoing[request]
        return self._workers.sent(request, tables, text)

    def completed(self) -> Transfers:
        """The oldest step in flight is done. Returns what the scheduler is told with it."""
        self._completed += 1
        due = [request for request in self._received if self._incoming[request].step <= self._completed]
        received, sent = {request: self._received.pop(request) for request in due}, tuple(self._sent)
        failed = tuple(request for request in due if received[request] < self._incoming[request].load.end)
        for request in due:
            del self._incoming[request]
        for request in sent:
            del self._outgoing[request]
        self._sent.clear()
        stored = tuple(self._stored)
        for job in stored:
            del self._stores[job]
        self._stored.clear()
        return Transfers(received, sent, failed, stored)

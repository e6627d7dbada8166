"""Transfers of KV cache between servers: what a run knows of them, and what they write and read.

A transfer into a request's blocks begins with a step. It may be done at once, before earlier steps are computed:
nothing orders it behind what the workers compute. The scheduler is told with this step or a later one. A transfer out
of a request's blocks begins when the request has ended, and reads them at any moment until the scheduler is told that
it is done.

Some transfers are done before the step with which they begin is computed: the workers wait for them, and begin no
later transfer before.

A copy to host memory begins after the step with which it was launched is computed, and is done at any moment after
that. The workers wait for some copies before they begin a step; only then they begin the transfers into blocks of that
step. The scheduler is told with a later step.

Where there are several workers, each copies its own part of all blocks, and ends each transfer at its own moment. It
tells of it with a step, alone: what the scheduler makes of that, the engine decides. A transfer is done where the last
worker has told of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from conformance.driver.protocol import Misuse
from conformance.stems.block_cache.memory import Misread
from conformance.stems.block_cache.protocol import Copies, Launched, RequestLoad, Tables, Transfers, WorkerEnds
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


@dataclass
class Ends:
    """What has ended on one worker. ``loads``: by request, up to which token its blocks are written. ``sends``:
    requests whose blocks were read. ``stores``: copies to host memory. ``told``: of these three what the worker has
    told, by the same numbers, while another worker has not.
    """

    loads: dict[int, int] = field(default_factory=dict)
    sends: list[int] = field(default_factory=list)
    stores: list[int] = field(default_factory=list)
    told: WorkerEnds = field(default_factory=lambda: WorkerEnds({}))

    def says(self, loads: Iterable[int]) -> WorkerEnds:
        """What the worker tells now: of these loads, and of everything else that has ended. It is told from now on."""
        said = WorkerEnds({one: self.loads.pop(one) for one in loads}, tuple(self.sends), tuple(self.stores))
        self.sends, self.stores = [], []
        told = self.told
        self.told = WorkerEnds({**told.received, **said.received}, told.sent + said.sent, told.stored + said.stored)
        return said

    def forgets(self, done: Transfers) -> None:
        """All workers have told of this."""
        self.told = WorkerEnds(
            {one: end for one, end in self.told.received.items() if one not in done.received},
            tuple(one for one in self.told.sent if one not in done.sent),
            tuple(one for one in self.told.stored if one not in done.stored),
        )

    def has_loaded(self, request: int) -> bool:
        """The transfer into the blocks of a request is done here."""
        return request in self.loads or request in self.told.received

    def has_sent(self, request: int) -> bool:
        """The blocks of a request were read here."""
        return request in self.sends or request in self.told.sent

    def has_stored(self, job: int) -> bool:
        """The copy to host memory is done here."""
        return job in self.stores or job in self.told.stored


class Exchange:
    """The transfers of a run. ``size``: the tokens of whole blocks in every group of layers. ``worker``: the only one
    that is asked about or that ends something; without it all that have not ended it.
    """

    def __init__(self, workers: Workers, size: int) -> None:
        self._workers, self._size = workers, size
        self._launched = self._completed = 0
        self._incoming: dict[int, Incoming] = {}
        self._outgoing: dict[int, Outgoing] = {}
        self._stores: dict[int, HostStore] = {}
        self._ends = [Ends() for _ in range(workers.count)]
        self._reset = 0  # the last step before the last reset of host memory
        self._flushes: dict[int, tuple[int, ...]] = {}  # by step that is not computed, the copies that it waits for

    @property
    def workers(self) -> range:
        """The numbers of the workers."""
        return range(len(self._ends))

    def _asked(self, worker: int | None) -> range | tuple[int, ...]:
        return self.workers if worker is None else (worker,)

    def incoming(self, worker: int | None = None) -> list[int]:
        """The requests into whose blocks a transfer is under way that may be done now."""
        return [one for one in self._incoming if any(self._may_load(one, each) for each in self._asked(worker))]

    def _may_load(self, request: int, worker: int) -> bool:
        """A transfer begins behind the copies to host memory for which its worker waits before its step, and behind the
        transfers for which it waits in earlier steps.
        """
        step, ends = self._incoming[request].step, self._ends[worker]
        before = [one for one, other in self._incoming.items() if other.load.within_step and other.step < step]
        waited = self._waited_for(step, worker)
        is_next = all(map(ends.has_loaded, before)) and all(self._may_end(job, step) for job in waited)
        return is_next and not ends.has_loaded(request)

    def _waited_for(self, step: int, worker: int) -> list[int]:
        """The copies that are not done and for which a worker waits before this step or an earlier one."""
        jobs = dict.fromkeys(job for at, jobs in self._flushes.items() if at <= step for job in jobs)
        return [job for job in jobs if job in self._stores and not self._ends[worker].has_stored(job)]

    def _may_end(self, job: int, step: int) -> bool:
        """What the copy reads is computed when the workers begin this step."""
        return min(self._stores[job].step, step - 1) <= self._completed

    def loading(self) -> list[int]:
        """The requests of whose transfer not every worker has told that it is done."""
        return list(self._incoming)

    def is_from_host(self, request: int) -> bool:
        """The transfer into the blocks of a request comes from host memory."""
        return bool(self._incoming[request].load.copies)

    def outgoing(self, worker: int | None = None) -> list[int]:
        """The requests that have ended and whose blocks are still read."""
        asked = self._asked(worker)
        return [one for one in self._outgoing if not all(self._ends[each].has_sent(one) for each in asked)]

    def storing(self, worker: int | None = None) -> list[int]:
        """The copies to host memory that may be done now."""
        asked = self._asked(worker)
        begun = (job for job, one in self._stores.items() if one.step <= self._completed)
        return [job for job in begun if not all(self._ends[each].has_stored(job) for each in asked)]

    def copies(self) -> bool:
        """Not every worker has told of each copy to host memory that it is done."""
        return bool(self._stores)

    def known(self) -> list[int]:
        """The requests with a transfer of which not every worker has told that it is done."""
        return [*self._incoming, *self._outgoing]

    def is_quiet(self) -> bool:
        """No transfer is under way, and every worker has told of all that are done."""
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

    def arrives(self, request: int, lost: int, worker: int | None = None) -> None:
        """A transfer into blocks is done, but for so many of its last blocks."""
        if request not in self.incoming(worker):
            raise Misuse(f"no transfer into blocks of request {request} is under way", by_engine=True)
        load, step, text = self._incoming[request]
        size = self._size
        end = max(load.first, (-(-load.end // size) - lost) * size) if lost else load.end
        for each in self._asked(worker):
            if self._may_load(request, each):
                self._flush(step, each)
                self._workers.received(request, load, text, end, each)
                self._ends[each].loads[request] = end

    def begins(self) -> None:
        """The workers begin the oldest step in flight: the copies and transfers that it waits for are done before."""
        step = self._completed + 1
        waited = self._flushes[step]
        for worker in self.workers:
            self._flush(step, worker)
            for request in self.incoming(worker):
                load, begun, _ = self._incoming[request]
                if (load.within_step and begun == step) or (load.copies and load.job in waited):
                    self.arrives(request, 0, worker)
        for at in [at for at in self._flushes if at <= self._completed]:
            del self._flushes[at]

    def _flush(self, step: int, worker: int) -> None:
        for job in self._waited_for(step, worker):
            self._store(job, worker)

    def stores(self, job: int, worker: int | None = None) -> None:
        """A copy to host memory is done."""
        if job not in self.storing(worker):
            raise Misuse(f"no copy {job} to host memory is under way", by_engine=True)
        for each in self._asked(worker):
            if not self._ends[each].has_stored(job):
                self._store(job, each)

    def _store(self, job: int, worker: int) -> None:
        copies, step = self._stores[job]
        self._workers.copied_to_host(copies, worker)
        if step <= self._reset:
            self._workers.forget_places((place for _, place in copies), worker)
        self._ends[worker].stores.append(job)

    def forgets_host(self) -> None:
        """Host memory was reset. What it holds, and what copies under way still write, is of old weights: no load that
        begins later may read it.
        """
        self._reset = self._launched
        self._workers.forget_host()

    def leaves(self, request: int, worker: int | None = None) -> Misread | None:
        """Another server has read the blocks of a request. Returns the first slot that does not hold its token."""
        if request not in self.outgoing(worker):
            raise Misuse(f"no other server reads blocks of request {request}", by_engine=True)
        tables, text = self._outgoing[request]
        found = []
        for each in self._asked(worker):
            if not self._ends[each].has_sent(request):
                self._ends[each].sends.append(request)
                found.append(self._workers.sent(request, tables, text, each))
        return next((one for one in found if one is not None), None)

    def completed(self) -> Transfers:
        """The oldest step in flight is done. Returns what the workers tell with it."""
        self._completed += 1
        due = {request for request, one in self._incoming.items() if one.step <= self._completed}
        said = tuple(one.says([request for request in one.loads if request in due]) for one in self._ends)
        told = [one.told for one in self._ends]
        done = Transfers(
            {one: min(each.received[one] for each in told) for one in _of_all([[*each.received] for each in told])},
            tuple(_of_all([each.sent for each in told])),
            tuple(one for one in self._incoming if any(self._is_short(one, each) for each in told)),
            tuple(_of_all([each.stored for each in told])),
            said if len(said) > 1 else (),
        )
        for ends in self._ends:
            ends.forgets(done)
        for request in done.received:
            del self._incoming[request]
        for request in done.sent:
            del self._outgoing[request]
        for job in done.stored:
            del self._stores[job]
        return done

    def _is_short(self, request: int, told: WorkerEnds) -> bool:
        """A worker has told of the transfer into the blocks of a request, of which a part did not come to it."""
        end = self._incoming[request].load.end
        return told.received.get(request, end) < end


def _of_all(each: Sequence[Sequence[int]]) -> list[int]:
    """What is in all of these, in the order of the last one that has it: as the workers have told of it."""
    return [one for one in each[-1] if all(one in other for other in each)]

"""Transfers of KV cache between servers: what a run knows of them, and what they write and read.

A transfer into a request's blocks begins with a step. It may be done at once, before earlier steps are computed:
nothing orders it behind what the workers compute. The scheduler is told with this step or a later one. A transfer out
of a request's blocks begins when the request has ended, and reads them at any moment until the scheduler is told that
it is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from conformance.driver.protocol import Misuse
from conformance.stems.block_cache.memory import Misread
from conformance.stems.block_cache.protocol import Launched, RequestLoad, Tables, Transfers
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


class Exchange:
    """The transfers of a run. ``size``: the tokens of a block."""

    def __init__(self, workers: Workers, size: int) -> None:
        self._workers, self._size = workers, size
        self._launched = self._completed = 0
        self._incoming: dict[int, Incoming] = {}
        self._outgoing: dict[int, Outgoing] = {}
        self._received: dict[int, int] = {}
        self._sent: list[int] = []

    def incoming(self) -> list[int]:
        """The requests into whose blocks a transfer is under way."""
        return [request for request in self._incoming if request not in self._received]

    def loading(self) -> list[int]:
        """The requests of whose transfer the scheduler does not know yet that it is done."""
        return list(self._incoming)

    def outgoing(self) -> list[int]:
        """The requests that have ended and whose blocks are still read."""
        return [request for request in self._outgoing if request not in self._sent]

    def known(self) -> list[int]:
        """The requests with a transfer of which the scheduler does not know yet that it is done."""
        return [*self._incoming, *self._outgoing]

    def is_quiet(self) -> bool:
        """No transfer is under way, and the scheduler knows of all that are done."""
        return not self._incoming and not self._outgoing

    def launched(self, step: Launched, texts: Mapping[int, Sequence[int]]) -> None:
        """A step was sent to the workers. ``texts``: the tokens of each request."""
        self._launched += 1
        for request, load in step.loads.items():
            self._incoming[request] = Incoming(load, self._launched, tuple(texts[request]))

    def ended(self, request: int, tables: Tables, text: Sequence[int]) -> None:
        """A request has ended, and another server reads the blocks of its tokens ``text``."""
        self._outgoing[request] = Outgoing(tables, tuple(text))

    def arrives(self, request: int, lost: int) -> None:
        """A transfer into blocks is done, but for so many of its last blocks."""
        if request not in self.incoming():
            raise Misuse(f"no transfer into blocks of request {request} is under way", by_engine=True)
        load, _, text = self._incoming[request]
        size = self._size
        end = max(load.first, (-(-load.end // size) - lost) * size) if lost else load.end
        self._workers.received(request, load, text[:end])
        self._received[request] = end

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
        return Transfers(received, sent, failed)

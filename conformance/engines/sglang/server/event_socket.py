"""The KV events that a server publishes, as its subscribers receive them.

The release's own publisher runs, and its thread (a greenlet here), which numbers each batch and encodes it. The socket
alone is stood in for: what is sent on it is decoded, and kept with what the server has cached at that moment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, Queue
from types import SimpleNamespace
from typing import Any

import greenlet
import msgspec

from conformance.driver.protocol import Key, PublishedEvents
from conformance.engines.sglang.server.storing import Worker, threading_of

Frames = Sequence[bytes]  # of one message: the topic, the number of the batch (8 bytes, big-endian), and the batch


class EventSocket:
    """A socket to which subscribers listen; there is a way to each of them, and none is slow. ``hears``: is called with
    each message.
    """

    def __init__(self, hears: Callable[[Frames], None]) -> None:
        self._hears, self._bound = hears, ""

    def set_hwm(self, most: int) -> None:
        """So many messages may wait."""

    def bind(self, endpoint: str) -> None:
        """Others come to it at this address."""
        self._bound = endpoint

    def connect(self, endpoint: str) -> None:
        """It is connected with this address."""

    def getsockopt_string(self, option: int) -> str:
        """The address at which it is bound, the one option that is asked for."""
        del option
        return self._bound

    def close(self, linger: int = 0) -> None:
        """Nothing is sent any more."""

    def send_multipart(self, frames: Frames) -> None:
        """A message is there at once."""
        self._hears(frames)


def events_zmq(hears: Callable[[Frames], None]) -> SimpleNamespace:
    """Stands for the package ``zmq`` in the module of the publisher."""
    context = SimpleNamespace(socket=lambda _: EventSocket(hears))
    kinds = {"PUB": 1, "ROUTER": 6, "LAST_ENDPOINT": 32}
    return SimpleNamespace(Context=SimpleNamespace(instance=lambda: context), Socket=EventSocket, **kinds)


class EventQueue(Queue[Any]):
    """``queue.Queue`` between a server and the thread of its publisher, which takes each batch at once."""

    def __init__(self, maxsize: int = 0) -> None:
        super().__init__(maxsize)
        self._taker: Worker | None = None

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """See ``queue.Queue``."""
        del block, timeout
        now = greenlet.getcurrent()
        if isinstance(now, Worker):
            self._taker = now
            if self.empty():
                now.stops()
        if self.empty():
            raise Empty
        return super().get(block=False)

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """See ``queue.Queue``."""
        super().put(item, block, timeout)
        if self._taker is not None:
            self._taker.parent = greenlet.getcurrent()
            self._taker.switch()


EVENTS_THREADING = threading_of(threading)
EVENTS_ATEXIT = SimpleNamespace(register=lambda _: None)


class PublishedBatches:
    """The batches that one server has published since they were taken last. ``cached``: what it has cached now, by
    medium.
    """

    def __init__(self, cached: Callable[[], Mapping[str, Sequence[Key]]]) -> None:
        self._cached = cached
        self._batches: list[PublishedEvents] = []
        self._unread: Exception | None = None

    def hears(self, frames: Frames) -> None:
        """A batch is published. What is raised here comes from ``take``: the release's thread goes on after it."""
        try:
            _, number, payload = frames
            _, events, *_ = msgspec.msgpack.decode(payload)
            numbered = int.from_bytes(number, "big")
            self._batches.append(PublishedEvents(events, tiers=self._cached(), number=numbered, once=True))
        except Exception as error:
            self._unread = self._unread or error

    def rests(self) -> None:
        """The server is at rest: it has published all that it has to say."""
        self._batches.append(
            PublishedEvents([], tiers=self._cached(), once=True, when="the server is at rest, and says no more")
        )

    def take(self) -> list[PublishedEvents]:
        """The batches. Raises what was raised when one was kept."""
        if self._unread is not None:
            raise self._unread
        taken, self._batches = self._batches, []
        return taken

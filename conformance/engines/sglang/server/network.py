"""Stands for the network of a decode server, or of a prefill server: sockets, calls by HTTP, and the threads that wait
for them.

On the other side of it is a prefill server (``receiving``), or decode servers (``sending``). A message arrives at once,
and the thread that waits for it does all that it has to do with it before anything else happens. Easier than a network:
no message is lost.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn, Protocol

import greenlet

from conformance.driver.protocol import EngineError
from conformance.engines.sglang.server.clock import ServerClock
from conformance.engines.sglang.server.storing import StoppingThread, Worker, this_worker

HOST, PORT = "127.0.0.1", 7001  # of the decode server
OPTIONS = (  # of sockets
    *("PUSH", "PULL", "MAX_SOCKETS", "IPV6", "LINGER", "SNDTIMEO", "RECONNECT_IVL", "NOBLOCK", "EVENT_DISCONNECTED"),
    *("TCP_KEEPALIVE", "TCP_KEEPALIVE_IDLE", "TCP_KEEPALIVE_INTVL", "TCP_KEEPALIVE_CNT"),
)


class HttpAnswer(NamedTuple):
    """The answer to a call by HTTP."""

    status_code: int
    content: Any
    text: str = ""

    def json(self) -> Any:
        """The content."""
        return self.content


class SocketError(Exception):
    """A socket cannot be used."""


class NoMessage(Exception):
    """A socket has no message."""


class Inbox:
    """The socket at which a server listens. ``threads``: those that wait for its messages. ``workers``: the others of
    the server.
    """

    def __init__(self) -> None:
        self._messages: deque[list[bytes]] = deque()
        self.threads: list[StoppingThread] = []
        self.workers: list[StoppingThread] = []

    def put(self, message: list[bytes]) -> None:
        """A message arrives."""
        self._messages.append(message)
        for thread in self.threads:
            thread.go_on()

    def recv_multipart(self, *_: Any) -> list[bytes]:
        """The next message. Where there is none the thread stops."""
        while not self._messages:
            this_worker("the socket of a server is read outside of its thread").stops()
        return self._messages.popleft()


class OtherSide(Protocol):
    """Whom a server sends messages to, and calls by HTTP. ``inbox``: where the server listens."""

    inbox: Inbox

    def hears(self, frames: list[bytes]) -> None:
        """A message of the server."""

    def get(self, url: str) -> HttpAnswer:
        """``GET``."""

    def post(self, url: str, body: Any) -> HttpAnswer:
        """``POST``."""

    def put(self, url: str, body: Any) -> HttpAnswer:
        """``PUT``."""

    def reads(self, sources: Sequence[int], targets: Sequence[int], lengths: Sequence[int]) -> None:
        """The engine for transfers reads the server's memory from these addresses on, and writes to those."""


class Network:
    """The network of the servers of one process. ``makes``: the other side of a new one. ``now``: the other side of the
    one that runs.
    """

    def __init__(self, makes: Callable[[Inbox], OtherSide]) -> None:
        self.makes = makes
        self.now: OtherSide | None = None

    @property
    def other(self) -> OtherSide:
        """The other side of the server that runs."""
        assert self.now is not None, "a server sends while it runs"
        return self.now

    def listens(self, *_: Any, **__: Any) -> tuple[int, Inbox]:
        """A new server opens its socket."""
        inbox = Inbox()
        self.now = self.makes(inbox)
        return PORT, inbox

    @property
    def sockets(self) -> SimpleNamespace:
        """Stands for the module ``zmq``."""
        numbers = {name: number for number, name in enumerate(OPTIONS)}
        return SimpleNamespace(Context=lambda: self.context, ZMQError=SocketError, Again=NoMessage, **numbers)

    @property
    def context(self) -> SimpleNamespace:
        """Makes sockets that send."""
        return SimpleNamespace(set=_nothing, socket=lambda *_: self._sender())

    def _sender(self) -> SimpleNamespace:
        def send(frames: list[bytes]) -> None:
            self.other.hears([bytes(frame) for frame in frames])

        options = dict.fromkeys(("setsockopt", "connect", "close"), _nothing)
        monitor = SimpleNamespace(recv_multipart=_never)  # which says that the other side has gone
        return SimpleNamespace(send_multipart=send, get_monitor_socket=lambda *_: monitor, **options)

    @property
    def requests(self) -> SimpleNamespace:
        """Stands for the module ``requests``."""
        calls = {
            "get": lambda url, **_: self.other.get(url),
            "post": lambda url, json, **_: self.other.post(url, json),
            "put": lambda url, json, **_: self.other.put(url, json),
        }
        session = SimpleNamespace(**calls, mount=_nothing)
        adapters = SimpleNamespace(HTTPAdapter=_nothing)
        return SimpleNamespace(**calls, Session=lambda: session, adapters=adapters)

    def threading_of(self, real: Any) -> SimpleNamespace:
        """Stands for the module ``threading``: a thread goes on when a message has arrived. One that is given a queue
        goes on when the run says so.
        """

        def thread(target: Callable[..., None], args: Sequence[Any] = (), **_: Any) -> StoppingThread:
            found = StoppingThread(functools.wraps(target)(functools.partial(target, *args)))
            (self.other.inbox.workers if args else self.other.inbox.threads).append(found)
            return found

        # Time does not pass for a thread that looks after others.
        event = SimpleNamespace(set=_nothing, wait=_waits_on)
        return SimpleNamespace(**{**vars(real), "Thread": thread, "Event": lambda: event})


def _nothing(*_: Any, **__: Any) -> None:
    """An option is set, or a connection is made."""


def _never(*_: Any) -> None:
    """Nothing has come."""
    raise NoMessage


def beside_of(real: Any) -> SimpleNamespace:
    """Stands for the module ``threading``, of threads that look after others: where such a thread waits, it stops, and
    never goes on. Nobody holds a lock against anybody: control may go to the run in the middle of a call, and from
    there to another server of this process.
    """
    waits = SimpleNamespace(is_set=lambda: False, set=_nothing, wait=_waits)
    stand_ins = {"Thread": _beside, "Event": lambda: waits, "Lock": nullcontext, "RLock": nullcontext}
    return SimpleNamespace(**{**vars(real), **stand_ins})


def _beside(target: Callable[[], None], **_: Any) -> StoppingThread:
    return StoppingThread(target)


def _waits(*_: Any) -> bool:
    """The thread that runs now stops."""
    now = greenlet.getcurrent()
    if isinstance(now, Worker):
        now.stops()
    return False


def _waits_on(*_: Any) -> NoReturn:
    """The thread that runs now stops, and does not go on."""
    now = this_worker("a server waits for an event that never comes")
    while True:
        now.stops()


def clock_of(clock: ServerClock) -> SimpleNamespace:
    """Stands for the module ``time`` where threads wait: they stop."""
    return SimpleNamespace(time=clock.time, monotonic=clock.monotonic, perf_counter=clock.perf_counter, sleep=_waits)


class ThreadsAtOnce:
    """Stands for a pool of threads: a function runs when it is given."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """How many threads there are does not matter."""

    def submit(self, call: Callable[..., Any], *args: Any) -> Future[Any]:
        """The function runs."""
        found: Future[Any] = Future()
        found.set_result(call(*args))
        return found


class TransferEngine:
    """Stands for the engine that writes into the memory of another machine: shadow memory has what was written.
    ``other``: the other side of a prefill server, whose worker stops before the engine reads its memory.
    """

    def __init__(self, *_: Any, other: OtherSide | None = None, **__: Any) -> None:
        self.registered: list[int] = []
        self._other = other

    def batch_transfer_sync(
        self, session: str, sources: Sequence[int], targets: Sequence[int], lengths: Sequence[int]
    ) -> int:
        """Memory is read, and written to another machine; not 0 where that fails."""
        del session
        outside = "memory is read for a transfer outside of the worker of a prefill server"
        now = this_worker(outside)
        if self._other is None:
            raise EngineError(outside)
        now.stops(calls=True)
        if now.outcome != "well":
            return -1
        self._other.reads(sources, targets, lengths)
        return 0

    def get_session_id(self) -> str:
        """Its name in the network."""
        return f"{HOST}:{PORT}"

    def batch_register(self, pointers: list[int], lengths: list[int]) -> int:
        """Memory is made known to others."""
        del lengths
        self.registered += pointers
        return 0

    def batch_deregister(self, pointers: list[int]) -> int:
        """Memory is no longer known to others."""
        self.registered = [one for one in self.registered if one not in pointers]
        return 0


FUTURES = SimpleNamespace(futures=SimpleNamespace(ThreadPoolExecutor=ThreadsAtOnce))

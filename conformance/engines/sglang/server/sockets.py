"""Stands for the sockets of a server: what the tokenizer sends arrives at the next poll, and what is sent is kept.

At each poll, so once in each turn of an event loop, control goes back to the run: ``Socket.poll`` is called.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class NothingArrived(Exception):
    """A socket has no message."""


RECEIVER_ZMQ = SimpleNamespace(ZMQError=NothingArrived, NOBLOCK=1)
CHANNELS_ZMQ = SimpleNamespace(Context=lambda *_: None, PULL=7, PUSH=8, DEALER=5)


class Socket:
    """One socket, which nobody closes.

    ``poll`` is called at the first read of each turn of the loop.
    ``sent``: what the server has sent.
    """

    closed = False

    def __init__(self, poll: Callable[[], None] | None = None) -> None:
        self._poll, self._polled = poll, False
        self._waiting: deque[bytes] = deque()
        self.sent: list[Any] = []

    def put(self, message: Any) -> None:
        """A message arrives."""
        self._waiting.append(pickle.dumps(message))

    def recv_pyobj(self, flags: int = 0) -> Any:
        """The next message; ``NothingArrived`` after the last one."""
        assert flags, "a loop does not wait for a message"
        if self._poll is not None and not self._polled:
            self._polled = True
            self._poll()
        if not self._waiting:
            self._polled = False
            raise NothingArrived
        return pickle.loads(self._waiting.popleft())

    def taken(self) -> list[Any]:
        """What the server has sent since this was asked last."""
        taken, self.sent = self.sent, []
        return taken

    def send_pyobj(self, message: Any, **_: Any) -> None:
        """The server sends a message."""
        self.sent.append(message)

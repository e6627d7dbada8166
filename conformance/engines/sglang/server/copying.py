"""Stands for the streams and events of a device, as far as copies between device and host memory are concerned.

A *copy* is what one call of a host pool moves in one direction. It is in flight from the call on, and done when the run
says so (``CopyStream.end``), or when the server waits for it: at an event that was recorded after it. The copies of one
stream are done in their order, those of two streams in any.

Easier than a device: a copy is done at one moment, so that two copies never mix inside a page; and a forward pass has
written what it writes when it is launched, so that a copy that does not wait for the passes before it has to be told
apart (``CopyStream.fenced``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from conformance.driver.protocol import EngineError

Done = Callable[[], None]


class CopyStream:
    """One stream. ``fenced``: its next copies wait for the forward passes that were launched before."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._flying: deque[tuple[int, Done]] = deque()
        self._last = 0
        self.fenced = False

    def begin(self, done: Done) -> None:
        """A copy is in flight. ``done`` is called when it is done."""
        self._last += 1
        self._flying.append((self._last, done))

    @property
    def last(self) -> int:
        """The number of the copy that was begun last; they count from 1."""
        return self._last

    def has_done(self, number: int) -> bool:
        """The copy of this number, and so each one before it, is done."""
        return not self._flying or self._flying[0][0] > number

    def end(self) -> bool:
        """The copy that was begun first is done; ``False`` where none is in flight."""
        if not self._flying:
            return False
        self._flying.popleft()[1]()
        return True

    def end_upto(self, number: int) -> None:
        """The copies up to this number are done."""
        while not self.has_done(number):
            self.end()

    def synchronize(self) -> None:
        """All copies are done."""
        self.end_upto(self._last)

    def wait_stream(self, other: Any) -> None:
        """Copies wait for all that another stream has to do. On other streams than those of copies there are forward
        passes.
        """
        if isinstance(other, CopyStream) and not other.has_done(other.last):
            raise EngineError("a stream of copies waits for another one, which the run does not follow")
        self.fenced = True

    def wait_event(self, event: CopyEvent) -> None:
        """What comes next on this stream waits for an event: a forward pass, for the copies that it reads."""
        event.synchronize()


class CopyEvent:
    """An event: it is reached when the copies are done that were begun on its stream before it was recorded."""

    def __init__(self, device: CopyDevice) -> None:
        self._device, self._stream, self._number = device, CopyStream(), 0

    def record(self, stream: CopyStream | None = None) -> None:
        """The event stands after what the stream has to do now."""
        self._stream = stream or self._device.current_stream()
        self._number = self._stream.last

    def query(self) -> bool:
        """The event is reached."""
        return self._stream.has_done(self._number)

    def synchronize(self) -> None:
        """The server waits for the event."""
        self._stream.end_upto(self._number)

    def wait(self, stream: CopyStream) -> None:
        """A stream waits for the event."""
        if not self.query():
            stream.wait_stream(self._stream)

    def elapsed_time(self, _: CopyEvent) -> float:
        """No time is measured."""
        return 0.0


class CopyDevice:
    """Stands for the device's module of torch, such as ``torch.cuda``, where a release copies."""

    Stream = CopyStream

    def __init__(self) -> None:
        self._current = CopyStream()  # what is on other streams is done in the order of the program

    def Event(self, **_: Any) -> CopyEvent:
        """A new event. Timing is not measured."""
        return CopyEvent(self)

    def current_stream(self) -> CopyStream:
        """The stream to which calls belong now."""
        return self._current

    @contextmanager
    def stream(self, stream: CopyStream) -> Iterator[None]:
        """While this lasts, calls belong to this stream."""
        before, self._current = self._current, stream
        try:
            yield
        finally:
            self._current = before

"""Stands for the streams and events of a device, as far as forward passes are concerned.

A forward pass is in flight from its launch on. It takes as long as it can: it has ended when the server has waited for
it. A server waits for what is before an event, on a stream or on the whole device (``synchronize``), or before a tensor
that it copies from the device to read it (``Tensor.cpu``, which waits for the stream that is current). Whoever is told
something after that, is told it after the pass.

``wait_stream`` and ``wait_event`` are no such waits. They order what comes next on one stream of the device behind what
another has to do, and the server goes on at once: a message that it sends then, as to a prefill server that writes
into its memory, is not ordered behind the pass.

Passes are launched one behind the other. So what is before something is told by one number, that of the last pass
before it. Copies between device and host memory have streams of their own (``copying``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.driver.protocol import EngineError


class PassesInFlight:
    """The forward passes of one server. ``launched``: how many there were. ``ended``: for so many of them the server
    has waited. ``current``: the stream to which its calls belong now.
    """

    def __init__(self) -> None:
        self.launched = self.ended = 0
        self.current = PassStream(self)

    def launch(self) -> None:
        """A pass is launched on the current stream."""
        if self.current.last < self.launched:
            raise EngineError("a forward pass is launched on a stream that does not wait for the pass before it")
        self.launched += 1
        self.current.puts_behind(self.launched)

    def wait(self, last: int) -> None:
        """The server waits for a pass and those before it."""
        self.ended = max(self.ended, last)


class PassStream:
    """One stream."""

    def __init__(self, passes: PassesInFlight) -> None:
        self._passes, self._last = passes, 0

    @property
    def last(self) -> int:
        """The last pass that has ended before what comes next on it."""
        return max(self._last, self._passes.ended)

    def puts_behind(self, last: int) -> None:
        """What comes next on it is behind this pass."""
        self._last = max(self._last, last)

    def wait_stream(self, other: Any) -> None:
        """What comes next waits for what another stream has to do. One of copies has no passes."""
        if isinstance(other, PassStream):
            self.puts_behind(other.last)

    def wait_event(self, event: Any) -> None:
        """What comes next waits for an event. One of copies is behind no pass."""
        if isinstance(event, PassEvent):
            self.puts_behind(event.last)

    def record_event(self, event: PassEvent | None = None) -> PassEvent:
        """An event behind what the stream has to do now."""
        found = PassEvent(self._passes) if event is None else event
        found.record(self)
        return found

    @property
    def synchronize(self) -> Callable[[], None]:
        """The server waits for the stream."""
        return lambda: self._passes.wait(self.last)

    @synchronize.setter
    def synchronize(self, _: Callable[[], None]) -> None:
        """On a CPU, whose streams do nothing, the scheduler takes this wait away. Here it stays."""


class PassEvent:
    """An event. ``last``: the last pass before it; none where it was never recorded."""

    def __init__(self, passes: PassesInFlight, **_: Any) -> None:
        self._passes, self.last, self._asked = passes, 0, False

    def record(self, stream: PassStream | None = None) -> None:
        """The event stands behind what the stream has to do now."""
        self.last, self._asked = (stream or self._passes.current).last, False

    def synchronize(self) -> None:
        """The server waits for the event."""
        self._passes.wait(self.last)

    def wait(self, stream: PassStream | None = None) -> None:
        """What comes next on a stream waits for the event."""
        (stream or self._passes.current).wait_event(self)

    def query(self) -> bool:
        """Whether the event is reached. Who asks again waits for it."""
        if self._asked:
            self.synchronize()
        self._asked = True
        return self._passes.ended >= self.last


class StreamBlock:
    """While such a block lasts, calls of the server belong to a stream. It can be entered again."""

    def __init__(self, passes: PassesInFlight, stream: PassStream | None) -> None:
        self._passes, self._stream = passes, stream
        self._before: list[PassStream] = []

    def __enter__(self) -> None:
        self._before.append(self._passes.current)
        self._passes.current = self._stream or self._passes.current

    def __exit__(self, *_: object) -> None:
        self._passes.current = self._before.pop()


class PassDevice:
    """Stands for ``torch.cpu``. ``now``: the passes of the server that runs."""

    def __init__(self) -> None:
        self.now = PassesInFlight()

    def stream_of(self, *_: Any, **__: Any) -> PassStream:
        """``Stream``."""
        return PassStream(self.now)

    def event_of(self, **_: Any) -> PassEvent:
        """``Event``. Timing is not measured."""
        return PassEvent(self.now)

    def current_stream(self, *_: Any) -> PassStream:
        """The stream to which calls belong now."""
        return self.now.current

    def block_of(self, stream: PassStream | None) -> StreamBlock:
        """``stream`` and ``StreamContext``."""
        return StreamBlock(self.now, stream)

    def synchronize(self, *_: Any) -> None:
        """The server waits for all that the device has to do."""
        self.now.wait(self.now.launched)

    def reads(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Stands for ``Tensor.cpu``, which is ``real``."""

        def cpu(tensor: Any, *args: Any, **given: Any) -> Any:
            self.now.current.synchronize()
            return real(tensor, *args, **given)

        return cpu

"""Row numbers, lengths and session names that a caller passes as host data, and their way to the device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

from impl import checks

Numbers = Sequence[int] | Tensor  # a tensor must be on the host: the values are read


def numbers(name: str, values: Any, count: int | None = None) -> Tensor:
    """``[n]`` int64 on the host, from a host tensor or a sequence of ints; exactly ``count`` of them, if given.

    TypeError for what is not an integer, ValueError for another shape or device.
    """
    if not isinstance(values, Tensor):
        values = torch.tensor(values) if len(values) else torch.zeros(0, dtype=torch.int64)
    found: Tensor = values
    checks.int_tensor(name, found, checks.HOST, count)
    return found if found.dtype == torch.int64 else found.to(torch.int64)


def names(name: str, values: Sequence[Hashable]) -> list[Hashable]:
    """A list of different session names; None (no session) may be there several times."""
    if isinstance(values, str):
        raise TypeError(f"{name} must be a sequence of sessions, got one string")
    found = [value for value in values if value is not None]
    if len(set(found)) < len(found):
        raise ValueError(f"{name} must be different sessions, got {found}")
    return list(values)


def require(valid: Tensor, name: str, expected: Callable[[int], str], found: Tensor) -> None:
    """ValueError for the first entry of ``found`` (``[n]``) that is not ``valid`` (``[n]`` bool on the host)."""
    flags = valid.tolist()
    if not all(flags):
        at = flags.index(False)
        raise ValueError(f"{name}[{at}]: {expected(at)}, got {int(found[at])}")


class Event(Protocol):
    """What ``PinnedRing`` needs of ``torch.cuda.Event``."""

    def record(self) -> object:
        """What was queued on the current stream before is what ``query`` asks for."""

    def query(self) -> bool:
        """All of it is done; the host does not wait."""


class PinnedRing:
    """Pinned host memory from which small tensors go to the device, allocated once and written again and again.

    ``memory``: int64, cut into ``parts`` of one size. A part is written again only when ``event`` (a function that
    makes an ``Event``) says that the copies out of it are done.
    """

    def __init__(self, memory: Tensor, parts: int, event: Callable[[], Event]) -> None:
        self._parts = memory.view(parts, -1).unbind()
        self._events = [event() for _ in range(parts)]
        self._at = self._used = 0
        self._left = [False] * parts  # copies out of a part were queued, and its event was recorded after them

    def put(self, host: Tensor) -> Tensor | None:
        """The content of ``host`` (int64) in pinned memory, from which a copy must be queued before the next call.

        None if it is longer than a part, or if the device has not yet done the copies out of the part that is next.
        """
        count, size = host.numel(), len(self._parts[0])
        if count > size or host.dtype != torch.int64 or (self._used + count > size and not self._turn()):
            return None
        place = self._parts[self._at][self._used : self._used + count]
        self._used += count
        return (place if host.dim() == 1 else place.view(host.shape)).copy_(host)

    def _turn(self) -> bool:
        """Go on in the next part, if the device has read all of it."""
        if not self._left[self._at]:
            self._events[self._at].record()
            self._left[self._at], self._used = True, len(self._parts[0])
        at = (self._at + 1) % len(self._left)
        if self._left[at] and not self._events[at].query():
            return False
        self._at, self._used, self._left[at] = at, 0, False
        return True


def device_number(device: torch.device) -> int:
    """The number of a CUDA device; ``cuda`` without one is the current device."""
    return torch.cuda.current_device() if device.index is None else device.index


def stream_address(device: int) -> int:
    """The address of the current CUDA stream of a device, which is what Triton launches on.

    ``torch.cuda.current_stream`` makes an object, for which an H100's host takes as long as for the launch of a kernel.
    """
    address: int = torch._C._cuda_getCurrentRawStream(device)
    return address


RING, PARTS = 1 << 16, 4  # numbers in a ring, 512 KiB, and its parts: a longer one is not kept in the processor's cache
_one_at_a_time = threading.Lock()


@cache
def ring(device: int, stream: int) -> PinnedRing:
    """The ring for copies to a CUDA device (its number) on one stream (its address). It is kept for good."""
    del device, stream
    return PinnedRing(torch.empty(RING, dtype=torch.int64, pin_memory=True), PARTS, torch.cuda.Event)


def upload(host: Tensor, device: torch.device) -> Tensor:
    """The host tensor on ``device``. On CUDA through pinned memory, so that the host does not wait for the copy.

    The pinned memory is a ring that is allocated by the first call on a stream. What does not fit into it, because it
    is long or because the device is far behind, gets pinned memory of its own.
    """
    if device.type == "cpu":
        return host
    with _one_at_a_time:
        number = device_number(device)
        pinned = ring(number, stream_address(number)).put(host)
        if pinned is not None:
            return pinned.to(device, non_blocking=True)
    return host.pin_memory().to(device, non_blocking=True)


class StreamOrder:
    """The calls on some tensors happen on the device in the order in which the host makes them, on any CUDA streams.

    A call on another stream than the call before waits on the device, not on the host, for all that was queued on that
    other stream. So tensors that calls write in place can be used on several streams. What a call returns belongs to
    the stream of that call, and what a caller passes in must be ready on it, as for every operation of torch.
    """

    def __init__(self, device: torch.device) -> None:
        self._device: int | None = None if device.type == "cpu" else device_number(device)
        self._last: int | None = None  # the address of the stream of the call before

    def follow(self, tensors: Callable[[], Iterable[Tensor | None]]) -> None:
        """A call begins that reads or writes ``tensors()`` on the current stream."""
        if self._device is None:
            return
        address, last = stream_address(self._device), self._last
        self._last = address
        if last is None or last == address:
            return
        stream = torch.cuda.current_stream(self._device)
        stream.wait_stream(torch.cuda.ExternalStream(last, self._device))  # type: ignore[no-untyped-call]
        for tensor in tensors():
            if tensor is not None:  # freed memory is not given away before this stream has done with it
                tensor.record_stream(stream)


def row_pages(slots: Tensor, row_lens: Sequence[int], page_size: int) -> Tensor:
    """The pages of rows that each begin on a page boundary: every ``page_size``-th slot. Reads nothing on the host."""
    if page_size == 1:
        return slots.to(torch.int64, copy=True)  # the pages may wait in a free group: not the caller's memory
    if len(row_lens) == 1:
        return slots[::page_size].to(torch.int64) // page_size
    heads = row_heads(row_lens, page_size)
    return slots.index_select(0, upload(heads, slots.device)).to(torch.int64) // page_size


def row_heads(row_lens: Sequence[int], page_size: int) -> Tensor:
    """``[pages]`` int64 on the host: where the first slot of each page stands among the slots of rows that each begin
    on a page boundary and have so many slots, row after row.
    """
    lens = torch.tensor(row_lens, dtype=torch.int64)
    pages = (lens + page_size - 1) // page_size
    count = sum(pages.tolist())
    # Page k of the batch begins at slot k * page_size, less what the last pages of the rows before it lack.
    lack = (pages * page_size - lens).cumsum(0).sub_(pages * page_size - lens)
    return torch.arange(count) * page_size - torch.repeat_interleave(lack, pages, output_size=count)

"""Row numbers, lengths and session names that a caller passes as host data, and their way to the device."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

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


def device_number(device: torch.device) -> int:
    """The number of a CUDA device; ``cuda`` without one is the current device."""
    return torch.cuda.current_device() if device.index is None else device.index


def stream_address(device: int) -> int:
    """The address of the current CUDA stream of a device, which is what Triton launches on.

    ``torch.cuda.current_stream`` makes an object, for which an H100's host takes as long as for the launch of a kernel.
    """
    address: int = torch._C._cuda_getCurrentRawStream(device)
    return address


def upload(host: Tensor, device: torch.device) -> Tensor:
    """The host tensor on ``device``. On CUDA through pinned memory, so that the host does not wait for the copy.

    Torch keeps pinned memory for later calls, and gives it away again once its copy is done: after the first calls none
    is allocated. A ring of pinned memory of our own took longer on an H100.
    """
    return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)


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

"""Copies of a device's tensors that nobody waits for.

A hook queues a copy into memory of the host, behind what the device has to do, and goes on. The numbers are read later,
when the copy is done. On a device with events, a copy says itself when it is done.
"""

from __future__ import annotations

import sys
from typing import Any


class HostCopy:
    """A copy that was queued. ``is_done`` never waits; ``numbers`` is asked when it is done, and waits if it is not."""

    def __init__(self, tensor: Any) -> None:
        torch: Any = sys.modules["torch"]  # whose tensor it is: this folder imports no torch by itself
        device = tensor.device.type
        self._event: Any = None
        on_device = device != "cpu"
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=on_device)
        self._host.copy_(tensor.detach(), non_blocking=on_device)
        if on_device:
            self._event = torch.get_device_module(device).Event()
            self._event.record()

    @property
    def is_done(self) -> bool:
        """The numbers are there."""
        return self._event is None or bool(self._event.query())

    def numbers(self) -> list[int]:
        """The numbers."""
        if self._event is not None:
            self._event.synchronize()
        found: list[int] = self._host.tolist()
        return found


class TensorRow:
    """Tensors of one dimension that are to be copied together. ``tensors``: all of them, in their order."""

    def __init__(self) -> None:
        self.tensors: list[Any] = []
        self._count = 0

    def add(self, tensor: Any) -> slice:
        """One more. Returns where its elements stand among those of all."""
        first = self._count
        self._count += tensor.numel()
        self.tensors.append(tensor)
        return slice(first, self._count)


def joined(tensors: list[Any]) -> HostCopy | None:
    """One copy of tensors of one dimension, one after the other; ``None`` where there is none."""
    if not tensors:
        return None
    torch: Any = sys.modules["torch"]
    return HostCopy(torch.cat(tensors) if len(tensors) > 1 else tensors[0])

"""Pointers that a kernel makes from numbers: addresses of tensors that it was given as integers.

An address names no tensor, so what is read or written there cannot be checked against one. It is checked that it is
memory of this process at all: where it is not, Triton's interpreter would die, and here ``OutOfBounds`` is raised. A
read beyond a tensor finds whatever lies there, as it does in Triton.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.engines.array_tl.memory import OutOfBounds, Pointer
from conformance.engines.array_tl.values import TYPES, Data, DType, NotCovered, converted, dtype_of

MEMORY = "/proc/self/mem"  # on Linux, the memory of the process that opens it: a wrong address is an error, not a death
TOGETHER = 1 << 16  # bytes that are read at once, although not all of them were asked for


@dataclass(frozen=True, slots=True)
class PointerType:
    """``tl.pointer_type(element)``."""

    element: DType

    def at(self, numbers: Data) -> Pointer:
        """Pointers to these addresses, in bytes: one or a block. ``NotCovered`` if not all of them are whole elements
        away from each other.
        """
        addresses = converted(numbers, TYPES["int64"])
        first = int(addresses.flat[0]) % self.element.itemsize if addresses.size else 0
        offset, rest = np.divmod(addresses - first, self.element.itemsize)
        if np.any(rest):
            raise NotCovered("a block of addresses that are not aligned alike")
        return Pointer(ProcessMemory(self.element, first), offset)


def pointer_type(element: Any, *_space: Any) -> PointerType:
    """``tl.pointer_type``. ``NotCovered`` for elements that are no integers."""
    return PointerType(dtype_of(element))


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """The memory of this process as elements of one type. ``first``: the address of the element 0, in bytes."""

    dtype: DType
    first: int

    def read(self, offset: Data) -> Data:
        """The elements at these offsets."""
        if not offset.size:
            return np.empty(offset.shape, self.dtype)
        low, high = int(np.min(offset)), int(np.max(offset))
        address, length = self._bytes(low, high - low + 1)
        if length > max(TOGETHER, offset.size * self.dtype.itemsize):  # addresses of several tensors, far apart
            return np.array([self.read(np.int64(one)) for one in offset.flat], self.dtype).reshape(offset.shape)
        return np.frombuffer(_access(address, length), self.dtype)[offset - low]

    def write(self, offset: Data, stored: Data) -> None:
        """Writes elements at these offsets. Where one of them is not in memory, nothing is written at all."""
        self.read(offset)
        for one, element in np.broadcast(offset, stored):
            _access(*self._bytes(int(one), 1), element.tobytes())

    def _bytes(self, offset: int, count: int) -> tuple[int, int]:
        """The address of an element, and the length of ``count`` elements."""
        return self.first + offset * self.dtype.itemsize, count * self.dtype.itemsize


def _access(address: int, length: int, stored: bytes | None = None) -> bytes:
    """Reads ``length`` bytes at an address, or writes ``stored`` there. ``OutOfBounds`` where that is no memory."""
    verb, flags = ("reads", os.O_RDONLY) if stored is None else ("writes", os.O_WRONLY)
    try:
        file = os.open(MEMORY, flags | os.O_CLOEXEC)
    except OSError as error:
        raise NotCovered(f"a pointer made from a number: {MEMORY} cannot be opened: {error.strerror}") from error
    try:
        done = os.pread(file, length, address) if stored is None else stored[: os.pwrite(file, stored, address)]
    except (OSError, OverflowError):
        done = b""
    finally:
        os.close(file)
    if len(done) != length:
        raise OutOfBounds(f"a kernel {verb} {length} bytes at the address {address:#x}, not all of them in memory")
    return done

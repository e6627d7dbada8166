"""Loads and stores of a kernel, each checked against the storage of its tensor argument.

- A tensor may be a view of a larger storage, such as what is left of a free list. An access beyond the view and inside
  the storage finds what is stored there, as it does in Triton.
- A read outside the storage, but at most ``NEAR`` bytes away, finds garbage: always the same number, ``garbage``. On a
  GPU and in Triton's interpreter such a read finds whatever lies there and the call goes on.
- ``OutOfBounds`` is raised for any other read outside the storage, for every write outside it, and for every access to
  a tensor without elements: torch gives such a tensor the address 0, so that a process dies of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np

from conformance.engines.array_tl.values import BOOL, TYPES, Data, DType, NotCovered, Value, converted, new_axes, value

_INT64 = TYPES["int64"]
NEAR = 4096  # bytes before and after a storage which can be read: a page of the machine's memory


class OutOfBounds(IndexError):
    """A kernel reads or writes outside a tensor."""


@cache
def garbage(dtype: DType) -> Data:
    """What is read outside a storage: a large number, also after it is multiplied by a page size."""
    return np.array(0x9E3779B97F4A7C15, np.uint64).astype(dtype)[()]


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor that a kernel was given.

    ``data``: the whole storage in one dimension. ``start``: where the tensor's first element is in it. ``count``: the
    tensor's elements.
    """

    kernel: str
    name: str
    data: Data
    start: int
    count: int

    @property
    def dtype(self) -> DType:
        """The type of each element."""
        found: DType = self.data.dtype
        return found

    def read(self, offset: Data) -> Data:
        """The elements at these offsets from the tensor's first element."""
        places = offset + self.start if self.start else offset
        return self.data[places] if self._inside(places) else self._near(places)

    def write(self, offset: Data, stored: Data) -> None:
        """Writes elements at these offsets from the tensor's first element."""
        places = offset + self.start if self.start else offset
        if not self._inside(places):
            raise self._outside("writes", places)
        self.data[places] = stored

    def _inside(self, places: Data) -> bool:
        if places.ndim == 0:
            return bool(0 <= places < len(self.data))
        return not places.size or bool(places.min() >= 0 and places.max() < len(self.data))

    def _near(self, places: Data) -> Data:
        """What is read where some of the places are outside the storage."""
        last, away = len(self.data) - 1, NEAR // self.data.itemsize
        if not self.count or np.min(places) < -away or np.max(places) > last + away:
            raise self._outside("reads", places)
        inside = (places >= 0) & (places <= last)
        return np.where(inside, self.data[np.clip(places, 0, last)], garbage(self.data.dtype))[()]

    def _outside(self, verb: str, places: Data) -> OutOfBounds:
        low, high = int(np.min(places)), int(np.max(places))
        at = (low if low < 0 else high) - self.start
        return OutOfBounds(f"{self.kernel} {verb} {self.name} at {at}, but it has {self.count} elements")


def argument(kernel: str, name: str, tensor: Any) -> Argument:
    """A CPU tensor of integers or bools as an argument. ``NotCovered`` for any other tensor."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.device.type != "cpu" or (dtype != "bool" and dtype not in TYPES):
        raise NotCovered(f"the argument {name} of type {dtype} on {tensor.device.type}")
    count = tensor.numel()
    if not count:
        return Argument(kernel, name, np.empty(0, BOOL if dtype == "bool" else TYPES[dtype]), 0, 0)
    total = tensor.untyped_storage().nbytes() // tensor.element_size()
    return Argument(kernel, name, tensor.as_strided((total,), (1,), 0).numpy(), tensor.storage_offset(), count)


class Target(Protocol):
    """What a pointer points into: a tensor argument, or memory of which no tensor is known. Offsets are in elements."""

    @property
    def dtype(self) -> DType: ...
    def read(self, offset: Data) -> Data: ...
    def write(self, offset: Data, stored: Data) -> None: ...


class Pointer:
    """One address or a block of them: offsets, in elements, from the first element of what it points into."""

    __slots__ = ("offset", "to")
    __hash__ = None  # type: ignore[assignment]
    __iter__ = None

    def __init__(self, to: Target, offset: Data) -> None:
        self.to, self.offset = to, offset

    def __add__(self, other: Any) -> Pointer:
        if isinstance(other, Pointer):
            raise TypeError("two pointers are added")
        return Pointer(self.to, self.offset + converted(value(other).data, _INT64))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Pointer:
        if isinstance(other, Pointer):
            raise NotCovered("a difference of two pointers")
        return Pointer(self.to, self.offset - converted(value(other).data, _INT64))

    def __getitem__(self, index: Any) -> Pointer:
        return Pointer(self.to, self.offset[new_axes(index)])

    def _not_covered(self, *_: Any) -> Any:
        raise NotCovered("a pointer as a number")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __index__ = _not_covered


def load(pointer: Pointer, mask: Any = None, other: Any = None) -> Value:
    """The elements at a pointer. Where ``mask`` is false nothing is touched, and the result is ``other``, or 0."""
    _must_be_pointer(pointer)
    if mask is None:
        if other is not None:
            raise ValueError("`other` without `mask`")
        return Value(pointer.to.read(pointer.offset))
    chosen, rest = _mask(mask), None if other is None else value(other).data
    dtype = pointer.to.dtype
    if pointer.offset.ndim == 0:
        return Value(_one(pointer, chosen, rest, dtype))
    offset, chosen = _together(pointer.offset, chosen)
    if rest is None:
        found = np.zeros(offset.shape, dtype)
    else:
        offset, rest = _together(offset, converted(rest, dtype))
        chosen = np.broadcast_to(chosen, offset.shape)
        found = rest.copy()
    found[chosen] = pointer.to.read(offset[chosen])
    return Value(found)


def _one(pointer: Pointer, chosen: Data, rest: Data | None, dtype: DType) -> Data:
    """The element at one address, if the mask is true."""
    _must_be_scalar("Mask", chosen)
    if rest is not None:
        _must_be_scalar("Other", rest)
    if chosen:
        return pointer.to.read(pointer.offset)
    return dtype.type(0) if rest is None else converted(rest, dtype)


def store(pointer: Pointer, stored: Any, mask: Any = None) -> None:
    """Writes to a pointer, where ``mask`` is true. Of two values for one address the later one stays. Where one address
    is outside, nothing is written at all.
    """
    _must_be_pointer(pointer)
    data, offset = value(stored).data, pointer.offset
    chosen = None if mask is None else _mask(mask)
    if offset.ndim == 0:
        _must_be_scalar("Value", data)
        if chosen is not None:
            _must_be_scalar("Mask", chosen)
            if not chosen:
                return
    else:
        offset, data = _together(offset, data)
        if chosen is not None:
            offset, chosen = _together(offset, chosen)
            data = np.broadcast_to(data, offset.shape)[chosen]
            offset = offset[chosen]
    pointer.to.write(offset, converted(data, pointer.to.dtype))


def _must_be_pointer(pointer: Any) -> None:
    if not isinstance(pointer, Pointer):
        raise NotCovered("a load or a store at what is no pointer to a tensor argument")


def _must_be_scalar(what: str, data: Data) -> None:
    if data.ndim:
        raise ValueError(f"{what} argument cannot be block type if pointer argument is not a block")


def _mask(mask: Any) -> Data:
    data = value(mask).data
    if data.dtype != BOOL:
        raise ValueError("Mask must have boolean scalar type")
    return data


def _together(a: Data, b: Data) -> tuple[Data, Data]:
    """Two blocks in one shape."""
    if a.shape == b.shape:
        return a, b
    x, y = np.broadcast_arrays(a, b)
    return x, y

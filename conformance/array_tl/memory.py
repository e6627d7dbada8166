"""Loads and stores of a kernel: each element that is touched must be inside the storage of the tensor argument.

A tensor may be a view of a larger storage, such as what is left of a free list. An access beyond the view and inside the
storage finds what is stored there, as it does in Triton. An access outside the storage is an error, and so is every
access to a tensor without elements: torch gives such a tensor the address 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.array_tl.values import BOOL, TYPES, Data, DType, NotCovered, Value, converted, new_axes, value

_INT64 = TYPES["int64"]


class OutOfBounds(IndexError):
    """A kernel reads or writes outside a tensor."""


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

    def places(self, offset: Data, verb: str) -> Data:
        """Offsets from the tensor's first element as places in the storage. ``OutOfBounds`` if one is outside."""
        places = offset + self.start if self.start else offset
        if isinstance(places, np.generic):
            low = high = places
        elif places.size:
            low, high = places.min(), places.max()
        else:
            return places
        if low < 0 or high >= len(self.data):
            at = int(low if low < 0 else high) - self.start
            raise OutOfBounds(f"{self.kernel} {verb} {self.name} at {at}, but it has {self.count} elements")
        return places


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


class Pointer:
    """One address or a block of them: offsets, in elements, from the first element of a tensor argument."""

    __slots__ = ("offset", "to")
    __hash__ = None  # type: ignore[assignment]
    __iter__ = None

    def __init__(self, to: Argument, offset: Data) -> None:
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
        return Value(pointer.to.data[pointer.to.places(pointer.offset, "reads")])
    chosen, rest = _mask(mask), None if other is None else value(other).data
    dtype = pointer.to.data.dtype
    if isinstance(pointer.offset, np.generic):
        return Value(_one(pointer, chosen, rest, dtype))
    offset, chosen = _together(pointer.offset, chosen)
    if rest is None:
        found = np.zeros(offset.shape, dtype)
    else:
        offset, rest = _together(offset, converted(rest, dtype))
        chosen = np.broadcast_to(chosen, offset.shape)
        found = rest.copy()
    found[chosen] = pointer.to.data[pointer.to.places(offset[chosen], "reads")]
    return Value(found)


def _one(pointer: Pointer, chosen: Data, rest: Data | None, dtype: DType) -> Data:
    """The element at one address, if the mask is true."""
    _must_be_scalar("Mask", chosen)
    if rest is not None:
        _must_be_scalar("Other", rest)
    if chosen:
        return pointer.to.data[pointer.to.places(pointer.offset, "reads")]
    return dtype.type(0) if rest is None else converted(rest, dtype)


def store(pointer: Pointer, stored: Any, mask: Any = None) -> None:
    """Writes to a pointer, where ``mask`` is true. Of two values for one address the later one stays. If one address
    is outside, nothing is written.
    """
    _must_be_pointer(pointer)
    data, offset = value(stored).data, pointer.offset
    chosen = None if mask is None else _mask(mask)
    if isinstance(offset, np.generic):
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
    pointer.to.data[pointer.to.places(offset, "writes")] = converted(data, pointer.to.data.dtype)


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

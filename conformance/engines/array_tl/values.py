"""The values of a kernel: integers in numpy arrays, which add, divide and compare as Triton's do.

Triton has types that numpy has too, and other rules for them. Two integers of different types are computed in the
larger type, and in the unsigned one where they are equally large. A Python integer takes the type of the other operand.
Division and remainder round toward zero. A bool is an integer of one bit, so True + True is False.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

Data = Any  # a numpy array, or a numpy scalar where the kernel has a scalar
DType = np.dtype[Any]

BOOL = np.dtype(np.bool_)
TYPES: dict[str, DType] = {
    "int1": BOOL,
    **{name: np.dtype(name) for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")},
}
_INT8 = TYPES["int8"]


class NotCovered(Exception):
    """The kernel does something that arrays do not do here, such as computing with floats."""


class Value:
    """A scalar or a block of a kernel. ``data``: a numpy scalar, or an array of one dimension or more, of ``TYPES``."""

    __slots__ = ("data",)
    __hash__ = None  # type: ignore[assignment]
    __iter__ = None

    def __init__(self, data: Data) -> None:
        self.data = data

    @property
    def dtype(self) -> DType:
        """The type of each element."""
        found: DType = self.data.dtype
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the dimensions; empty for a scalar."""
        found: tuple[int, ...] = self.data.shape
        return found

    def to(self, dtype: Any, fp_downcast_rounding: None = None, bitcast: bool = False) -> Any:
        """The value in another type; what does not fit wraps around. Addresses become pointers."""
        if fp_downcast_rounding is not None or bitcast:
            raise NotCovered("a cast of bits or floats")
        if hasattr(dtype, "at"):  # addresses.PointerType
            return dtype.at(self.data)
        return Value(converted(self.data, dtype_of(dtype)))

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, (Value, int, float)):
            return NotImplemented  # a pointer adds itself
        return _arithmetic(operator.add, self, other)

    def __radd__(self, other: Any) -> Value:
        return _arithmetic(operator.add, other, self)

    def __sub__(self, other: Any) -> Value:
        return _arithmetic(operator.sub, self, other)

    def __rsub__(self, other: Any) -> Value:
        return _arithmetic(operator.sub, other, self)

    def __mul__(self, other: Any) -> Value:
        return _arithmetic(operator.mul, self, other)

    def __rmul__(self, other: Any) -> Value:
        return _arithmetic(operator.mul, other, self)

    def __floordiv__(self, other: Any) -> Value:
        return Value(_divided(*pair(self, other, division=True)))

    def __rfloordiv__(self, other: Any) -> Value:
        return Value(_divided(*pair(other, self, division=True)))

    def __mod__(self, other: Any) -> Value:
        return Value(_remainder(*pair(self, other, division=True)))

    def __rmod__(self, other: Any) -> Value:
        return Value(_remainder(*pair(other, self, division=True)))

    def __truediv__(self, _other: Any) -> Value:
        raise NotCovered("a division of floats")

    __rtruediv__ = __truediv__

    def __and__(self, other: Any) -> Value:
        return _elementwise(operator.and_, self, other)

    def __rand__(self, other: Any) -> Value:
        return _elementwise(operator.and_, other, self)

    def __or__(self, other: Any) -> Value:
        return _elementwise(operator.or_, self, other)

    def __ror__(self, other: Any) -> Value:
        return _elementwise(operator.or_, other, self)

    def __xor__(self, other: Any) -> Value:
        return _elementwise(operator.xor, self, other)

    def __rxor__(self, other: Any) -> Value:
        return _elementwise(operator.xor, other, self)

    def __lshift__(self, other: Any) -> Value:
        return _shifted(np.left_shift, self, other)

    def __rlshift__(self, other: Any) -> Value:
        return _shifted(np.left_shift, other, self)

    def __rshift__(self, other: Any) -> Value:
        return _shifted(np.right_shift, self, other)

    def __rrshift__(self, other: Any) -> Value:
        return _shifted(np.right_shift, other, self)

    def __lt__(self, other: Any) -> Value:
        return _elementwise(operator.lt, self, other)

    def __le__(self, other: Any) -> Value:
        return _elementwise(operator.le, self, other)

    def __gt__(self, other: Any) -> Value:
        return _elementwise(operator.gt, self, other)

    def __ge__(self, other: Any) -> Value:
        return _elementwise(operator.ge, self, other)

    def __eq__(self, other: Any) -> Value:  # type: ignore[override]
        return _elementwise(operator.eq, self, other)

    def __ne__(self, other: Any) -> Value:  # type: ignore[override]
        return _elementwise(operator.ne, self, other)

    def __neg__(self) -> Value:
        return _arithmetic(operator.sub, Value(self.dtype.type(0)), self)

    def __pos__(self) -> Value:
        return self

    def __invert__(self) -> Value:
        return Value(np.invert(self.data))

    def __bool__(self) -> bool:
        if self.data.size != 1:
            raise NotCovered(f"a block of {self.data.size} elements is asked whether it is true")
        return bool(self.data)

    def __index__(self) -> int:
        if self.data.size != 1:
            raise NotCovered(f"a block of {self.data.size} elements is used as one number")
        return int(self.data.item())

    def __getitem__(self, index: Any) -> Value:
        return Value(self.data[new_axes(index)])


def new_axes(index: Any) -> tuple[slice | None, ...]:
    """``[:, None]`` and the like: the only indices that a block has. ``NotCovered`` for any other."""
    parts = index if isinstance(index, tuple) else (index,)
    if any(part is not None and part != slice(None) for part in parts):
        raise NotCovered("an index that is neither ':' nor None")
    return parts


def value(given: Any) -> Value:
    """A value as it is, and a Python bool or integer as a scalar of the smallest of Triton's types for it (int32,
    uint32, int64, uint64).
    """
    if isinstance(given, Value):
        return given
    return Value(_typed(given, _type_of_number(given)))


def dtype_of(kind: Any) -> DType:
    """The numpy type of a type of Triton or numpy. ``NotCovered`` for floats."""
    if isinstance(kind, np.dtype):
        return kind
    found = TYPES.get(getattr(kind, "name", ""))
    if found is None:
        raise NotCovered(f"the type {kind}")
    return found


def converted(data: Data, dtype: DType) -> Data:
    """The numbers in another type; what does not fit wraps around."""
    return data if data.dtype == dtype else data.astype(dtype)


def pair(a: Any, b: Any, division: bool = False) -> tuple[Data, Data]:
    """Two operands in the type in which Triton computes with them. ``TypeError`` for a division of a signed by an
    unsigned number, ``ValueError`` for a Python number that does not fit.
    """
    if type(a) is Value and type(b) is Value:
        x, y = a.data, b.data
        if x.dtype == y.dtype:
            return x, y
        dtype = promoted(x.dtype, y.dtype, division)
        return converted(x, dtype), converted(y, dtype)
    if type(a) is Value:
        dtype = _with_number(a.data.dtype, b, division)
        return converted(a.data, dtype), _typed(b, dtype)
    if type(b) is Value:
        dtype = _with_number(b.data.dtype, a, division)
        return _typed(a, dtype), converted(b.data, dtype)
    dtype = promoted(_type_of_number(a), _type_of_number(b), division)
    return _typed(a, dtype), _typed(b, dtype)


def _arithmetic(op: Callable[[Data, Data], Data], a: Any, b: Any) -> Value:
    """A sum, difference or product. Bools are integers of one bit."""
    x, y = pair(a, b)
    if x.dtype == BOOL:
        return Value((op(x.astype(_INT8), y.astype(_INT8)) & 1).astype(BOOL))
    return Value(op(x, y))


def _elementwise(op: Callable[[Data, Data], Data], a: Any, b: Any) -> Value:
    return Value(op(*pair(a, b)))


def _shifted(op: Callable[[Data, Data], Data], a: Any, b: Any) -> Value:
    x, y = pair(a, b)
    if x.dtype == BOOL:
        raise NotCovered("a shift of bools")
    return Value(op(x, y))


def _divided(x: Data, y: Data) -> Data:
    """x / y, rounded toward zero; 0 where y is 0."""
    if _floor_is_right(x, y):
        return x // y
    return (x - np.fmod(x, y)) // y


def _remainder(x: Data, y: Data) -> Data:
    """What is left of x after the division that rounds toward zero; it has the sign of x. 0 where y is 0."""
    if _floor_is_right(x, y):
        return x - x // y * y
    return np.fmod(x, y)


def _floor_is_right(x: Data, y: Data) -> bool:
    """The divisor is one positive number, and no dividend is negative: then numpy's fast division is right."""
    if x.dtype == BOOL:
        raise NotCovered("a division of bools")
    return bool(y.ndim == 0 and y > 0 and x.min() >= 0)


@cache
def promoted(a: DType, b: DType, division: bool = False) -> DType:
    """The type in which Triton computes with two types."""
    signed_a, signed_b = a.kind == "i", b.kind == "i"
    if division and signed_a != signed_b:
        raise TypeError(f"a division of {a} and {b}: one has a sign and one has none")
    rank_a, rank_b = _bits(a), _bits(b)
    if signed_a == signed_b:
        return a if rank_a > rank_b else b
    if signed_a:
        return b if rank_b >= rank_a else a
    return a if rank_a >= rank_b else b


def _bits(dtype: DType) -> int:
    return 1 if dtype == BOOL else dtype.itemsize * 8


def _with_number(dtype: DType, number: Any, division: bool) -> DType:
    """The type in which Triton computes with a block of ``dtype`` and a Python number."""
    if isinstance(number, bool) or (isinstance(number, int) and dtype != BOOL):
        return dtype
    return promoted(dtype, _type_of_number(number), division)


def _type_of_number(number: Any) -> DType:
    if isinstance(number, bool):
        return BOOL
    if isinstance(number, int):
        for name, low, high in (("int32", -(2**31), 2**31), ("uint32", 0, 2**32), ("int64", -(2**63), 2**63)):
            if low <= number < high:
                return TYPES[name]
        if 0 <= number < 2**64:
            return TYPES["uint64"]
        raise ValueError(f"{number} fits in no type")
    raise NotCovered(f"a {type(number).__name__} as an operand")


def _typed(number: Any, dtype: DType) -> Data:
    """A Python number as a numpy scalar. ``ValueError`` if it does not fit."""
    if not isinstance(number, int):
        raise NotCovered(f"a {type(number).__name__} as an operand")
    if dtype != BOOL:
        low, high = _limits(dtype)
        if not low <= number <= high:
            raise ValueError(f"{number} does not fit in {dtype}")
    return dtype.type(number)


@cache
def _limits(dtype: DType) -> tuple[int, int]:
    found = np.iinfo(dtype)
    return int(found.min), int(found.max)


def lengths(shape: Sequence[Any] | Any) -> tuple[int, ...]:
    """A shape as kernels write it: a list, a tuple or one number. ``ValueError`` if a length is no constant."""
    parts = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    if not all(isinstance(part, int) for part in parts):
        raise ValueError("the lengths of a block must be constants")
    return parts

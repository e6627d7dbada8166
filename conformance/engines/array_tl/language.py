"""What a kernel finds under ``tl`` and ``triton``: the part of ``triton.language`` that bookkeeping uses, on arrays.

``LANGUAGE`` and ``TRITON`` are all there is. A kernel that names anything else is run by Triton's interpreter, see
``conformance.engines.array_tl.launch``.
"""

from __future__ import annotations

import builtins
from types import SimpleNamespace
from typing import Any

import numpy as np

from conformance.engines.array_tl import memory
from conformance.engines.array_tl.addresses import pointer_type
from conformance.engines.array_tl.values import (
    BOOL,
    TYPES,
    Data,
    DType,
    NotCovered,
    Value,
    converted,
    dtype_of,
    lengths,
    pair,
    value,
)

_INT32, _UINT32 = TYPES["int32"], TYPES["uint32"]


class Program:
    """Which program of the launch runs now: its place in the grid, and the size of the grid."""

    place: tuple[int, int, int] = (0, 0, 0)
    grid: tuple[int, int, int] = (1, 1, 1)


def _program_id(axis: int) -> Value:
    return Value(np.int32(Program.place[axis]))


def _num_programs(axis: int) -> Value:
    return Value(np.int32(Program.grid[axis]))


def _arange(start: int, end: int) -> Value:
    if not isinstance(start, int) or not isinstance(end, int):
        raise ValueError("arange's arguments must be of type tl.constexpr")
    length = end - start
    if length <= 0 or length & (length - 1):
        raise ValueError(f"arange's range must be a power of 2, not {length}")
    return Value(np.arange(start, end, dtype=_INT32))


def _load(
    pointer: Any, mask: Any = None, other: Any = None, boundary_check: Any = (), padding_option: str = "", **_how: Any
) -> Value:
    if boundary_check or padding_option:
        raise NotCovered("a load with boundary_check")
    return memory.load(pointer, mask, other)


def _store(pointer: Any, stored: Any, mask: Any = None, boundary_check: Any = (), **_how: Any) -> None:
    if boundary_check:
        raise NotCovered("a store with boundary_check")
    memory.store(pointer, stored, mask)


def _where(condition: Any, x: Any, y: Any) -> Value:
    found: Data = np.where(converted(value(condition).data, BOOL), *pair(x, y))
    return Value(found[()])


def _minimum(x: Any, y: Any) -> Value:
    return Value(np.minimum(*pair(x, y)))


def _maximum(x: Any, y: Any) -> Value:
    return Value(np.maximum(*pair(x, y)))


def _cdiv(x: Any, div: Any) -> Any:
    return (x + (div - 1)) // div


def _next_power_of_2(n: Any) -> int:
    if not isinstance(n, int):
        raise NotCovered("next_power_of_2 of what is no constant")
    return 1 << (n - 1).bit_length() if n > 0 else 0


def _cast(given: Any, dtype: Any, fp_downcast_rounding: None = None, bitcast: bool = False) -> Any:
    return value(given).to(dtype, fp_downcast_rounding, bitcast)


def _full(shape: Any, filling: Any, dtype: Any) -> Value:
    kind = dtype_of(dtype)
    one = filling.to(kind) if isinstance(filling, Value) else Value(pair(Value(kind.type(0)), filling)[1])
    if one.shape:
        raise ValueError("a block is filled with one number")
    return Value(np.full(lengths(shape), one.data, kind)[()])


def _zeros(shape: Any, dtype: Any) -> Value:
    return Value(np.zeros(lengths(shape), dtype_of(dtype))[()])


def _zeros_like(given: Value) -> Value:
    return Value(np.zeros_like(given.data)[()])


def _abs(given: Any) -> Value:
    found = value(given)
    return Value(np.abs(found.data)) if found.dtype.kind == "i" else found


def _expand_dims(given: Value, axis: int) -> Value:
    return Value(np.expand_dims(given.data, axis))


def _broadcast_to(given: Value, *shape: Any) -> Value:
    return Value(np.broadcast_to(given.data, lengths(shape[0] if len(shape) == 1 else shape)))


def _sum(given: Value, axis: int | None = None, keep_dims: bool = False, dtype: Any = None) -> Value:
    data = _summable(given, dtype)
    _must_have(data, axis)
    return Value(_block(data).sum(axis=axis, keepdims=keep_dims, dtype=data.dtype))


def _cumsum(given: Value, axis: int = 0, reverse: bool = False, dtype: Any = None) -> Value:
    data = _summable(given, dtype)
    _must_have(data, axis)
    if reverse:
        return Value(np.flip(np.cumsum(np.flip(data, axis), axis=axis, dtype=data.dtype), axis))
    return Value(np.cumsum(data, axis=axis, dtype=data.dtype))


def _max(given: Value, axis: int | None = None, *, return_indices: bool = False, keep_dims: bool = False) -> Value:
    data = _comparable(given, return_indices)
    _must_have(data, axis)
    return Value(_block(data).max(axis=axis, keepdims=keep_dims))


def _min(given: Value, axis: int | None = None, *, return_indices: bool = False, keep_dims: bool = False) -> Value:
    data = _comparable(given, return_indices)
    _must_have(data, axis)
    return Value(_block(data).min(axis=axis, keepdims=keep_dims))


def _block(data: Data) -> Data:
    return np.atleast_1d(data)


def _must_have(data: Data, axis: int | None) -> None:
    if axis is not None and axis >= data.ndim:
        raise ValueError(f"axis {axis} out of bounds for shape {data.shape}")


def _summable(given: Value, dtype: Any) -> Data:
    """Small integers are summed in 32 bits, and bools as unsigned ones."""
    kind: DType = given.dtype if dtype is None else dtype_of(dtype)
    if dtype is None and kind.itemsize < 4:
        kind = _INT32 if kind.kind == "i" else _UINT32
    return converted(given.data, kind)


def _comparable(given: Value, return_indices: bool) -> Data:
    """The largest and the smallest of small integers are found in int32."""
    if return_indices:
        raise NotCovered("the index of the largest or smallest element")
    return converted(given.data, _INT32) if given.dtype.itemsize < 4 else given.data


def _range(start: Any, end: Any = None, step: Any = None, **_how: Any) -> builtins.range:
    first, last = (0, start) if end is None else (start, end)
    return builtins.range(first, last, 1 if step is None else step)


def _static_assert(condition: Any, message: str = "") -> None:
    assert condition, message


def _assume(condition: Any) -> None:
    assert condition, "Assume failed"


def _as_it_is(given: Any, *_: Any) -> Any:
    return given


def _nothing(*_: Any, **__: Any) -> None:
    return None


LANGUAGE = SimpleNamespace(
    **TYPES,
    constexpr=_as_it_is,
    pointer_type=pointer_type,
    program_id=_program_id,
    num_programs=_num_programs,
    arange=_arange,
    load=_load,
    store=_store,
    where=_where,
    minimum=_minimum,
    maximum=_maximum,
    cdiv=_cdiv,
    cast=_cast,
    full=_full,
    zeros=_zeros,
    zeros_like=_zeros_like,
    abs=_abs,
    expand_dims=_expand_dims,
    broadcast_to=_broadcast_to,
    sum=_sum,
    cumsum=_cumsum,
    max=_max,
    min=_min,
    range=_range,
    static_range=_range,
    static_assert=_static_assert,
    assume=_assume,
    multiple_of=_as_it_is,
    max_contiguous=_as_it_is,
    max_constancy=_as_it_is,
    debug_barrier=_nothing,
    device_assert=_nothing,  # Triton checks it in debug mode alone
)
TRITON = SimpleNamespace(language=LANGUAGE, cdiv=_cdiv, next_power_of_2=_next_power_of_2)
BUILTINS = {"range": builtins.range, "min": builtins.min, "max": builtins.max}  # of Python, as in Triton's interpreter

"""Kernels that are launched twice in the tests of ``conformance.engines.array_tl``: on arrays and in Triton's
interpreter.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

import triton
import triton.language as tl

from conformance.engines.array_tl.launch import ArrayKernel


def on_both(function: Any) -> ArrayKernel:
    """A kernel that is launched on arrays; its attribute ``triton`` is the same kernel in Triton's interpreter."""
    assert isinstance(function, FunctionType)
    return ArrayKernel(function, triton.jit)


@on_both
def rounded_up(x, page: tl.constexpr, more=1):  # type: ignore[no-untyped-def]
    return (x + page - 1) // page * page * more


@on_both
def two_dimensions(x_ptr, y_ptr, out_ptr, ROWS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Blocks of two dimensions: new axes, broadcasts, and reductions along an axis."""
    rows, columns = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    x = tl.load(x_ptr + rows[:, None] * WIDTH + columns[None, :], mask=(rows != 1)[:, None], other=-3)
    y = tl.load(y_ptr + columns)
    both = x * y + tl.expand_dims(rows, 1) - tl.broadcast_to(y[None, :], (ROWS, WIDTH))
    tl.store(out_ptr + rows, tl.sum(both, axis=1) + tl.max(x, axis=1) - tl.min(x, axis=1))
    tl.store(out_ptr + ROWS + columns, tl.sum(tl.cumsum(both, 0), axis=0), mask=columns % 2 == 0)
    tl.store(out_ptr + ROWS + WIDTH, tl.sum(both) + tl.max(tl.zeros_like(both) + 7))
    kept = tl.sum(both, axis=0, keep_dims=True) + tl.full((ROWS, WIDTH), 2, tl.int64)
    tl.store(out_ptr + ROWS + WIDTH + 1 + rows[:, None] * WIDTH + columns[None, :], kept)


@on_both
def control_flow(x_ptr, out_ptr, n, flag, PAGE: tl.constexpr, FIRST: tl.constexpr = True):  # type: ignore[no-untyped-def]
    """Loops, branches, early returns, and numbers that become scalars when they are assigned."""
    pid = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    STEP: tl.constexpr = 2
    total = 0
    for i in range(pid):
        total += tl.load(x_ptr + i)
    for i in tl.static_range(0, 4, STEP):
        total += i * STEP
    left = n
    while left > PAGE:
        left -= PAGE
    if FIRST and flag:
        total = total * 2
    elif pid == 1:
        total = -total
    tl.store(out_ptr + pid, total, mask=left > 1)
    if pid >= 2:
        return
    page = min(rounded_up(n, PAGE), max(rounded_up(pid, PAGE, more=3), total))
    tl.store(out_ptr + 4 + pid, page.to(tl.int64) if flag else tl.cdiv(page, PAGE))


@on_both
def one_place_twice(out_ptr, x_ptr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Many lanes write to one place, and each program writes over what another one wrote."""
    lane = tl.arange(0, SIZE)
    x = tl.load(x_ptr + lane)
    tl.store(out_ptr + lane // 4, x)
    tl.store(out_ptr + SIZE + lane % 3, x + tl.program_id(0))
    tl.store(out_ptr + 2 * SIZE, tl.load(out_ptr + SIZE) - tl.program_id(1))


@on_both
def gathers(from_ptr, at_ptr, out_ptr, shift, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Reads at given places, which may be outside the tensor."""
    lane = tl.arange(0, SIZE)
    at = tl.load(at_ptr + lane)
    tl.store(out_ptr + lane, tl.load(from_ptr + at + shift, mask=at != 5))
    tl.store(out_ptr + SIZE, tl.load(from_ptr + shift))


@on_both
def scatters(to_ptr, at_ptr, shift, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Writes to given places, which may be outside the tensor."""
    lane = tl.arange(0, SIZE)
    at = tl.load(at_ptr + lane)
    tl.store(to_ptr + at + shift, lane + 100, mask=at != 5)


@on_both
def reads_at_addresses(addresses, out_ptr, count, TENSORS: tl.constexpr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The elements of one tensor of 16-bit integers a program, and the first element of every tensor."""
    tensor = tl.load(addresses + tl.program_id(0)).to(tl.pointer_type(tl.int16))
    lane = tl.arange(0, SIZE)
    tl.store(out_ptr + tl.program_id(0) * SIZE + lane, tl.load(tensor + lane, mask=lane < count, other=-1))
    each = tl.arange(0, TENSORS)
    firsts = tl.load(tl.cast(tl.load(addresses + each), tl.pointer_type(tl.int16)), mask=each != 1)
    tl.store(out_ptr + tl.num_programs(0) * SIZE + each, firsts)


@on_both
def writes_at_addresses(addresses, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    tensor = tl.load(addresses + tl.program_id(0)).to(tl.pointer_type(tl.int16))
    lane = tl.arange(0, SIZE)
    tl.store(tensor + lane * 2, lane + 70000, mask=lane != 1)


@on_both
def with_atomics(x_ptr):  # type: ignore[no-untyped-def]
    """``tl.atomic_add`` is not there on arrays."""
    tl.atomic_add(x_ptr, 1)


@on_both
def calls_one_with_atomics(x_ptr):  # type: ignore[no-untyped-def]
    with_atomics(x_ptr)
    tl.store(x_ptr + 1, 5)


@on_both
def with_floats(x_ptr):  # type: ignore[no-untyped-def]
    tl.store(x_ptr, tl.load(x_ptr) * 2)


@on_both
def true_block(x_ptr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Asks a block whether it is true."""
    lane = tl.arange(0, SIZE)
    if lane > 1:
        tl.store(x_ptr, 1)


@on_both
def chain(x_ptr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    lane = tl.arange(0, SIZE)
    tl.store(x_ptr + lane, 7, mask=1 < lane < 3)


@on_both
def dies(x_ptr, far):  # type: ignore[no-untyped-def]
    tl.atomic_add(x_ptr + far, 1)

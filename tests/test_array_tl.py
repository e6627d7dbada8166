"""Kernels on arrays against Triton's interpreter: random kernels, our own, and those of releases, also out of bounds.

The kernels of every release are compared, from 0.5.10 to 0.5.23. Runs of a release on CPU tensors launch them up to
0.5.21 alone. From 0.5.22 on the paged allocator takes a kernel only where its platform supports Triton, and calls
functions of plain torch elsewhere (``alloc_extend_naive``, ``alloc_decode_naive``). So a run on CPU says nothing about
the kernels of these releases; the tests here say that arrays would run them as Triton does. The kernel
``get_and_clear_swa_pages_kernel`` (from 0.5.21 on) is launched on CUDA tensors alone, and is not compared.

What is outside a tensor is not determined in Triton. So the tensors that the interpreter is given lie in a frame of
``garbage`` of ``NEAR`` bytes. Then both must read the same numbers, and a write to the frame must be an ``OutOfBounds``
on arrays.
"""

from __future__ import annotations

import ast
import faulthandler
import functools
import importlib.util
import itertools
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import assume, event, given
from hypothesis import strategies as st

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("kernels are compiled here, not interpreted", allow_module_level=True)

import array_kernels as by_hand
import numpy as np
import triton
from driven import driven, some
from test_kernels import BATCHES, World
from triton.runtime.errors import InterpreterError

from conformance.driver.lockstep import killed_by
from conformance.driver.protocol import EngineError
from conformance.engines.array_tl.launch import ArrayKernel, KernelDied
from conformance.engines.array_tl.memory import NEAR, OutOfBounds, garbage
from conformance.engines.sglang import RELEASES
from conformance.engines.sglang.releases import download
from impl import kernels

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore:tl.where with a non-boolean")
TYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
NOT_COVERED = ("a shift of bools", "a division of bools", "is asked whether it is true")


class Framed:
    """Copies of tensors, views of one storage together, with a frame of garbage around each storage."""

    def __init__(self) -> None:
        self.storages: dict[int, tuple[torch.Tensor, torch.Tensor, int]] = {}

    def copy(self, given: Any) -> Any:
        """The tensor in its frame; anything else as it is."""
        if not isinstance(given, torch.Tensor):
            return given
        key = given.untyped_storage().data_ptr()
        if key not in self.storages:
            flat, frame = whole(given), NEAR // given.element_size()
            kind = np.dtype(str(given.dtype).removeprefix("torch."))
            edge = torch.from_numpy(np.full(frame, garbage(kind)))
            self.storages[key] = flat, torch.cat([edge, flat, edge]), frame
        _, big, frame = self.storages[key]
        return big.as_strided(given.size(), given.stride(), frame + given.storage_offset())

    def written(self) -> bool:
        """Somebody wrote to a frame."""
        return any(
            bool((edge != edge[0]).any()) or not torch.equal(edge[:1], torch.from_numpy(garbage_of(big))[:1])
            for flat, big, frame in self.storages.values()
            for edge in (big[:frame], big[frame + len(flat) :])
        )

    def equal(self) -> bool:
        """Each storage holds what its frame holds."""
        return all(torch.equal(flat, big[frame : frame + len(flat)]) for flat, big, frame in self.storages.values())


def garbage_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    return np.full(1, garbage(np.dtype(str(tensor.dtype).removeprefix("torch."))))


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)


class Quiet:
    """A kernel in Triton's interpreter that dies without a report on the screen."""

    def __init__(self, triton: Any) -> None:
        self.triton = triton

    def __getitem__(self, grid: Any) -> Any:
        faulthandler.disable()
        return self.triton[grid]


def same(kernel: ArrayKernel, grid: tuple[int, ...], *arguments: Any, **more: Any) -> Exception | None:
    """Launches the kernel in both ways, and fails if the tensors differ afterwards or if one way alone raises. Returns
    what was raised on arrays.
    """
    framed = Framed()
    copies = [framed.copy(a) for a in arguments]
    raised = None
    try:
        kernel[grid](*arguments, **more)
    except EngineError:
        raise
    except Exception as error:
        raised = error
    assert kernel.refused == "", kernel.refused
    if any(isinstance(a, torch.Tensor) and not a.numel() for a in arguments):
        died = killed_by(lambda: Quiet(kernel.triton)[grid](*copies, **more))
        assert bool(died) == isinstance(raised, OutOfBounds), (died, raised)
        if raised is not None:
            return raised
    if isinstance(raised, OutOfBounds) and " reads " in str(raised):
        return raised  # it is far away: the interpreter would die of it, or not
    in_triton = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kernel.triton[grid](*copies, **more)
    except InterpreterError as error:
        in_triton = error
    outside = isinstance(raised, OutOfBounds)
    assert framed.written() == outside, raised
    assert bool(in_triton or outside) == bool(raised), (in_triton, raised)
    assert outside or framed.equal(), framed.storages
    return raised


def numbers(kind: str) -> st.SearchStrategy[int]:
    if kind == "bool":
        return st.integers(0, 1)
    limits = torch.iinfo(getattr(torch, kind))
    edges = [limits.min, limits.max, *(n for n in (-8, -7, -1, 0, 1, 2, 7) if n >= limits.min)]
    return st.one_of(st.sampled_from(edges), st.integers(limits.min, limits.max))


@st.composite
def tensors(draw: st.DrawFn, size: int, kind: str | None = None) -> torch.Tensor:
    chosen = draw(st.sampled_from(TYPES)) if kind is None else kind
    drawn = draw(st.lists(numbers(chosen), min_size=size, max_size=size))
    return torch.from_numpy(np.array(drawn, dtype=chosen))


# Random kernels.

BINARY = ("+", "-", "*", "//", "%", "&", "|", "^", "<", "<=", ">", ">=", "==", "!=")
LEAVES = ("a", "b", "c", "lane", "one", "s", "t", "pid", "K")
LITERALS = ("0", "1", "-1", "3", "-7", "True", "255", "70000", "5000000000")


@st.composite
def values(draw: st.DrawFn, depth: int) -> str:
    """An expression whose result is a value of Triton."""
    if depth == 0:
        return str(draw(st.sampled_from(LEAVES[:-1])))
    inner = functools.partial(values, depth=depth - 1)
    operand = st.one_of(inner(), inner(), inner(), st.sampled_from((*LEAVES, *LITERALS)))
    kind = "tl." + draw(st.sampled_from(TYPES)).replace("bool", "int1")
    x: str = draw(inner())
    shape = draw(st.integers(0, 9))
    if shape <= 4:
        pair = (x, draw(operand)) if draw(st.booleans()) else (draw(operand), x)
        return f"({pair[0]} {draw(st.sampled_from(BINARY))} {pair[1]})"
    if shape == 5:
        return f"({x} {draw(st.sampled_from(['<<', '>>']))} {draw(st.integers(0, 7))})"
    if shape == 6:
        unary = (f"{x}.to({kind})", f"tl.cast({x}, {kind})", f"(-{x})", f"(~{x})", f"tl.abs({x})")
        return str(draw(st.sampled_from(unary)))
    if shape == 7:
        name = draw(st.sampled_from(["tl.minimum", "tl.maximum", "tl.cdiv", "triton.cdiv"]))
        return f"{name}({x}, {draw(operand)})"
    if shape == 8:
        return f"tl.where({draw(inner())} {draw(st.sampled_from(['<', '==']))} {draw(inner())}, {x}, {draw(operand)})"
    block = f"({x} + lane)"
    reduced = ("tl.sum({})", "tl.max({}, axis=0)", "tl.min({})", "tl.cumsum({}, 0)", "tl.cumsum({}, 0, reverse=True)")
    plain = ("tl.sum({}, axis=0, keep_dims=True)", "tl.zeros_like({})", "tl.sum({}, dtype=tl.int64)")
    return str(draw(st.sampled_from(reduced + plain))).format(block)


KERNEL = """\
import triton
import triton.language as tl

def kernel(a_ptr, b_ptr, c_ptr, out_ptr, s, n, K: tl.constexpr, SIZE: tl.constexpr):
    pid = tl.program_id(0)
    lane = tl.arange(0, SIZE)
    one = 1
    a = tl.load(a_ptr + lane)
    b = tl.load(b_ptr + lane, mask=lane < n)
    c = tl.load(c_ptr + lane * {step}, mask=lane != n, other={other})
    t = tl.load(a_ptr + pid)
    found = {found}
    tl.store(out_ptr + pid * SIZE + lane, found, mask={mask})
"""


def module_of(text: str, path: Path) -> ModuleType:
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A new file for each kernel: Python remembers the lines of a file."""
    folder = tmp_path_factory.mktemp("kernels")
    return (folder / f"kernel_{n}.py" for n in itertools.count())


@given(data=st.data())
def test_random_kernels(data: st.DataObject, paths: Iterator[Path]) -> None:
    found, mask = data.draw(values(3), "found"), data.draw(values(1), "mask")
    mask = data.draw(st.sampled_from([f"(lane * 0 + {mask}) != 0", "lane < n", "None"]))
    text = KERNEL.format(
        found=found, mask=mask, step=data.draw(st.sampled_from([0, 1])), other=data.draw(st.sampled_from(["0", "-1"]))
    )
    kernel = ArrayKernel(module_of(text, next(paths)).kernel, triton.jit)
    size = data.draw(st.sampled_from([1, 4, 8]))
    inputs = [data.draw(tensors(size)) for _ in "abc"]
    out = data.draw(tensors(2 * size))
    scalar = data.draw(st.one_of(numbers("int32"), numbers("int64"), st.booleans()))
    assume(not 2**31 <= scalar < 2**32)  # Triton's interpreter wraps them at 32 bits, but the kernel has them in int64
    programs = min(2, size)
    arguments = (*inputs, out, scalar, data.draw(st.integers(-1, size + 1)))
    try:
        event(f"raises: {type(same(kernel, (programs,), *arguments, K=3, SIZE=size)).__name__}")
    except EngineError as error:
        if not any(reason in str(error) for reason in NOT_COVERED):
            raise
        event("not covered")


# Kernels by hand.


@given(data=st.data(), rows=st.sampled_from([1, 2, 4]), width=st.sampled_from([1, 2, 8]))
def test_two_dimensions(data: st.DataObject, rows: int, width: int) -> None:
    x, y = data.draw(tensors(rows * width)), data.draw(tensors(width))
    out = data.draw(tensors(rows + width + 1 + rows * width, "int64"))
    same(by_hand.two_dimensions, (1,), x, y, out, rows, width)


@pytest.mark.soak
@given(
    st.lists(numbers("int32"), min_size=4, max_size=4),
    st.integers(-5, 40),
    st.booleans(),
    st.sampled_from([1, 3, 4]),
    st.booleans(),
)
def test_control_flow(x: list[int], n: int, flag: bool, page: int, first: bool) -> None:
    for kind in (torch.int32, torch.int64):
        out = torch.full((6,), -1, dtype=kind)
        assert (
            same(by_hand.control_flow, (2, 2), torch.tensor(x, dtype=kind), out, n, flag, PAGE=page, FIRST=first)
            is None
        )
    assert same(by_hand.control_flow, (1,), torch.tensor(x), torch.zeros(6, dtype=torch.int64), n, flag, page) is None


@given(tensors(8))
def test_the_last_write_stays(x: torch.Tensor) -> None:
    assert same(by_hand.one_place_twice, (2, 3), torch.zeros(17, dtype=torch.int64), x, 8) is None


def test_a_launch_has_arguments_a_grid_and_options() -> None:
    out, x = torch.zeros(6, dtype=torch.int64), torch.tensor([5, 6, 7, 8])
    kernel = by_hand.control_flow
    kernel[lambda given: (triton.cdiv(given["n"], given["PAGE"]),)](x, out, n=9, flag=True, PAGE=4, num_warps=4)
    expected = torch.zeros(6, dtype=torch.int64)
    kernel.triton[(3,)](x, expected, 9, True, 4)
    assert torch.equal(out, expected)
    kernel.run(x, out, 9, True, 4, grid=(3,), warmup=True)
    for arguments in ((x, out, 9, True), (x, out, 9, True, 4, True, 1)):
        with pytest.raises(TypeError, match="control_flow takes 6 arguments: x_ptr"):
            kernel[(1,)](*arguments)


# Outside a tensor.

FAR = NEAR // 8 + 20


@given(
    data=st.data(), size=st.integers(0, 6), start=st.integers(0, 3), kind=st.sampled_from(["int16", "int32", "int64"])
)
def test_accesses_outside_a_tensor(data: st.DataObject, size: int, start: int, kind: str) -> None:
    """A view of a larger storage: beyond the view is what the storage holds, beyond the storage is garbage."""
    storage = data.draw(tensors(start + size + 2, kind))
    view = storage[start : start + size]
    places = st.one_of(st.integers(-4, 9), st.integers(-FAR, FAR), st.just(5))
    at = torch.tensor(data.draw(st.lists(places, min_size=4, max_size=4)))
    shift = data.draw(st.sampled_from([0, 0, 1, -2]))
    raised = same(by_hand.gathers, (1,), view, at, torch.zeros(5, dtype=torch.int64), shift, 4)
    event(f"read: {type(raised).__name__}")
    raised = same(by_hand.scatters, (1,), view, at.clamp(-60, 60), shift, 4)
    event(f"write: {type(raised).__name__}")


def test_an_access_outside_says_where() -> None:
    x, out = torch.tensor([5, 6]), torch.zeros(5, dtype=torch.int64)
    with pytest.raises(OutOfBounds, match=r"^gathers reads from_ptr at -600, but it has 2 elements$"):
        by_hand.gathers[(1,)](x, torch.tensor([0, 1, 0, -600]), out, 0, 4)
    with pytest.raises(OutOfBounds, match=r"^gathers reads from_ptr at 0, but it has 0 elements$"):
        by_hand.gathers[(1,)](x[2:], torch.tensor([5, 5, 5, 5]), out, 0, 4)
    before = torch.tensor([1, 2, 3, 4])
    with pytest.raises(OutOfBounds, match=r"^scatters writes to_ptr at 3, but it has 2 elements$"):
        by_hand.scatters[(1,)](before[1:3].clone(), torch.tensor([0, 1, 3, 5]), 0, 4)
    by_hand.scatters[(1,)](before[1:3], torch.tensor([-1, 2, 5, 5]), 0, 4)
    assert before.tolist() == [100, 2, 3, 101]
    by_hand.gathers[(1,)](x, torch.tensor([2, -1, 5, 1]), out, 0, 4)
    assert out.tolist() == [int(garbage(np.dtype(np.int64)))] * 2 + [0, 6, 5]


# Pointers that are made from numbers.


def addresses_of(found: list[torch.Tensor]) -> torch.Tensor:
    return torch.tensor([tensor.data_ptr() for tensor in found], dtype=torch.uint64)


@given(st.lists(tensors(8, "int16"), min_size=4, max_size=4), st.integers(0, 8))
def test_reads_at_addresses(found: list[torch.Tensor], count: int) -> None:
    out = torch.zeros(4 * 8 + 4, dtype=torch.int64)
    assert same(by_hand.reads_at_addresses, (4,), addresses_of(found), out, count, 4, 8) is None
    assert out[:count].tolist() == found[0][:count].tolist()
    assert out[-4:].tolist() == [0 if i == 1 else int(tensor[0]) for i, tensor in enumerate(found)]


@given(st.lists(tensors(8, "int16"), min_size=1, max_size=3))
def test_writes_at_addresses(found: list[torch.Tensor]) -> None:
    copies = [tensor.clone() for tensor in found]
    by_hand.writes_at_addresses[(len(found),)](addresses_of(found), 4)
    assert by_hand.writes_at_addresses.refused == ""
    by_hand.writes_at_addresses.triton[(len(found),)](addresses_of(copies), 4)
    assert [tensor.tolist() for tensor in found] == [tensor.tolist() for tensor in copies]


@pytest.mark.parametrize("address", [0, 2**45, 2**63])
def test_an_address_that_is_no_memory(address: int) -> None:
    """The process would die of it; the tensor whose address is good is read and written before."""
    tensor, out = torch.arange(8, dtype=torch.int16), torch.full((2 * 8 + 2,), -5)
    addresses = torch.tensor([tensor.data_ptr(), address], dtype=torch.uint64)
    with pytest.raises(OutOfBounds, match=r"^a kernel reads \d+ bytes at the address -?0x\w+, not all of them"):
        by_hand.reads_at_addresses[(2,)](addresses, out, 8, 2, 8)
    assert out[:8].tolist() == list(range(8))
    with pytest.raises(OutOfBounds, match="at the address"):
        by_hand.writes_at_addresses[(2,)](addresses, 4)
    assert killed_by(lambda: Quiet(by_hand.writes_at_addresses.triton)[(2,)](addresses, 4))


def test_addresses_that_are_not_aligned_alike_are_no_block() -> None:
    tensor = torch.arange(8, dtype=torch.int16)
    addresses = torch.tensor([tensor.data_ptr(), tensor.data_ptr() + 1], dtype=torch.uint64)
    with pytest.raises(EngineError, match="addresses that are not aligned alike"):
        by_hand.reads_at_addresses[(1,)](addresses, torch.zeros(10, dtype=torch.int64), 8, 2, 8)


# What arrays do not cover.


def test_a_kernel_that_arrays_do_not_cover_runs_in_triton() -> None:
    cases = (
        (by_hand.with_atomics, (), [1, 0, 0, 0], "line .*: tl.atomic_add"),
        (by_hand.calls_one_with_atomics, (), [1, 5, 0, 0], "it calls with_atomics: line .*: tl.atomic_add"),
        (by_hand.chain, (4,), [0, 0, 7, 0], "line .*: a chain of comparisons"),
    )
    for kernel, more, expected, reason in cases:
        x = torch.zeros(4, dtype=torch.int32)
        kernel[(1,)](x, *more)
        assert x.tolist() == expected
        with pytest.raises(AssertionError, match=reason):
            same(kernel, (1,), x, *more)


def test_floats_run_in_triton() -> None:
    x = torch.tensor([1.5])
    by_hand.with_floats[(1,)](x)
    assert x.tolist() == [3.0]
    assert by_hand.with_floats.refused == "the argument x_ptr of type float32 on cpu"


def test_a_kernel_that_kills_triton_does_not_kill_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_hand.dies, "triton", Quiet(by_hand.dies.triton))
    with pytest.raises(KernelDied, match="dies killed the process: SIG"):
        by_hand.dies[(1,)](torch.zeros(1, dtype=torch.int32), 2**45)


def test_a_block_has_no_truth() -> None:
    """Triton compiles no such kernel, and its interpreter takes every block for true."""
    with pytest.raises(EngineError, match=r"true_block needs Triton's interpreter .*SLOTPROOF_KERNELS=triton"):
        by_hand.true_block[(1,)](torch.zeros(4, dtype=torch.int32), 4)


def test_an_error_names_the_line_of_the_kernel() -> None:
    kernel, x = by_hand.two_dimensions, torch.zeros(64, dtype=torch.int32)
    with pytest.raises(ValueError, match="must be a power of 2") as found:
        kernel[(1,)](x, x, x, 3, 4)
    last = [entry for entry in found.traceback if str(entry.path).endswith("array_kernels.py")][-1]
    assert str(last.statement).strip().startswith("rows, columns = tl.arange")


# Our own kernels.


@pytest.mark.parametrize("page", [1, 2, 3, 16])
@pytest.mark.parametrize("batch", BATCHES)
def test_our_kernels(batch: str, page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(BATCHES[batch], page, "cpu", unmapped=2)
    grown = World([(seq, seq + 1) for _, seq in BATCHES[batch]], page, "cpu")

    def outputs() -> list[torch.Tensor]:
        found = [*world.extend("triton", world.swa), *world.extend("triton", None)]
        found += [*grown.decode("triton", grown.swa), *grown.decode("triton", None)]
        mapping, swa = world.mapping.clone(), torch.full((len(world.full),), -1)
        kernels.backend(torch.device("cpu"), "triton").detach(mapping, world.full, swa, page)
        return [*found, mapping, swa]

    in_triton = outputs()
    made = functools.cache(lambda kernel: ArrayKernel(kernel, triton.jit))
    monkeypatch.setattr(kernels, "jit", made)
    on_arrays = outputs()
    assert all(made(k).refused in ("", None) for k in (kernels._extend_kernel, kernels._decode_kernel))
    for expected, got in zip(in_triton, on_arrays, strict=True):
        assert torch.equal(expected, got)


# The kernels of releases.

NAMES = ("alloc_extend_kernel", "alloc_decode_kernel", "get_last_loc_kernel")


def downloaded(release: str) -> Path:
    try:
        return download.release(release)
    except EngineError as error:
        pytest.skip(str(error))


FOLDERS = ("srt/mem_cache", "kernels/ops/memory")  # where a release has these kernels: up to 0.5.16, and from 0.5.17 on
LAUNCHED = "0.5.21"  # the last release whose allocators launch kernels on CPU tensors


@pytest.fixture(scope="module", params=some(RELEASES))
def released(request: pytest.FixtureRequest, paths: Iterator[Path]) -> dict[str, ArrayKernel]:
    """The release's kernels, with their own source."""
    root = downloaded(request.param) / "sglang"
    found = {}
    for file in sorted(file for folder in FOLDERS for file in (root / folder).rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and node.name in NAMES:
                source = f"import triton\nimport triton.language as tl\n{ast.get_source_segment(text, node)}\n"
                found[node.name] = ArrayKernel(vars(module_of(source, next(paths)))[node.name], triton.jit)
    assert set(found) == set(NAMES)
    return found


@st.composite
def batches(draw: st.DrawFn, decode: bool) -> tuple[Any, ...]:
    """Rows that grow, a free list of any length that may be a view, and room for the slots."""
    page = draw(st.sampled_from([1, 2, 4, 16]))
    rows = draw(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=5))
    prefixes = torch.tensor([prefix for prefix, _ in rows])
    lengths = torch.tensor([prefix + (1 if decode else more) for prefix, more in rows])
    last = torch.tensor([draw(st.integers(1, 30)) * page + prefix % page - 1 for prefix, _ in rows])
    total = int((lengths - prefixes).sum())
    need = int(((lengths + page - 1) // page - (prefixes + page - 1) // page).sum())
    size = draw(st.one_of(st.just(need), st.integers(0, need + 3)))
    start = draw(st.integers(0, 2))
    free = (torch.randperm(size + start + 1) + 1)[start : start + size]
    if draw(st.booleans()):
        free = free.clone()
    if draw(st.booleans()):
        last = last.to(torch.int32)
    out = torch.full((total,), -1)
    upper = 1 << (len(rows) - 1).bit_length()
    return prefixes, lengths, last, free, out, upper, page


@pytest.mark.soak
@pytest.mark.engine
@given(data=st.data())
def test_the_allocators_of_releases(data: st.DataObject, released: dict[str, ArrayKernel]) -> None:
    prefixes, *more = data.draw(batches(decode=False))
    raised = same(released["alloc_extend_kernel"], (len(prefixes),), prefixes, *more)
    event(f"extend: {raised and str(raised).split()[1:3]}")
    prefixes, *more = data.draw(batches(decode=True))
    raised = same(released["alloc_decode_kernel"], (len(prefixes),), *more)
    event(f"decode: {raised and str(raised).split()[1:3]}")


@pytest.mark.engine
@given(rows=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 7)), min_size=1, max_size=6), wide=st.booleans())
def test_the_last_slots_of_releases(
    rows: Sequence[tuple[int, int]], wide: bool, released: dict[str, ArrayKernel]
) -> None:
    table = torch.arange(4 * 8, dtype=torch.int32).reshape(4, 8) * 3
    kind = torch.int64 if wide else torch.int32
    row, prefix = (torch.tensor(column, dtype=kind) for column in zip(*rows, strict=True))
    more = (torch.full_like(prefix, -7), len(rows), table.stride(0), 256)
    assert same(released["get_last_loc_kernel"], (1,), table, row, prefix, *more) is None


REPLAY = """
import json, sys
from conformance.traces import trace_files as traces
from conformance.engines import registry
from conformance.search.replay import row
loaded = registry.load("sglang", release=sys.argv[1])
names = [name for name in traces.names() if traces.load(name).trace.stem in ("allocator", "swa_mapping")]
rows = [row(traces.load(name), loaded) for name in names]
print(json.dumps([[r["verdict"], r["step"], r["law"]] for r in rows]))
"""


LAUNCHES = """
import json, sys
from conformance.engines.array_tl import launch
from conformance.engines import registry
names = []
real = launch.ArrayKernel.run
launch.ArrayKernel.run = lambda kernel, *args, **more: (names.append(kernel.fn.__name__), real(kernel, *args, **more))
engine = registry.load("sglang", release=sys.argv[1]).makers["allocator"]({
    "page_size": 2, "size": 4, "rows": 2, "need_sort": False})
engine.decode([4], engine.extend([0], [3], [-1])[-1:])
print(json.dumps(names))
"""


@pytest.mark.soak
@pytest.mark.engine
@pytest.mark.parametrize(
    ("release", "names"), [(LAUNCHED, ["alloc_extend_kernel", "alloc_decode_kernel"]), (RELEASES[-1], [])]
)
def test_which_releases_launch_kernels_on_the_cpu(release: str, names: list[str]) -> None:
    launched: Any = driven(release, LAUNCHES)
    assert launched == names


def replayed(kernels_on: str) -> subprocess.CompletedProcess[str]:
    """The verdicts of the traces of allocators, in a process of its own."""
    environment = {**os.environ, "SLOTPROOF_KERNELS": kernels_on}
    command = [sys.executable, "-c", REPLAY, LAUNCHED]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.soak
@pytest.mark.engine
def test_traces_have_the_verdicts_that_they_have_in_triton() -> None:
    downloaded(LAUNCHED)
    on_arrays, in_triton = replayed("array"), replayed("triton")
    assert on_arrays.stdout == in_triton.stdout != "", on_arrays.stderr
    assert "lawful_call_is_answered" in on_arrays.stdout


@pytest.mark.soak
def test_a_wrong_choice_of_kernels_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "sglang" / "srt" / "mem_cache").mkdir(parents=True)
    code = "import sys, pathlib; from conformance.engines.sglang import PLUGIN as plugin\n"
    code += "plugin.load(None, pathlib.Path(sys.argv[1]), 'cpu')"
    environment = {**os.environ, "SLOTPROOF_KERNELS": "numpy"}
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    assert "SLOTPROOF_KERNELS=numpy: it is either array or triton" in ran.stderr

"""Each Triton kernel against its torch truth: ragged rows, poisoned outputs, nothing written where nothing belongs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from impl import kernels

pytest.importorskip("triton")

POISON = -7777
PAGE_SIZES = (1, 2, 4, 16, 64)
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")],
    ),
]
# (prefix, seq) a row: zero-length extends, rows inside one page, over page ends, batches that are no power of two
BATCHES = {
    "one": [(0, 1)],
    "one long": [(0, 1500)],
    "nothing": [(3, 3)],
    "ragged": [(0, 7), (5, 5), (3, 4), (0, 0), (16, 49), (63, 129), (64, 64)],
    "tiles": [(1, 3000), (0, 1), (2, 2)],
}


class World:
    """Rows with the pages a prefix holds, page lists for what is new, and a mapping with a poisoned surplus."""

    def __init__(
        self, rows: list[tuple[int, int]], page: int, device: str, unmapped: int = -1, trimmed: int = -1,
        dtype: torch.dtype = torch.int64,
    ) -> None:  # fmt: skip
        self.page, self.device = page, device
        held = [-(-prefix // page) for prefix, _ in rows]
        new = sum(-(-seq // page) - h for (_, seq), h in zip(rows, held, strict=True))
        pages = torch.randperm(sum(held) + new, generator=torch.Generator().manual_seed(page)) + 1
        self.full, self.swa = pages[sum(held) :].to(device), pages.flip(0)[sum(held) :].to(device)
        swa_held = pages.flip(0)[: sum(held)]
        self.mapping = torch.zeros((len(pages) + 1) * page + 1, dtype=torch.int64)
        self.mapping[-1] = -1
        grid = kernels.page_rows(self.mapping, page)
        grid[pages[: sum(held)]] = swa_held[:, None] * page + torch.arange(page)
        self.last = torch.full((len(rows),), -1)
        for i, (prefix, _) in enumerate(rows):
            if prefix:
                last_page = pages[sum(held[: i + 1]) - 1]
                self.last[i] = last_page * page + (prefix - 1) % page
                if i == unmapped:
                    grid[last_page] = 0
                if i == trimmed:  # only what lies above its last token still names its SWA page
                    grid[last_page, : (prefix - 1) % page + 1] = 0
        self.mapping, self.last = self.mapping.to(device), self.last.to(device, dtype)
        self.prefix, self.seq = (torch.tensor(lens, device=device, dtype=dtype) for lens in zip(*rows, strict=True))
        self.tokens, self.longest = sum(s - p for p, s in rows), max(s - p for p, s in rows)

    def extend(self, backend: str, swa: torch.Tensor | None, start: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        out, mapping = torch.full((self.tokens,), POISON, device=self.device), self.mapping.clone()
        kernels.backend(torch.device(self.device), backend).extend(
            self.prefix, self.seq, self.last, self.full, swa, None if swa is None else mapping, out, self.page,
            self.longest, start,
        )  # fmt: skip
        return out.cpu(), mapping.cpu()

    def decode(self, backend: str, swa: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        out, mapping = torch.full((len(self.seq),), POISON, device=self.device), self.mapping.clone()
        kernels.backend(torch.device(self.device), backend).decode(
            self.seq, self.last, self.full, swa, None if swa is None else mapping, out, self.page
        )
        return out.cpu(), mapping.cpu()


def same(truth: tuple[torch.Tensor, ...], kernel: tuple[torch.Tensor, ...]) -> None:
    for expected, got in zip(truth, kernel, strict=True):
        assert torch.equal(expected, got)
        assert not bool((expected == POISON).any())


@pytest.mark.soak(but=30)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("page", [*PAGE_SIZES, 3])
@pytest.mark.parametrize("batch", BATCHES)
def test_extend(batch: str, page: int, device: str) -> None:
    for unmapped, trimmed in ((-1, -1), (2, -1), (-1, 2)):
        world = World(BATCHES[batch], page, device, unmapped, trimmed)
        same(world.extend("torch", world.swa), world.extend("triton", world.swa))
        same(world.extend("torch", None), world.extend("triton", None))


@pytest.mark.soak
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("tokens", "page"),
    [(16, 1), (64, 4), *(pytest.param(*one, marks=pytest.mark.soak) for one in ((16, 4), (32, 3), (32, 1), (64, 3)))],
)
def test_more_rows_than_a_program_reads_at_a_time(
    tokens: int, page: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Extends and decodes of 45 rows of 0 to 60 tokens, with programs of few tokens that read the lengths of 4 rows."""
    for name, size in {"ROWS": 4, "FEW_ROWS": 4, "TOKENS": tokens}.items():
        monkeypatch.setattr(kernels, name, size)
    monkeypatch.setattr(kernels, "BLOCK", 16)
    rows = [(i * 7 % 40, i * 7 % 40 + (0, 1, 60, 15, 0, 17, 32)[i % 7]) for i in range(45)]
    world = World(rows, page, device, unmapped=1, trimmed=2)
    same(world.extend("torch", world.swa), world.extend("triton", world.swa))
    world = World([(n, n + 1) for n, _ in rows], page, device, unmapped=1, trimmed=2)
    same(world.decode("torch", world.swa), world.decode("triton", world.swa))


def test_one_long_row_makes_no_more_programs_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of 100,000 tokens, of which a program does some hundreds, in a batch with 255 rows of one token."""
    launched: list[tuple[int, ...]] = []

    class Kernel:
        def __init__(self, _: object) -> None:
            pass

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            launched.append(grid)
            return lambda *_, **__: None

    world = World([(0, 100_000), *[(0, 1)] * 255], 64, "cpu")
    monkeypatch.setattr(kernels, "jit", Kernel)
    world.extend("triton", None)
    needed = sum(
        -(-(seq - prefix) // kernels.TOKENS)
        for prefix, seq in zip(world.prefix.tolist(), world.seq.tolist(), strict=True)
    )
    assert [len(grid) for grid in launched] == [1]
    assert needed <= launched[0][0] <= needed + 256
    World([(0, kernels.TOKENS)] * 7, 64, "cpu").extend("triton", None)
    assert launched[1:] == [(7,)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("page", PAGE_SIZES)
@pytest.mark.parametrize("tail", [0, 1, 2, 5, 64, 65, 129, 130])
def test_extend_maps_only_the_tail(tail: int, page: int, device: str) -> None:
    world = World([(0, 130)], page, device)
    pages = len(world.full) - (130 - tail) // page if tail else 0
    swa = world.swa[:pages]
    out, mapping = world.extend("torch", swa, 130 - tail)
    same((out, mapping), world.extend("triton", swa, 130 - tail))
    assert not mapping[out[: 130 - tail]].any()
    assert torch.equal(mapping[out[130 - tail :]] % page, out[130 - tail :] % page)
    assert bool((mapping[out[130 - tail :]] >= page).all())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("page", [*PAGE_SIZES, 3])
@pytest.mark.parametrize("rows", [1, 3, 64, 1500])
def test_decode(rows: int, page: int, device: str) -> None:
    lens = [(i * 7) % 40 for i in range(rows)]
    world = World([(n, n + 1) for n in lens], page, device, unmapped=1, trimmed=2)
    same(world.decode("torch", world.swa), world.decode("triton", world.swa))
    same(world.decode("torch", None), world.decode("triton", None))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("page", [*PAGE_SIZES, 3])
def test_detach(page: int, device: str) -> None:
    """Half of the pages mapped, some of those only from inside the page on; the entries of other pages stay."""
    mapping = torch.zeros(100 * page + 1, dtype=torch.int64)
    mapping[-1] = -1
    grid = kernels.page_rows(mapping, page)
    grid[1:100:2] = torch.arange(99, 49, -1)[:, None] * page + torch.arange(page)
    grid[3, : page // 2] = 0
    pages = torch.tensor([3, 98, 1, 4, 51], device=device)
    for n in (0, 1, 5):
        got = []
        for backend in ("torch", "triton"):
            left, swa = mapping.clone().to(device), torch.full((n,), POISON, device=device)
            kernels.backend(torch.device(device), backend).detach(left, pages[:n], swa, page)
            got.append((swa.cpu(), left.cpu()))
        same(*got)
        assert got[0][0].tolist() == [98, 0, 99, 0, 74][:n]
        assert int((got[0][1] == mapping).sum()) == len(mapping) - int((grid[pages[:n].cpu()] > 0).sum())


@pytest.mark.soak(but=24)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("page", [*PAGE_SIZES, 3])
@pytest.mark.parametrize("pages", [0, 1, 7, 1500])
def test_release(pages: int, page: int, device: str) -> None:
    """Pages of rows, of which every third has no SWA page; what is not released stays as it is."""
    draws = torch.Generator().manual_seed(page)
    mapping = torch.zeros(2000 * page + 1, dtype=torch.int64)
    mapping[-1] = -1
    taken = torch.randperm(1999, generator=draws)[:pages] + 1
    has = torch.arange(pages) % 3 > 0
    swa = torch.where(has, torch.randperm(1999, generator=draws)[:pages] + 1, 0)
    grid = kernels.page_rows(mapping, page)
    grid[taken] = torch.where(has, swa * page, 0)[:, None] + torch.arange(page) * has[:, None]
    heads = torch.randperm(3 * pages, generator=draws)[:pages]
    slots = torch.full((3 * pages,), POISON, dtype=torch.int32)
    slots[heads] = (taken * page).int()
    into = torch.where(has, has.cumsum(0) - 1, -1)
    for listed in (True, False):
        for wanted, kept in ((True, True), (False, True), (True, False)):
            got = []
            for backend in ("torch", "triton"):
                left = mapping.clone().to(device)
                full = torch.full((pages,), POISON, device=device) if wanted else None
                out = torch.full((pages + 1,), POISON, device=device)[: int(has.sum()) if listed else pages]
                kernels.backend(torch.device(device), backend).release(
                    (slots if listed else taken * page).to(device), heads.to(device) if listed else None,
                    into.to(device) if listed and kept else None, left,
                    None if full is None else kernels.Freed(full, 0, pages),
                    kernels.Freed(out, 0, out.numel()) if kept else None, page,
                )  # fmt: skip
                got.append([x.cpu() for x in (left, full, out if kept else None) if x is not None])
            same(tuple(got[0]), tuple(got[1]))
            assert not kernels.page_rows(got[0][0], page)[taken].any()
            if wanted:
                assert got[0][1].tolist() == taken.tolist()
            if kept:
                assert got[0][-1].tolist() == swa[has if listed else slice(None)].tolist()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("call", ["put", "release", "release by heads"])
def test_pages_that_were_free_already_are_counted(call: str, device: str) -> None:
    """A pool of 9 pages, of which 7, 8 and 9 are free, has the entries of an earlier free of 2 and 5 at 7's place."""
    places = torch.arange(-1, 9)
    places[0] = 1
    places[2], places[5] = 3 * kernels.SERIAL + 6, 3 * kernels.SERIAL + 1
    lawful, twice, free, none = [1, 2, 5], [3, 4, 3, 6], [5, 8, 9], [0, 10, 6]
    for given, wrong in ((lawful, 0), (twice, 1), (free, 2), (none, 2), ([8, 8], 2)):
        got = []
        for backend in ("torch", "triton"):
            stack = torch.arange(1, 10, device=device)
            entries = places.clone().to(device)
            freed = kernels.Freed(stack, 6 - len(given), len(given), entries, 4)
            pages, at = torch.tensor(given, device=device), torch.arange(len(given), device=device)
            ops = kernels.backend(torch.device(device), backend)
            if call == "put":
                ops.put(pages.int(), freed)
            else:
                ops.release(pages * 4, at if "heads" in call else None, None, None, freed, None, 4)
            assert int(entries[0]) == 1 + wrong, (backend, given)
            assert stack[6 - len(given) : 6].tolist() == given
            if given == lawful:
                assert entries[torch.tensor(given)].tolist() == [4 * kernels.SERIAL + at for at in (3, 4, 5)]
                got.append((stack.cpu(), entries.cpu()))
        if got:
            same(*got)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_swa_pages_that_were_free_already_are_counted(backend: str, device: str) -> None:
    """Full pages 1 to 4 name SWA pages of a pool of 9, of which 7, 8 and 9 are free; page 0 is that of no SWA page."""
    ops, slots = kernels.backend(torch.device(device), backend), torch.arange(1, 5, device=device) * 4
    for named, wrong in (([1, 2, 5, 6], 0), ([1, 8, 2, 9], 2), ([3, 3, 4, 3], 2), ([1, 0, 2, 3], 1)):
        mapping = torch.zeros(6 * 4 + 1, dtype=torch.int64)
        kernels.page_rows(mapping, 4)[1:5] = torch.tensor(named)[:, None] * 4 + torch.arange(4)
        mapping[mapping < 4] = 0
        stack, places = torch.arange(1, 10, device=device), torch.arange(-1, 9, device=device).clamp(min=0)
        full = kernels.Freed(torch.zeros(4, dtype=torch.int64, device=device), 0, 4, torch.zeros_like(stack))
        ops.release(slots, None, None, mapping.clone().to(device), full, kernels.Freed(stack, 2, 4, places), 4)
        assert int(places[0]) == wrong, named
        assert stack[2:6].tolist() == named


def test_where_one_list_alone_has_entries_nothing_is_looked_at() -> None:
    """The kernel has no memory in which it could look for the pages of the other list."""
    stack, mapping = torch.arange(1, 10), torch.zeros(6 * 4 + 1, dtype=torch.int64)
    full = kernels.Freed(torch.zeros(4, dtype=torch.int64), 0, 4, torch.zeros(10, dtype=torch.int64))
    kernels.page_rows(mapping, 4)[1:5] = (torch.arange(1, 5) * 4)[:, None] + torch.arange(4)
    kernels.release_triton(torch.arange(1, 5) * 4, None, None, mapping, full, kernels.Freed(stack, 2, 4), 4)
    assert full.pages.tolist() == stack[2:6].tolist() == [1, 2, 3, 4]
    assert full.places is not None
    assert not full.places.any()


def test_no_count_makes_a_kernel_read_past_the_page_list() -> None:
    """Lengths that need more pages than are given: padding slots come out, the memory behind the list does not."""
    world = World([(0, 64), (0, 64)], 16, "cpu")
    backing = torch.cat([world.full[:2], torch.full((6,), POISON)])
    out = torch.full((128,), POISON)
    kernels.extend_triton(world.prefix, world.seq, world.last, backing[:2], None, None, out, 16, 64)
    assert int(out.min()) >= 0
    assert int(out[32:].max()) < 16


def test_engines_may_pass_32_bit_lengths_and_slots() -> None:
    wide, narrow = (World(BATCHES["ragged"], 16, "cpu", dtype=dtype) for dtype in (torch.int64, torch.int32))
    for backend in ("torch", "triton"):
        same(wide.extend("torch", wide.swa), narrow.extend(backend, narrow.swa))
        same(wide.decode("torch", wide.swa), narrow.decode(backend, narrow.swa))


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from impl import kernels, lock_kernels

DETACH = dict(P=16, WIDTH=16, TILE=64)
DECODE = dict(DETACH, HAS_SWA=True, ROWS=256)
EXTEND = dict(DECODE, TILE=1024, SHORT=False)
PUT = dict(TILE=1024)
RELEASE = dict(DETACH, HEADS=True, INTO=True, FULL=True, SWA=True, LOOKS=True)
UNLOCK = dict(FULL=True, WINDOWED=True, STATE=True, COUNTING=False, WIDTH=8)
LOCK = dict(WINDOWED=True, STATEFUL=True, COUNTING=False, WIDTH=8)
LENGTHS = ("prefix_ptr", "seq_ptr", "last_ptr", "slots_ptr")
KERNELS = {
    kernels._extend_kernel: EXTEND, kernels._decode_kernel: DECODE, kernels._detach_kernel: DETACH,
    kernels._release_kernel: RELEASE, kernels._put_kernel: PUT,
    lock_kernels._acquire_kernel: LOCK, lock_kernels._release_kernel: UNLOCK,
}
for kernel, const in KERNELS.items():
    for lengths in ("*i64", "*i32"):
        jitted = kernels.jit(kernel)
        kinds = {
            name: "constexpr" if name in const
            else lengths if name in LENGTHS
            else "*i1" if name == "mamba_ptr"
            else "*i64" if name.endswith("_ptr")
            else "i64" if name.endswith("entry")
            else "i32"
            for name in jitted.arg_names
        }
        consts = {(jitted.arg_names.index(name),): value for name, value in const.items()}
        assert "cubin" in triton.compile(ASTSource(jitted, kinds, consts), target=GPUTarget("cuda", 90, 32)).asm
"""


def test_every_kernel_compiles_for_a_gpu(tmp_path: Path) -> None:
    """The interpreter is lenient; the compiler needs no GPU. In a process of its own: this one interprets."""
    env = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", COMPILE], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="backend"):
        kernels.backend(torch.device("cpu"), "cuda")

"""Our allocators and SGLang's, the same calls with the same arguments, one beside the other in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.timing import Work, interleaved
from conformance.subjects import releases, sglang
from conformance.subjects.sglang import SGLang
from impl.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from impl.swa_mapping import SWATokenToKVPoolAllocator

TOKENS = 1 << 18  # of each pool
PROMPT = 100  # tokens of a row, and up to 15 more
BATCHES = (1, 16, 256)
KNOWN = "free by rows"
PLAIN = {KNOWN: "free"}  # what SGLang is asked for where it has no such call


@dataclass(frozen=True)
class Case:
    """One call on one pool, or on two and their mapping."""

    pools: str
    call: str
    page_size: int
    batch: int


@dataclass(frozen=True)
class Row:
    """A case with both medians. ``interpreted``: SGLang's side ran in Triton's interpreter, so no ratio is given."""

    pools: str
    call: str
    page_size: int
    batch: int
    ours_us: float
    sglang_us: float
    ratio: float | None
    interpreted: bool
    repetitions: int


def load(release: str) -> SGLang:
    """The release, downloaded if it is not here yet; SubjectError in one line if it cannot be had."""
    return sglang.load(releases.release(release), release)


def cases() -> Iterator[Case]:
    """Page size 1 has no calls by rows in SGLang; whole pages are asked for there alone."""
    calls = {1: ("alloc", "free"), 16: ("alloc_extend", "alloc_decode", "free")}
    for pools in ("one", "two"):
        for page_size, names in calls.items():
            for name in (*names, KNOWN):
                yield from (Case(pools, name, page_size, batch) for batch in BATCHES)


def measure(engine: SGLang, case: Case, device: torch.device, budget_s: float) -> Row:
    """Times one case on both sides."""
    mine = WORKS[case.call](ours(case, device), case, device)
    theirs = WORKS[PLAIN.get(case.call, case.call)](_theirs(engine, case, device), case, device)
    timing = interleaved([mine, theirs], device, budget_s)
    ours_us, sglang_us = timing.medians
    interpreted = engine.interpreted and case.call in ("alloc_extend", "alloc_decode")
    ratio = None if interpreted else round(sglang_us / ours_us, 3)
    sides = (round(ours_us, 2), round(sglang_us, 2), ratio)
    return Row(case.pools, case.call, case.page_size, case.batch, *sides, interpreted, timing.repetitions)


def ours(case: Case, device: torch.device) -> Any:
    """Our allocator for a case."""
    common: tuple[Any, ...] = (torch.bfloat16, device, None, False)
    if case.pools == "two":
        return SWATokenToKVPoolAllocator(TOKENS, TOKENS, case.page_size, *common)
    if case.page_size == 1:
        return TokenToKVPoolAllocator(TOKENS, *common)
    return PagedTokenToKVPoolAllocator(TOKENS, case.page_size, *common)


def _theirs(engine: SGLang, case: Case, device: torch.device) -> Any:
    if case.pools == "two":
        return engine.swa_allocator(TOKENS, TOKENS, case.page_size, False, str(device))
    return engine.allocator(TOKENS, case.page_size, False, str(device))


class _Rows:
    """A batch of rows: their lengths on host and device."""

    def __init__(self, allocator: Any, case: Case, device: torch.device) -> None:
        self.allocator, self.case, self.device = allocator, case, device
        self.host = PROMPT + torch.arange(case.batch) % 16
        self.lens = self.host.to(device)
        self.none_host, self.none = torch.zeros_like(self.host), torch.zeros_like(self.lens)
        self.total = int(self.host.sum())

    def fill(self, last: Tensor | None = None) -> Tensor:
        """Every row from nothing to its length."""
        if self.case.page_size == 1:
            return self._granted(self.allocator.alloc(self.total))
        last = self.none - 1 if last is None else last
        lens = (self.none, self.none_host, self.lens, self.host)
        return self._granted(self.allocator.alloc_extend(*lens, last, self.total))

    @staticmethod
    def _granted(slots: Tensor | None) -> Tensor:
        if slots is None:
            raise AssertionError("the pool is too small for this benchmark")
        return slots


class Alloc(_Rows):
    """One token for each row, at page size 1."""

    def prepare(self) -> None:
        """Nothing."""

    def call(self, _: None) -> Tensor:
        """The timed call."""
        return self._granted(self.allocator.alloc(self.case.batch))

    def undo(self, _: None, slots: Tensor) -> None:
        """All free again."""
        self.allocator.free(slots)


class Extend(_Rows):
    """Every row from nothing to its length."""

    def prepare(self) -> Tensor:
        """A new row has no last slot."""
        return self.none - 1

    def call(self, last: Tensor) -> Tensor:
        """The timed call."""
        return self.fill(last)

    def undo(self, _: Tensor, slots: Tensor) -> None:
        """All free again."""
        self.allocator.free(slots)


class Decode(_Rows):
    """Every row by one token; the rows are at any place of their last page."""

    def __init__(self, allocator: Any, case: Case, device: torch.device) -> None:
        super().__init__(allocator, case, device)
        self.last = self.fill()[self.lens.cumsum(0) - 1]
        self.after, self.after_host = self.lens + 1, self.host + 1

    def prepare(self) -> None:
        """Nothing."""

    def call(self, _: None) -> Tensor:
        """The timed call."""
        return self._granted(self.allocator.alloc_decode(self.after, self.after_host, self.last))

    def undo(self, _: None, slots: Tensor) -> None:
        """The pages that are new are free again."""
        fresh = slots[slots % self.case.page_size == 0]
        if fresh.numel():
            self.allocator.free(fresh)


class Free(_Rows):
    """Every row ends; ``known``: the caller says how long the rows are."""

    known = False

    def prepare(self) -> Tensor:
        """The rows come back."""
        return self.fill()

    def call(self, slots: Tensor) -> None:
        """The timed call."""
        if self.known:
            lens = self.host.tolist()
            self.allocator.free(slots, row_lens=lens, swa_lens=lens)
        else:
            self.allocator.free(slots)

    def undo(self, slots: Tensor, _: None) -> None:
        """Nothing is left."""


class FreeKnown(Free):
    """The same, with the lengths."""

    known = True


WORKS: dict[str, Callable[[Any, Case, torch.device], Work]] = {
    "alloc": Alloc,
    "alloc_extend": Extend,
    "alloc_decode": Decode,
    "free": Free,
    KNOWN: FreeKnown,
}

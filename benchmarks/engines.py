"""Our allocators and an engine's, the same calls with the same arguments, in turn in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from benchmarks.timing import Work, interleaved
from conformance.driver.protocol import EngineError
from conformance.engines import registry
from impl.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from impl.swa_mapping import SWATokenToKVPoolAllocator

POOLS = (10_000, 500_000, 4_000_000)  # tokens of each pool
PROMPT = 100  # tokens of a row, and up to 15 more
BATCHES = (1, 16, 64, 256, 1024)
PAGED = 64  # tokens of a page, beside 1
BY_ROWS = "free by rows"
PLAIN = {BY_ROWS: "free"}  # the engine's call where it has none that corresponds
INTERPRETED = ("alloc_extend", "alloc_decode")  # calls that an engine may do with Triton kernels


class Locks(Protocol):
    """An engine's tree with locks."""

    def batch(self, requests: Sequence[int]) -> Callable[[], None]:
        """A function that locks the nodes with these numbers, and gives every lock back."""


class Comparison(Protocol):
    """What an engine's plug-in offers for benchmarks, by its method ``comparison(release, device)``.

    ``label``: its name and release. ``interpreted``: its Triton kernels run in Triton's interpreter.
    """

    label: str
    interpreted: bool

    def allocator(self, size: int, page_size: int, need_sort: bool) -> Any:
        """Its allocator of one pool of so many tokens."""

    def swa_allocator(self, size: int, size_swa: int, page_size: int, need_sort: bool) -> Any:
        """Its allocator of a full and an SWA pool."""

    def pages(self, allocator: Any, count: int) -> Tensor:
        """The slots of so many new whole pages, int64, shape (count * page size), by no call that Triton interprets."""

    def lock_tree(self, paths: Iterable[Sequence[int]], span: int, window: int) -> Locks:
        """Its tree, with a node of ``span`` tokens at the end of each path. EngineError if it cannot be built."""

    def trees(self, tokens: int, page_size: int) -> list[tuple[str, Any]]:
        """Our prefix cache behind its interface, then its own trees, by name: see ``trees.Tree``. EngineError if it has
        none.
        """


def comparable() -> list[str]:
    """The engines that can be compared with our implementation."""
    return [name for name in registry.names() if hasattr(registry.plugin(name), "comparison")]


def load(engine: str | None, release: str | None, device: torch.device) -> Comparison:
    """An engine to compare with, by default the newest release of the first that there is. EngineError if none is."""
    names = comparable()
    if not names:
        raise EngineError("no engine offers a comparison")
    plugin = registry.plugin(engine or names[0])
    if plugin.name not in names:
        raise EngineError(f"{plugin.name} offers no comparison: there are {', '.join(names)}")
    found: Comparison = getattr(plugin, "comparison")(release or plugin.releases[-1], str(device))  # noqa: B009
    return found


@dataclass(frozen=True)
class Case:
    """One call on one pool, or on two and their mapping; each pool has so many ``tokens``."""

    pools: str
    call: str
    page_size: int
    batch: int
    tokens: int

    @property
    def fits(self) -> bool:
        """The rows of the batch fit into a pool, with a page more for each."""
        return self.batch * (PROMPT + 16 + self.page_size) <= self.tokens


@dataclass(frozen=True)
class Row:
    """A case with both medians in microseconds, and the engine's time divided by our time.

    ``engine_us`` is None where there is no peer: the engine has Triton kernels alone, which a CPU only interprets.
    """

    pools: str
    call: str
    page_size: int
    batch: int
    tokens: int
    own_us: float
    engine_us: float | None
    ratio: float | None
    repetitions: int


def cases() -> Iterator[Case]:
    """What is timed. At page size 1 there is only ``alloc``, which at other sizes hands out whole pages."""
    calls = {1: ("alloc", "free", BY_ROWS), PAGED: (*INTERPRETED, "free", BY_ROWS)}
    for pools in ("one", "two"):
        for page_size, names in calls.items():
            for name in names:
                every = (Case(pools, name, page_size, batch, tokens) for batch in BATCHES for tokens in POOLS)
                yield from (case for case in every if case.fits)


def measure(engine: Comparison, case: Case, device: torch.device, budget_s: float) -> Row:
    """Times one case on both sides."""
    works = [WORKS[case.call](own_allocator(case, device), case, device)]
    if not (engine.interpreted and case.page_size > 1):  # at larger pages it allocates rows by its Triton kernels alone
        works.append(WORKS[PLAIN.get(case.call, case.call)](_allocator_of(engine, case), case, device))
    elif case.call not in INTERPRETED:
        allocator = _allocator_of(engine, case)
        works.append(Free(allocator, case, device, pages=partial(engine.pages, allocator)))
    timing = interleaved(works, device, budget_s)
    own_us, *others = timing.medians
    engine_us = round(others[0], 2) if others else None
    ratio = round(others[0] / own_us, 3) if others else None
    return Row(
        **asdict(case), own_us=round(own_us, 2), engine_us=engine_us, ratio=ratio, repetitions=timing.repetitions
    )


def own_allocator(case: Case, device: torch.device) -> Any:
    """Our allocator for a case."""
    common: tuple[Any, ...] = (torch.bfloat16, device, None, False)
    if case.pools == "two":
        return SWATokenToKVPoolAllocator(case.tokens, case.tokens, case.page_size, *common)
    if case.page_size == 1:
        return TokenToKVPoolAllocator(case.tokens, *common)
    return PagedTokenToKVPoolAllocator(case.tokens, case.page_size, *common)


def _allocator_of(engine: Comparison, case: Case) -> Any:
    if case.pools == "two":
        return engine.swa_allocator(case.tokens, case.tokens, case.page_size, False)
    return engine.allocator(case.tokens, case.page_size, False)


class _Rows:
    """A batch of rows: their lengths on the host and on the device."""

    def __init__(self, allocator: Any, case: Case, device: torch.device) -> None:
        self.allocator, self.case, self.device = allocator, case, device
        self.host = PROMPT + torch.arange(case.batch) % 16
        self.lens = self.host.to(device)
        self.none_host, self.none = torch.zeros_like(self.host), torch.zeros_like(self.lens)
        self.total = int(self.host.sum())

    def fill(self, last: Tensor | None = None) -> Tensor:
        """Slots for all tokens of every row."""
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
    """Allocates one token for each row, at page size 1."""

    def prepare(self) -> None:
        """Nothing is needed."""

    def call(self, _: None) -> Tensor:
        """The timed call."""
        return self._granted(self.allocator.alloc(self.case.batch))

    def undo(self, _: None, slots: Tensor) -> None:
        """Frees the slots."""
        self.allocator.free(slots)


class Extend(_Rows):
    """Allocates all tokens of every row."""

    def prepare(self) -> Tensor:
        """A new row has no last slot."""
        return self.none - 1

    def call(self, last: Tensor) -> Tensor:
        """The timed call."""
        return self.fill(last)

    def undo(self, _: Tensor, slots: Tensor) -> None:
        """Frees the slots."""
        self.allocator.free(slots)


class Decode(_Rows):
    """Allocates one token more for every row; some rows end inside a page, others need a new page."""

    def __init__(self, allocator: Any, case: Case, device: torch.device) -> None:
        super().__init__(allocator, case, device)
        self.last = self.fill()[self.lens.cumsum(0) - 1]
        self.after, self.after_host = self.lens + 1, self.host + 1

    def prepare(self) -> None:
        """Nothing is needed."""

    def call(self, _: None) -> Tensor:
        """The timed call."""
        return self._granted(self.allocator.alloc_decode(self.after, self.after_host, self.last))

    def undo(self, _: None, slots: Tensor) -> None:
        """Frees the new pages."""
        fresh = slots[slots % self.case.page_size == 0]
        if fresh.numel():
            self.allocator.free(fresh)


class Free(_Rows):
    """Frees every row. ``by_rows``: the caller passes the lengths of the rows. ``pages``: hands out whole pages, from
    which the rows are cut, for an engine whose calls that allocate rows are interpreted.
    """

    def __init__(
        self,
        allocator: Any,
        case: Case,
        device: torch.device,
        by_rows: bool = False,
        pages: Callable[[int], Tensor] | None = None,
    ) -> None:
        super().__init__(allocator, case, device)
        self.by_rows, self.pages = by_rows, pages

    def prepare(self) -> Tensor:
        """Allocates the rows."""
        return self.fill() if self.pages is None else self._cut(self.pages)

    def _cut(self, pages: Callable[[int], Tensor]) -> Tensor:
        size, lens = self.case.page_size, self.host.tolist()
        counts = [-(-n // size) for n in lens]
        rows = torch.split_with_sizes(pages(sum(counts)), [n * size for n in counts])
        return torch.cat([row[:n] for row, n in zip(rows, lens, strict=True)])

    def call(self, slots: Tensor) -> None:
        """The timed call."""
        if self.by_rows:
            lens = self.host.tolist()
            self.allocator.free(slots, row_lens=lens, swa_lens=lens)
        else:
            self.allocator.free(slots)

    def undo(self, slots: Tensor, _: None) -> None:
        """Nothing is left to undo."""


WORKS: dict[str, Callable[[Any, Case, torch.device], Work]] = {
    "alloc": Alloc,
    "alloc_extend": Extend,
    "alloc_decode": Decode,
    "free": Free,
    BY_ROWS: partial(Free, by_rows=True),
}

"""Lock and unlock a batch of requests on one tree: our tree in two calls, an engine's tree request by request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

import torch

from benchmarks.engines import Comparison
from benchmarks.timing import Work, interleaved
from conformance.driver.protocol import EngineError
from impl.lock_ref import LockTree

NODES = 10_000
SPAN = 16  # tokens of a node's key
WINDOW = 128
BATCHES = (1, 16, 64, 256, 1024)


@dataclass(frozen=True)
class Row:
    """One batch with the medians in microseconds; ``None``: the engine has no tree to compare with."""

    batch: int
    own_us: float
    engine_us: float | None
    ratio: float | None
    repetitions: int


@dataclass(frozen=True)
class Shape:
    """A tree: each node's parent, 0 the root; a parent comes before its children."""

    parents: tuple[int, ...]

    @classmethod
    def drawn(cls, nodes: int = NODES, seed: int = 1) -> Shape:
        """Every new node below any earlier one: about ``2 ln nodes`` deep, as turns of conversations are."""
        random = Random(seed)
        return cls(tuple(random.randrange(node) for node in range(1, nodes + 1)))

    def paths(self) -> Iterator[list[int]]:
        """Each node's path, from below the root down to the node."""
        known: list[list[int]] = [[]]
        for node, parent in enumerate(self.parents, 1):
            known.append([*known[parent], node])
            yield known[-1]

    def requests(self, batch: int, seed: int = 2) -> list[int]:
        """The nodes that a batch locks."""
        random = Random(seed)
        return [random.randint(1, len(self.parents)) for _ in range(batch)]


def own_tree(shape: Shape, device: torch.device) -> LockTree:
    """Our tree of this shape; its nodes have the shape's numbers."""
    tree = LockTree(len(shape.parents), window=WINDOW, device=device)
    for path in shape.paths():
        tree.add_leaf(path[-2] if path[1:] else 0, len(path) * SPAN)
    return tree


class Locking:
    """A call that locks a batch and gives every lock back."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def prepare(self) -> None:
        """Nothing is needed."""

    def call(self, _: None) -> None:
        """The timed call."""
        self._call()

    def undo(self, _: None, __: None) -> None:
        """Nothing is left to undo."""


def measure(
    engine: Comparison, device: torch.device, budget_s: float, nodes: int = NODES
) -> tuple[list[Row], str | None]:
    """Times every batch on both trees; if the engine's cannot be built, on our tree alone, and says why in one line."""
    shape, skipped, other = Shape.drawn(nodes), None, None
    own = own_tree(shape, device)
    try:
        other = engine.lock_tree(shape.paths(), SPAN, WINDOW)
    except EngineError as error:
        skipped = str(error)
    rows = []
    for batch in BATCHES:
        requests = shape.requests(batch)
        works: list[Work] = [Locking(lambda wanted=requests: own.release(own.acquire(wanted)))]  # type: ignore[misc]
        works += [] if other is None else [Locking(other.batch(requests))]
        rows.append(_row(works, batch, device, budget_s))
    return rows, skipped


def _row(works: list[Work], batch: int, device: torch.device, budget_s: float) -> Row:
    timing = interleaved(works, device, budget_s)
    own_us, *others = (round(us, 2) for us in timing.medians)
    engine_us = others[0] if others else None
    ratio = None if engine_us is None else round(engine_us / own_us, 3)
    return Row(batch, own_us, engine_us, ratio, timing.repetitions)

"""Acquire and release of a batch of requests on one tree: ours in two calls, SGLang's request by request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from benchmarks.timing import Work, interleaved
from conformance.machine import Misuse
from conformance.subjects.errors import SubjectError
from conformance.subjects.sglang import SGLang
from conformance.subjects.trees import Tree
from impl.lock_ref import LockTree

NODES = 10_000
SPAN = 16  # tokens of a node's key
WINDOW = 128
BATCHES = (1, 64, 1024)


@dataclass(frozen=True)
class Row:
    """One batch with the median of ours and of SGLang's; None: there is no such tree to compare with."""

    batch: int
    ours_us: float
    sglang_us: float | None
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


def ours(shape: Shape, device: torch.device) -> LockTree:
    """Our tree of this shape; its nodes have the shape's numbers."""
    tree = LockTree(len(shape.parents), window=WINDOW, device=device)
    for path in shape.paths():
        tree.add_leaf(path[-2] if path[1:] else 0, len(path) * SPAN)
    return tree


class Theirs:
    """SGLang's UnifiedRadixCache of this shape, by the shape's numbers. SubjectError if it cannot be built."""

    def __init__(self, engine: SGLang, shape: Shape) -> None:
        size = (len(shape.parents) + 1) * SPAN
        try:
            self.driven = Tree(engine, size=size, size_swa=size, window=WINDOW)
            for path in shape.paths():
                tokens = [node for node in path for _ in range(SPAN)]
                self.driven.insert(tokens, protected=len(tokens) - SPAN)
        except (Misuse, AttributeError, ImportError) as error:
            raise SubjectError(f"SGLang {engine.label} has no unified radix tree that can be built: {error}") from error
        self.tree = self.driven.tree
        self.nodes: dict[int, Any] = {}
        below = list(self.tree.root_node.children.values())
        while below:
            node = below.pop()
            self.nodes[next(iter(node.key))] = node
            below += node.children.values()
        if len(self.nodes) != len(shape.parents):
            raise SubjectError(f"SGLang {engine.label} built another tree: {len(self.nodes):,} nodes")


class Batched:
    """Ours: one call locks the batch, one gives it back."""

    def __init__(self, tree: LockTree, requests: list[int]) -> None:
        self.tree, self.requests = tree, requests

    def prepare(self) -> None:
        """Nothing is held."""

    def call(self, _: None) -> None:
        """The timed call."""
        self.tree.release(self.tree.acquire(self.requests))

    def undo(self, _: None, __: None) -> None:
        """Nothing is left."""


class OneByOne(Batched):
    """SGLang's: a walk to the root for each request, and back."""

    def __init__(self, theirs: Theirs, requests: list[int]) -> None:
        self.cache, self.nodes = theirs.tree, [theirs.nodes[n] for n in requests]

    def call(self, _: None) -> None:
        """The timed call."""
        held = [(node, self.cache.inc_lock_ref(node)) for node in self.nodes]
        for node, result in held:
            self.cache.dec_lock_ref(node, result.to_dec_params())


def measure(engine: SGLang, device: torch.device, budget_s: float, nodes: int = NODES) -> tuple[list[Row], str | None]:
    """Times every batch on both sides; without SGLang's tree ours alone, and why in one line."""
    shape, skipped, theirs = Shape.drawn(nodes), None, None
    mine = ours(shape, device)
    try:
        theirs = Theirs(engine, shape)
    except SubjectError as error:
        skipped = str(error)
    return [_row(mine, theirs, shape.requests(batch), device, budget_s) for batch in BATCHES], skipped


def _row(mine: LockTree, theirs: Theirs | None, requests: list[int], device: torch.device, budget_s: float) -> Row:
    works: list[Work] = [Batched(mine, requests), *([OneByOne(theirs, requests)] if theirs else [])]
    timing = interleaved(works, device, budget_s)
    ours_us, *others = (round(us, 2) for us in timing.medians)
    sglang_us = others[0] if others else None
    ratio = None if sglang_us is None else round(sglang_us / ours_us, 3)
    return Row(len(requests), ours_us, sglang_us, ratio, timing.repetitions)

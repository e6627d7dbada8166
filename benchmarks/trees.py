"""Calls of a prefix cache: ours and the trees of an engine, each behind the engine's own interface.

The tree is that of a server with many conversations: some prompts that many share, and what follows each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any, Protocol

import torch

from benchmarks.engines import Comparison
from benchmarks.timing import Work, interleaved
from conformance.driver.protocol import EngineError

TEXTS = 1000  # in the tree
PROMPTS = 32  # shared beginnings
HALF = 256  # tokens of a beginning, and of what follows
PAGES = (1, 64)


class Tree(Protocol):
    """A prefix cache over a pool of its own."""

    def slots(self, tokens: int) -> Any:
        """Allocated slots."""

    def insert(self, text: Sequence[int], slots: Any) -> None:
        """The tree takes what it lacks; what it has is freed."""

    def match(self, text: Sequence[int]) -> Any:
        """The node in which the longest prefix ends."""

    def lock(self, node: Any) -> None:
        """Lock the node and give the lock back."""

    def evict(self, tokens: int) -> None:
        """Evict at least so many tokens."""


@dataclass(frozen=True)
class Case:
    """One call of a tree with pages of so many tokens."""

    call: str
    page_size: int


@dataclass(frozen=True)
class Row:
    """A case with our median in microseconds, and by tree of the engine its median and its time divided by ours."""

    call: str
    page_size: int
    own_us: float
    engine_us: Mapping[str, float]
    ratios: Mapping[str, float]
    repetitions: int


class Conversations:
    """Texts, each from a prompt that others share."""

    def __init__(self) -> None:
        self._random = Random(1)
        self._prompts = [self._drawn() for _ in range(PROMPTS)]

    def _drawn(self) -> list[int]:
        return [self._random.randrange(1 << 15) for _ in range(HALF)]

    def text(self) -> list[int]:
        """A new one."""
        return self._random.choice(self._prompts) + self._drawn()


class Known:
    """A tree that is full of texts. The works below leave about as many tokens in it as before."""

    def __init__(self, tree: Tree) -> None:
        self.tree, self.texts = tree, Conversations()
        for _ in range(TEXTS):
            self.last = self.texts.text()
            tree.insert(self.last, tree.slots(2 * HALF))


@dataclass
class Calls:
    """A work of the timing: three functions."""

    prepare: Callable[[], Any]
    call: Callable[[Any], Any]
    undo: Callable[[Any, Any], None] = lambda *_: None


def match(known: Known) -> Work:
    """A text that the tree has."""
    return Calls(lambda: known.last, known.tree.match)


def insert(known: Known) -> Work:
    """A text of which the tree has the first half."""
    tree = known.tree

    def prepared() -> tuple[list[int], Any]:
        tree.evict(HALF)
        return known.texts.text(), tree.slots(2 * HALF)

    return Calls(prepared, lambda given: tree.insert(*given))


def lock(known: Known) -> Work:
    """A request's lock on its prefix, and its release."""
    return Calls(lambda: known.tree.match(known.last), known.tree.lock)


def evict(known: Known) -> Work:
    """As many tokens as a text has of its own."""
    tree = known.tree

    def prepared() -> None:
        tree.insert(known.texts.text(), tree.slots(2 * HALF))

    return Calls(prepared, lambda _: tree.evict(HALF))


WORKS = {"match": match, "insert": insert, "lock": lock, "evict": evict}


def measure(engine: Comparison, device: torch.device, budget_s: float) -> tuple[list[Row], str | None]:
    """Times every call on our tree and on each tree of the engine; no rows and one line that says why, if the engine
    has no such trees.
    """
    rows = []
    for page_size in PAGES:
        tokens = 4 * (TEXTS + PROMPTS) * HALF
        try:
            own, *others = engine.trees(tokens, page_size)
        except EngineError as error:
            return [], str(error)
        known = [Known(tree) for _, tree in (own, *others)]
        for call, work in WORKS.items():
            timing = interleaved([work(one) for one in known], device, budget_s)
            own_us, *theirs = (round(us, 2) for us in timing.medians)
            engine_us = dict(zip((name for name, _ in others), theirs, strict=True))
            ratios = {name: round(us / own_us, 3) for name, us in engine_us.items()}
            rows.append(Row(**asdict(Case(call, page_size)), own_us=own_us, engine_us=engine_us, ratios=ratios,
                            repetitions=timing.repetitions))  # fmt: skip
    return rows, None

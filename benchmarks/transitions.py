"""Transitions of the spec a second: the functions of ``spec/`` alone, without laws or an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from benchmarks.timing import a_second
from spec import allocator, swa_mapping
from spec.finite import Seq, Set
from spec.lengths import NOTHING, Length, in_pages, in_tokens, touched
from spec.logic import Step
from spec.pool import Pool, beyond, held, length, open_to, used_slots

STEMS = ("allocator", "swa_mapping")  # the stems that are measured
PAGE_SIZE, PAGES, ROWS = 16, 64, 8
Call = tuple[Callable[..., Step[Any]], tuple[Any, ...]]


@dataclass(frozen=True)
class Rate:
    """Transitions a second of one stem, each with its conditions evaluated."""

    stem: str
    transitions: int
    a_second: float


def measure(stem: str, count: int = 4000, seed: int = 1) -> Rate:
    """Draws one sequence of extends, decodes, frees and trims, and times how fast it is repeated."""
    mix = Mix(stem, Random(seed))
    first = mix.state
    calls = [mix.step() for _ in range(count)]
    return Rate(stem, count, a_second(lambda: _do(first, calls)))


def _do(state: Any, calls: list[Call]) -> int:
    for transition, arguments in calls:
        step = transition(state, *arguments)
        if not step.granted:
            raise AssertionError(f"{transition.__name__}: {step.broken()}")
        state = step.then
    return len(calls)


class Mix:
    """A sequence of granted calls, mostly decodes, as an engine makes them."""

    def __init__(self, stem: str, random: Random) -> None:
        self.random, self.two = random, stem == "swa_mapping"
        self.law: Any = swa_mapping if self.two else allocator
        sizes = (PAGE_SIZE, PAGES, PAGES, ROWS, False) if self.two else (PAGE_SIZE, PAGES, ROWS, False)
        self.state = self.law.initial(*sizes)

    @property
    def pool(self) -> Pool:
        """The pool that rows are measured in."""
        now = self.state.now
        return now.full if self.two else now  # type: ignore[no-any-return]

    def step(self) -> Call:
        """One granted call; the state is the one after it."""
        row = self.random.randrange(ROWS)
        kind = self.random.choices(["decode", "extend", "trim", "free"], [6, 2, 1, 1])[0]
        transition, arguments = getattr(self, "_" + kind)(row)
        step = transition(self.state, *arguments)
        assert step.granted, (kind, step.broken())
        self.state = step.then
        return transition, arguments

    def _extend(self, row: int, more: int = 0) -> Call:
        now = length(self.pool, row)
        tokens = in_tokens(now, PAGE_SIZE) + (more or self.random.randint(1, 40))
        to = in_pages(tokens, PAGE_SIZE)
        need = touched(to) - touched(now)
        stuck = now.rest > 0 and not self.pool.table(row, now.pages)  # cut to within a page that it gave back
        if stuck or need > self.pool.available or tokens > PAGES * PAGE_SIZE:
            return self._trim(row, NOTHING)
        call = self.law.alloc_decode if more else self.law.alloc_extend
        return call, (row, *(() if more else (to,)), *self._pages(need))

    def _decode(self, row: int) -> Call:
        return self._extend(row, 1)

    def _trim(self, row: int, to: Length | None = None) -> Call:
        """The pages that a row keeps no token in are freed; a row that owns none of them becomes shorter."""
        tokens = in_tokens(length(self.pool, row), PAGE_SIZE)
        to = to or in_pages(self.random.randint(0, tokens), PAGE_SIZE)
        gone = beyond(self.pool, row, to)
        return (self.law.free, (gone, used_slots(self.pool, gone))) if gone.size else (self.law.shorten, (row, to))

    def _free(self, row: int) -> Call:
        """One of the row's full pages; a row that owns none ends."""
        pages = [self.pool.table(row, i) for i in range(length(self.pool, row).pages)]
        owned = [p for p in pages if held(self.pool, p)]
        if not owned:
            return self._trim(row, NOTHING)
        page = self.random.choice(owned)
        return self.law.free, (Set([page]), Set((page, o) for o in range(PAGE_SIZE)))

    def _pages(self, need: int) -> list[Seq]:
        pools = [self.pool, self.state.now.swa] if self.two else [self.pool]
        return [Seq([p for p in pool.pages.items() if open_to(pool, p)][:need]) for pool in pools]

"""Runs of a scheduler with its cache of blocks, drawn by a seed: what tests of engines with blocks share.

An operation is a tuple, and means the same in every run, so that a run can be shrunk: an operation that cannot be done
now is passed over.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from conformance.driver.lockstep import LockStep
from conformance.driver.protocol import Json
from conformance.stems.block_cache.protocol import BlockCacheSnapshot, Completed, Launched
from conformance.stems.block_cache.run import BlockCacheRun
from conformance.stems.block_cache.worker import Workers
from conformance.stems.kv_events.published import Listener

Op = tuple[Any, ...]
FULL, MAMBA = {"kind": "full"}, {"kind": "mamba"}
AT_ONCE = 6  # requests that wait or run at once
ADAPTER, SALT = 1, 4  # marks of texts; the salt has another name than the adapter: older releases of vLLM need that


def window(tokens: int) -> Json:
    return {"kind": "window", "window": tokens}


BASE: Json = {
    "block_size": 4,
    "blocks": 14,
    "layers": [FULL],
    "caching": True,
    "batch": 12,
    "requests": 4,
    "drafts": 0,
    "eagle": False,
    "steps_in_flight": 1,
    "threshold": 0,
    "policy": "fcfs",
    "max_length": 32,
    "events": False,
}
HYBRID: Json = {"layers": [FULL, window(6)], "blocks": 22}
STATES: Json = {"layers": [FULL, MAMBA], "blocks": 24}
TWO: Json = {"steps_in_flight": 2}
EAGLE: Json = {"drafts": 2, "eagle": True}
NGRAM: Json = {"drafts": 2}
PLAIN: Json = {"caching": False}
FAMILIES: dict[str, Json] = {
    "full": {"events": True},
    "full, no cache": PLAIN,
    "full, chunks": {"threshold": 5},
    "full, priorities": {"policy": "priority"},
    "full, n-grams": NGRAM,
    "full, EAGLE": EAGLE,
    "full, two steps": TWO,
    "full, two steps, EAGLE": {**TWO, **EAGLE, "drafts": 3},
    "window": {"layers": [window(6)]},
    "hybrid": HYBRID,
    "hybrid, no cache": {**HYBRID, **PLAIN},
    "hybrid, EAGLE": {**HYBRID, **EAGLE},
    "hybrid, two steps": {**HYBRID, **TWO},
    "hybrid, two steps, EAGLE": {**HYBRID, **TWO, **EAGLE},
    "hybrid, two steps, EAGLE, small": {**TWO, **EAGLE, "layers": [FULL, window(2)], "block_size": 2, "blocks": 40},
    "two windows": {"layers": [FULL, window(6), window(9)], "blocks": 28},
    "mamba": STATES,
    "mamba, n-grams": {**STATES, **NGRAM},
    "mamba, EAGLE": {**STATES, **EAGLE},
    "mamba, two steps": {**STATES, **TWO},
    "mamba and window": {"layers": [FULL, window(6), MAMBA], "blocks": 28},
}


def config(family: str) -> Json:
    return {**BASE, **FAMILIES[family]}


def one_text_twice(
    make: Callable[[Json], Any], host: Json, length: int, **limits: int
) -> tuple[list[Launched], list[Launched]]:
    """The steps of two requests with one text of this length, one after the other. The device forgets its prefix cache
    between them, so that the second one finds the text in host memory alone. ``limits``: of both (``HostLimits``).
    """
    of_host = {"transfers": True, "failure": "recompute", "host": host, "events": False}
    asked = {**config("full"), **of_host, "blocks": 20}
    run = BlockCacheRun(make(asked), asked)
    lock = LockStep(run, asked)
    steps: tuple[list[Launched], list[Launched]] = ([], [])
    for request, seen in enumerate(steps, start=1):
        lock.do("add", request=request, tokens=[*range(1, length + 1)], outputs=2, **limits)
        for _ in range(5):
            lock.do("schedule")
            seen.append(run.flying[-1])
            lock.do("copied")
            for one in run.exchange.incoming():
                if not (one in seen[-1].loads and seen[-1].loads[one].within_step):
                    lock.do("arrive", request=one)
            lock.do("complete")
        lock.do("copied")
        lock.do("schedule")
        lock.do("complete")
        lock.do("reset", preempt=False)
    lock.do("audit")
    return steps


class Broken(Exception):
    """What a run must keep is broken."""


def drawn(seed: int, steps: int, config: Json) -> list[Op]:
    """The operations of a run with so many steps."""
    rnd, ops, made = random.Random(seed), list[Op](), 0
    while made < steps:
        at = rnd.random()
        if at < 0.12:
            length = rnd.randint(1, config["max_length"] - 6)
            tokens = tuple(rnd.randint(1, 2) if rnd.random() < 0.25 else 1 for _ in range(length))
            ops.append(("add", tokens, rnd.randint(1, 8), rnd.choice((0, 0, 0, ADAPTER, SALT)), rnd.randint(0, 2)))
        elif at < 0.14:
            ops.append(("abort", rnd.randrange(AT_ONCE)))
        elif at < 0.15:
            ops.append(("reset", rnd.random() < 0.5))
        elif at < 0.65:
            ops.append(("schedule",))
            made += 1
        else:
            ops.append(("complete", rnd.randrange(1 << 30)))
    return ops


class Run:
    """One run of an engine, with stand-in workers. ``counts``: what happened in it."""

    def __init__(self, make: Callable[[Json], Any], config: Json, every: int = 1) -> None:
        self.config, self.engine, self.workers = config, make(config), Workers(config)
        self.counts: Counter[str] = Counter()
        self.alive: list[int] = []
        self.listener = Listener(getattr(self.engine, "published", None))
        self._flying: list[Launched] = []
        self._drafts: dict[int, list[int]] = {}
        self._came, self._done, self._every = 0, 0, every

    def drive(self, ops: Iterable[Op]) -> None:
        """Does the operations, and looks at the engine after each one that can be done."""
        for op in ops:
            if getattr(self, f"_{op[0]}")(*op[1:]):
                self._done += 1
                if self._done % self._every == 0:
                    self.look()

    def end(self) -> None:
        """Lets every request end; then every block is free."""
        for _ in range(500):
            if not self.alive and not self._flying:
                break
            scheduled = self._schedule()
            if len(self._flying) == self.config["steps_in_flight"] or not scheduled or not self._fresh:
                self._complete(0)
            self.look()
        seen = self.engine.snapshot()
        if self.alive or seen.requests or seen.pool.available != self.config["blocks"]:
            raise Broken(f"not at rest: {self.alive} {sorted(seen.requests)} {seen.pool.available} blocks are free")

    def look(self) -> BlockCacheSnapshot:
        """Checks what the engine shows."""
        seen: BlockCacheSnapshot = self.engine.snapshot()
        if (wrong := self.listener.judge()) is not None:
            raise Broken(str(wrong))
        for problem in problems(seen):
            raise Broken(problem)
        if not self._flying:
            for request, known in seen.requests.items():
                here = self.workers.here.get(request)
                if here is not None and known.status == "running" and tuple(here.text) != known.text:
                    raise Broken(f"request {request} has the text {known.text}, and its workers {here.text}")
        return seen

    # The operations. Each says whether it could be done.

    def _add(self, tokens: Sequence[int], outputs: int, mark: int, priority: int) -> bool:
        if len(self.alive) == AT_ONCE:
            return False
        request, self._came = self._came, self._came + 1
        self.workers.comes(request, mark)
        self.engine.add(request, tokens, outputs, mark, priority)
        self.alive.append(request)
        return True

    def _abort(self, which: int) -> bool:
        if which >= len(self.alive):
            return False
        self.engine.abort(self.alive.pop(which))
        self.counts["abort"] += 1
        return True

    def _reset(self, preempt: bool) -> bool:
        if len(self._flying) == self.config["steps_in_flight"]:
            return False
        done = self.engine.reset(preempt)
        self.counts[f"reset {preempt} {done}"] += 1
        return True

    def _schedule(self) -> bool:
        if len(self._flying) == self.config["steps_in_flight"]:
            return False
        step: Launched = self.engine.schedule()
        self.workers.launched(step)
        self._fresh = bool(step.passes)
        if step.passes:
            self._flying.append(step)
            self.counts["steps"] += 1
        self.counts["preempted"] += len(step.preempted)
        self.counts["copies"] += len(step.copies)
        for told in step.passes.values():
            self.counts[told.kind] += 1
            self.counts["hits"] += told.kind == "new" and told.start > 0
            self.counts["chunks"] += not told.samples
        return True

    def _complete(self, seed: int) -> bool:
        if not self._flying:
            return False
        rnd, step = random.Random(seed), self._flying.pop(0)
        given = {
            request: self._sampled(rnd, request, told.drafts) for request, told in step.passes.items() if told.samples
        }
        wrong = self.workers.completed(given, self.alive)
        done: Completed = self.engine.complete(given)
        self.alive = [request for request in self.alive if request not in done.finished]
        self.counts["finished"] += len(done.finished)
        if wrong is not None:
            raise Broken(str(wrong))
        if "draft" not in self.engine.lacks:
            most = self.config["drafts"]
            self._drafts = {
                request: [rnd.randint(1, 2) for _ in range(most if self.config["eagle"] else rnd.randint(0, most))]
                for request, told in step.passes.items()
                if told.samples and request in self.alive
            }
            self.engine.draft(self._drafts)
        return True

    def _sampled(self, rnd: random.Random, request: int, drafts: int) -> list[int]:
        """What a request samples: the drafts that are accepted, and one token."""
        kept = rnd.randint(0, drafts)
        self.counts["accepted"] += kept
        self.counts["refused"] += drafts - kept
        known = "draft" not in self.engine.lacks
        accepted = self._drafts.get(request, [])[:kept] if known else [rnd.randint(1, 2) for _ in range(kept)]
        return [*accepted, rnd.randint(1, 2)]


def problems(seen: BlockCacheSnapshot) -> list[str]:
    """What is wrong with a pool and the tables over it."""
    found, pool = [], seen.pool
    held = Counter(block for known in seen.requests.values() for table in known.tables for block in table if block)
    held.update(seen.deferred)
    if {block: count for block, count in pool.refs.items() if count} != dict(held):
        found.append(f"counts {pool.refs}, and tables hold {dict(held)}")
    free = [block for block, count in pool.refs.items() if not count]
    if sorted(pool.free) != free or pool.free != pool.backward[::-1] or pool.available != len(free):
        found.append(f"free queue {pool.free}, backward {pool.backward}, {pool.available} available; {free} are free")
    named = defaultdict(list)
    for block, names in pool.named.items():
        for name in names:
            named[name].append(block)
    if {name: sorted(blocks) for name, blocks in named.items()} != {n: sorted(b) for n, b in pool.found.items()}:
        found.append(f"blocks say {dict(named)}, and the prefix cache knows {pool.found}")
    if None in named:
        found.append("a block has a hash of a text that no request has")
    if pool.null_named:
        found.append("the null block has a hash")
    return found


def outcome(make: Callable[[Json], Any], config: Json, ops: Sequence[Op], end: bool = True) -> str:
    """What is broken in a run, with the kind of the exception; empty if nothing is."""
    try:
        run = Run(make, config)
        run.drive(ops)
        if end:
            run.end()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def shrunk(make: Callable[[Json], Any], config: Json, ops: Sequence[Op], like: Callable[[str], bool]) -> list[Op]:
    """A run with fewer operations, whose outcome is like the first one's."""
    kept, size = list(ops), len(ops) // 2
    while size:
        at = 0
        while at < len(kept):
            tried = kept[:at] + kept[at + size :]
            if like(outcome(make, config, tried, False)):
                kept = tried
            else:
                at += size
        size //= 2
    return kept

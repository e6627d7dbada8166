"""Drives a scheduler on after a law was broken: requests come with texts that were there, compute, and end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from conformance.driver.onward import Move, send
from conformance.stems.block_cache.protocol import Completed, Launched
from conformance.stems.block_cache.run import BlockCacheRun
from conformance.stems.requests.request import token

STRANGER = 5_000_000  # the first fork of a text that no other text has
STEPS = 4  # how many steps one move makes


class OnwardRequests:
    """The requests of a run of ``block_cache``, driven without the law. ``strangers``: those whose text is like no
    other.
    """

    def __init__(self, run: BlockCacheRun) -> None:
        self.run, self.engine, self.shadow, self.workers = run, run.engine, run.shadow, run.workers
        self.exchange, self.transfers = run.exchange, bool(run.config.get("transfers", False))
        self.texts = {request: list(one.tokens) for request, one in run.follower.here.items()}
        self.forks = dict(run.forks)
        self.flying = run.flying.copy()
        self.number = max(self.forks, default=0)
        self.strangers: list[int] = []
        self.moves: dict[str, Callable[[], Move]] = {
            "begin": lambda: iter(()),
            "guest": lambda: self._stranger(1),
            "stranger": lambda: self._stranger(self.run.config["max_length"] // 2),
            "again": self.again,
            "decode": self.decode,
            "finish": lambda: self._abort(list(self.texts)[:1]),
            "leave": lambda: self._abort(list(self.strangers)),
        }

    def _stranger(self, length: int) -> Move:
        """A request comes whose text is like no other."""
        fork = STRANGER + self.number
        yield from self._comes([token(n, 0) + 1000 * fork for n in range(length)], fork)
        self.strangers.append(self.number)

    def again(self) -> Move:
        """For each text that is there a request with this text comes, and goes on with a token of its own."""
        longest = self.run.config["max_length"] - 2
        for request, text in list(self.texts.items()):
            if request not in self.strangers and len(text) < longest:
                more = [
                    token(n, self.forks[request]) for n in range(len(text), min(len(text) + self.run.largest, longest))
                ]
                yield from self._comes([*text, *more], self.forks[request])

    def _comes(self, tokens: list[int], fork: int) -> Move:
        self.number += 1
        number, outputs = self.number, max(1, min(3, self.run.config["max_length"] - len(tokens)))
        self.forks[number], self.texts[number] = fork, tokens
        self.workers.comes(number, 0)
        send(self.run, partial(self.engine.add, number, tokens, outputs))
        yield f"request {number} comes with {len(tokens)} tokens", None

    def decode(self) -> Move:
        """Transfers into blocks are done. The scheduler makes a few steps, and each is done before the next. Then other
        servers have read what they still read.
        """
        for request in self.exchange.incoming():
            self.exchange.arrives(request, 0)
            yield f"the transfer into the blocks of request {request} is done", None
        for _ in range(STEPS):
            while self.flying:
                yield from self._complete()
            step: Launched = send(self.run, self.engine.schedule)
            self.workers.launched(step)
            if not step.passes and not self.transfers:
                return
            self.flying.append(step)
            self.exchange.launched(step, {request: self.texts.get(request, ()) for request in step.loads})
            yield f"a step computes requests {sorted(step.passes)}", None
        for request in self.exchange.outgoing():
            self.run.note(self.exchange.leaves(request))
            yield f"another server has read the blocks of request {request}", self.shadow.wrong

    def _complete(self) -> Move:
        step = self.flying.popleft()
        sampled = {request: self._next(request) for request, one in step.passes.items() if one.samples}
        wrong = self.workers.completed(sampled, self.texts)
        told = self.exchange.completed()
        done: Completed = send(self.run, partial(self.engine.complete, sampled, *([told] if self.transfers else [])))
        self.run.note(wrong)  # after the call, since each call begins an operation of which nothing is noted yet
        for request, tokens in done.delivered.items():
            if request in self.texts:
                self.texts[request] += tokens
        for request, tables in done.sends.items():
            self.exchange.ended(request, tables, self.texts.get(request, [])[:-1])
        yield "the step is done", self.shadow.wrong

    def _next(self, request: int) -> list[int]:
        known = len(self.texts.get(request, ()))
        return [token(known, self.forks[request])]

    def _abort(self, requests: list[int]) -> Move:
        for request in requests:
            if request in self.run.seen.requests:
                send(self.run, partial(self.engine.abort, request))
                yield f"request {request} is aborted", None
            self.texts.pop(request, None)
            self.strangers = [r for r in self.strangers if r != request]

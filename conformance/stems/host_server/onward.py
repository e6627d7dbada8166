"""Drives a server with host memory on after a law was broken, to see whether a request reads wrong contents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from conformance.driver.onward import Move, send
from conformance.driver.shadow import WrongSlot
from conformance.stems.host_server.contents import launched
from conformance.stems.host_server.run import EVERY, HostServerRun
from conformance.stems.requests.request import token
from conformance.stems.server.protocol import DEAF, POLL, ServerEvent

LONGEST = 3  # the tokens of an answer
STRANGER = 5000  # the first fork of requests whose texts share nothing with any other


class OnwardHostServer:
    """A server without the law: of its events only forward passes and copies are followed."""

    def __init__(self, run: HostServerRun) -> None:
        self.run, self.engine, self.shadow, self.memory = run, run.engine, run.shadow, run.memory
        self.texts = [request.text for request in self.memory.requests.values()]
        self.number = 1 + max(run.forks, default=0)
        self.moves: dict[str, Callable[[], Move]] = {
            "begin": lambda: iter(()),
            "decode": self.turn,
            "again": self.again,
            "stranger": self.stranger,
            "copies": self.copies,
            "storage": self.storage,
        }

    def turn(self) -> Move:
        """The server makes a turn of its loop."""
        yield from self._turn()

    def copies(self) -> Move:
        """Every copy is done."""
        for stores in (True, False):
            send(self.run, partial(self.engine.end_copies, stores, EVERY))
            self._follow_copies()
        yield "every copy is done", None

    def storage(self) -> Move:
        """Each thread between host memory and a storage goes on, to its next call of the storage and beyond it."""
        for thread in self.engine.storage_threads:
            for _ in range(2):
                send(self.run, partial(self.engine.storage_goes_on, thread, "well"))
                self._follow_copies()
        if self.engine.storage_threads:
            yield "the threads of the storage go on", None

    def again(self) -> Move:
        """A client sends a text that was there before, and the server makes some turns."""
        if self.texts:
            yield from self._comes(list(self.texts[self.number % len(self.texts)]), 0)

    def stranger(self) -> Move:
        """A client sends a text that shares nothing with any other."""
        fork = STRANGER + self.number
        tokens = [token(n, 0) + fork * 10_000 for n in range(12)]
        self.texts.append(tokens)
        yield from self._comes(tokens, fork)

    def _comes(self, tokens: list[int], fork: int) -> Move:
        number, self.number = self.number, self.number + 1
        self.run.forks[number] = fork
        send(self.run, lambda: self.engine.generate(number, 0, tokens, LONGEST, fork, None, None))
        yield f"a client sends request {number} with {len(tokens)} tokens", None
        for _ in range(3):
            yield from self._turn()

    def _turn(self) -> Iterator[tuple[str, WrongSlot | None]]:
        kind = ""
        while kind not in (POLL, DEAF):
            event: ServerEvent = send(self.run, self.engine.go_on)
            kind = event.kind
            self._follow_copies()
            self.memory.follow(event)
            if event.passes:
                self.memory.passes(*launched(self.engine, event.passes))
            wrong, self.shadow.wrong = self.shadow.wrong, None
            yield f"the server goes on ({kind})", wrong

    def _follow_copies(self) -> None:
        """Copies begin and end."""
        self.run.steps.extend(self.engine.host_steps())
        while self.run.steps:
            step = self.run.steps.popleft()
            if step.kind in ("stores", "loads"):
                self.memory.begun(step)
            elif step.kind == "copied":
                self.memory.copied(step)
            elif step.kind == "ended" and step.copy in self.memory.copies:
                self.memory.ended(step.copy)
            elif step.kind == "saved":
                self.memory.saved(step)
            elif step.kind == "fetched":
                self.memory.fetched(step)

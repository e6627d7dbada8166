"""Drives a server on after a law was broken, as clients would, to see whether a request reads wrong contents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from conformance.driver.onward import Move, send
from conformance.driver.shadow import WrongSlot
from conformance.stems.requests.request import RunRequest, token
from conformance.stems.server.protocol import ADMITTED, DEAF, POLL, TRANSFER, ServerEvent
from conformance.stems.server.run import ServerRun
from conformance.stems.server.sendings import WAITS

LONGEST = 3  # the tokens of an answer
STRANGER = 5000  # the first fork of requests whose texts share nothing with any other


class OnwardServer:
    """A server without the law: of its events only the forward passes are followed."""

    def __init__(self, run: ServerRun) -> None:
        self.run, self.engine, self.shadow = run, run.engine, run.shadow
        self.passes = run.calls.passes
        self.texts = [request.text for request in run.calls.requests.values()]
        self.texts += [[*key, STRANGER] for key in run.cache.tree.seen]  # each shares all that a node of the tree has
        self.known = dict(run.calls.requests)
        self.number = 1 + max(run.forks, default=0)
        self.here = set(run.here)
        self.last_turn: dict[int, int] = {}  # of each session, the turn that was sent last
        self.moves: dict[str, Callable[[], Move]] = {
            "begin": lambda: iter(()),
            "decode": self.turn,
            "again": self.again,
            "turn": self.turn_of_session,
            "stranger": self.stranger,
        }

    def turn(self) -> Move:
        """The server makes a turn of its loop."""
        yield from self._turn()

    def again(self) -> Move:
        """A client sends a text that was there before, or one that goes on from it, and the server makes some turns."""
        if self.texts:
            yield from self._comes(list(self.texts[self.number % len(self.texts)]), 0)

    def stranger(self) -> Move:
        """A client sends a text that shares nothing with any other."""
        fork = STRANGER + self.number
        yield from self._comes([token(n, 0) + fork * 10_000 for n in range(6)], fork)

    def turn_of_session(self) -> Move:
        """The client of a session sends its next turn, where the last one has ended."""
        busy = self.run.sessions_with_turns() | {s for s, number in self.last_turn.items() if number in self.here}
        for session in sorted(self.run.sessions - busy):
            before = self._text(session)
            fork = STRANGER + self.number
            self.last_turn[session] = self.number
            yield from self._comes([*before, token(len(before), fork)], fork, session, len(before))

    def _text(self, session: int) -> list[int]:
        """The text of a session: its last turn with its answer."""
        if session in self.last_turn:
            last = self.known[self.last_turn[session]]
            return last.tokens + last.sampled[:LONGEST]
        return self.run.text_of(session)

    def _comes(self, tokens: list[int], fork: int, session: int = 0, before: int = 0) -> Move:
        """A request comes, of a session whose text has ``before`` tokens, and the server makes some turns."""
        number, self.number = self.number, self.number + 1
        self.run.forks[number] = fork
        self.known[number] = RunRequest(session, tokens, fork)
        self.here.add(number)
        send(self.run, lambda: self.engine.generate(number, session, tokens[before:], LONGEST, fork, None, None))
        of_session = f" of session {session}" if session else ""
        yield f"a client sends request {number}{of_session} with {len(tokens)} tokens", None
        for _ in range(3):
            yield from self._turn()

    def _turn(self) -> Iterator[tuple[str, WrongSlot | None]]:
        self._transfers()
        kind = ""
        while kind not in (POLL, DEAF):
            event = send(self.run, self._next)
            kind = event.kind
            self._follow(event)
            if kind == POLL:
                self.here = set(event.requests)
            wrong, self.shadow.wrong = self.shadow.wrong, None
            yield f"the server goes on ({kind})", wrong

    def _transfers(self) -> None:
        """The prefill server of a decode server does what it can."""
        arrivals = self.run.transfers.arrivals
        for request in sorted(self.here | arrivals.open.keys()) if TRANSFER not in self.run.lacks else ():
            for step in self.engine.transfer_steps(request)[:1]:
                send(self.run, partial(self.engine.transfer, request, step))
                arrivals.does(request, step)
        for request, steps in self.run.sendings.steps().items():
            if steps[0] not in WAITS:
                send(self.run, partial(self.engine.send, request, steps[0]))

    def _next(self) -> ServerEvent:
        """The next event that may have changed memory: an admission only locks."""
        event: ServerEvent = self.engine.go_on()
        while event.kind == ADMITTED:
            event = self.engine.go_on()
        return event

    def _follow(self, event: ServerEvent) -> None:
        """Forward passes write and read shadow memory, and transfers begin."""
        done = []
        arrivals = self.run.transfers.arrivals
        arrivals.copied(event.backups)
        if event.destination is not None:
            for number, known in event.requests.items():
                arrivals.begins(number, known, event.destination, self.passes.name(number))
        for number, known in event.requests.items():
            self.known.setdefault(number, RunRequest(0, known.tokens, self.run.forks.get(number, 0)))
        for one in event.passes:
            asked = self.known[one.request]
            if one.end >= len(asked.tokens):
                asked.sampled = [token(n, asked.fork) for n in range(len(asked.tokens), one.end + 1)]
            self.passes.computed[one.request] = one.start
            done.append((one.request, asked, one.end))
        if done:
            self.passes.launch(done, {one.request: one.start + len(one.slots) for one in event.passes})
        for one in event.passes:
            if one.tracked is not None:
                self.passes.tracks(one.request, self.known[one.request], *one.tracked)

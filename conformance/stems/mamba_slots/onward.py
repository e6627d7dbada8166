"""Drives a pool of mamba state slots on after a law was broken: strangers come, requests compute, match and end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from conformance.driver.onward import Move, send
from conformance.driver.protocol import OutOfMemory
from conformance.stems.mamba_slots.protocol import NO_SLOTS, SlotNames
from conformance.stems.mamba_slots.run import MambaSlotsRun

STRANGER = 5_000_000  # the first token id that no other text has


class OnwardStates:
    """The requests and sessions of a run of ``mamba_slots``, driven without the law.

    ``here``: the requests that have come and not left, each with its session. ``runs``: those that were admitted.
    """

    def __init__(self, run: MambaSlotsRun) -> None:
        self.run, self.engine, self.passes, self.shadow = run, run.engine, run.passes, run.shadow
        self.here = {r: s for r, s in run.here.items() if r in run.seen.requests}
        self.runs = {r for r in self.here if run.running(r) and r in run.seen.rows}
        self.known = [list(key) for key in run.nodes]
        self.open, self.strangers = run.depth, 0
        self.moves: dict[str, Callable[[], Move]] = {
            "begin": self.begin,
            "guest": self.guest,
            "stranger": self.guest,
            "decode": self.decode,
            "finish": self.finish,
            "again": self.again,
            "evict": self.evict,
        }

    def begin(self) -> Move:
        """Groups that are open end."""
        while self.open:
            self.open -= 1
            send(self.run, self.engine.end_group)
            yield "end the group", None

    def guest(self) -> Move:
        """A request comes whose text is like no other, and is admitted."""
        self.strangers += 1
        first = STRANGER + 1000 * self.strangers
        yield from self._admit([first, first + 1])

    def again(self) -> Move:
        """A request comes that matches a node which had a state."""
        for key in self.known:
            yield from self._admit([*key, STRANGER])

    def decode(self) -> Move:
        """Each request that runs computes one token."""
        for request in sorted(self.runs):
            self.shadow.begin(self.shadow.step + 1)
            self.passes.computed([request], self.run.seen)
            yield f"request {request} computes a token", self.shadow.wrong

    def finish(self) -> Move:
        """The request that came first ends."""
        for request in list(self.here)[:1]:
            if request not in self.runs:
                continue
            session = self.here.pop(request)
            self.runs.discard(request)
            send(self.run, partial(self.engine.finish, request))
            saved = session and self.run.seen.sessions.get(session, SlotNames()).slots != NO_SLOTS
            self.passes.left(request, session if saved else 0)
            yield f"request {request} ends", None

    def evict(self) -> Move:
        """The tree gives back what nobody has locked."""
        send(self.run, lambda: self.engine.evict(len(self.run.seen.nodes)))
        yield "evict every state", None

    def _admit(self, tokens: list[int]) -> Move:
        request = next(
            (r for r in range(self.run.request_count) if r not in self.run.here and r not in self.here), None
        )
        if request is None:
            return
        try:
            copied = send(self.run, lambda: self.engine.match(request, tokens, 0, False))
        except OutOfMemory:
            return
        self.here[request] = 0
        self.passes.begin(request, tokens, 0)
        if copied is not None:
            self.passes.copied(request, copied, self.run.seen)
        yield f"request {request} matches {len(copied or ())} of {len(tokens)} tokens", self.shadow.wrong
        try:
            send(self.run, lambda: self.engine.admit([request]))
        except OutOfMemory:
            return  # the request waits
        self.runs.add(request)
        self.passes.computed([request], self.run.seen)
        yield f"request {request} is admitted", self.shadow.wrong

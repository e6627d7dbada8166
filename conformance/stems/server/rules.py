"""The machine that draws runs of the room ``server``: what clients send, and the flags of the server.

Clients do what they like: they send prompts that share beginnings, abort at any moment, and send a session's turn
before its last one has ended. Pools are small, so that requests wait, are retracted and evict each other's prefixes.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from conformance.driver.protocol import Json
from conformance.stems.launches import configuration
from conformance.stems.machine import StemMachine, started
from conformance.stems.requests.request import token
from conformance.stems.server.exclusions import (
    may_ask_for_turn,
    may_say_priority,
    may_update_weights,
    turns_before_release,
)
from conformance.stems.server.run import ServerRun

RESUMES = 8  # of 24 draws: how many leave a paused server paused
FAR = 20  # so far apart in priority, one request takes the place of another
SPARE = 5  # a server keeps so many tokens of its longest text free
lengths, answers = st.integers(1, 14), st.integers(1, 9)
forks, picks = st.integers(0, 6), st.integers(0, 23)
moves = st.lists(st.tuples(picks, lengths, answers, forks), min_size=1, max_size=6)


def numbers_of(machine: ServerMachine) -> st.SearchStrategy[dict[str, int]]:
    """A number for each option of the engine's servers."""
    every = machine.kinds.launches.every.items()
    return st.fixed_dictionaries({name: st.integers(0, len(choices) - 1) for name, choices in every})


class ServerMachine(StemMachine):
    """Clients of one server."""

    run: ServerRun | None

    @initialize(numbers=st.runner().flatmap(numbers_of))
    def start(self, numbers: dict[str, int]) -> None:
        """Launches a drawn server; of what the engine refuses, one option after the other becomes plain."""
        self.number, launches = 0, self.kinds.launches
        for name in ("", *reversed(launches.every)) if launches.models else ():
            numbers = numbers | {name: 0}
            if self.begin(configuration(launches.chosen(numbers, self.exclude))):
                self.number = 1 + max((step.get("request", -1) for step in self.lock.trace.steps), default=-1)
                return

    @property
    def begun(self) -> ServerRun:
        """The run, which has begun."""
        assert self.run is not None, "rules are drawn after the start"
        return self.run

    @rule(sent=moves, turns=st.integers(1, 4))
    def serve(self, sent: list[tuple[int, int, int, int]], turns: int) -> None:
        """Clients send some messages before the server polls; then the server makes a few turns of its loop. It has no
        precondition, since Hypothesis needs one rule that can always be taken.
        """
        if not started(self):
            return
        for pick, length, answer, fork in sent:
            self._send(pick, length, answer, fork)
        self.do("turn", times=turns)

    @rule(turns=st.sampled_from((4, 12, 70)))
    @precondition(started)
    def serves_on(self, turns: int) -> None:
        """Nobody sends anything for a while."""
        self.do("turn", times=turns)

    def _send(self, pick: int, length: int, answer: int, fork: int) -> None:
        """One message. A paused server, and one that has given its memory back, hears of few things."""
        begun = self.begun
        closed = [n for n in range(1, begun.config["sessions"] + 1) if n not in begun.sessions]
        opened, known = sorted(begun.sessions), sorted(begun.here)
        if begun.released:
            self.do("resume_memory")
        elif begun.paused and pick > RESUMES:
            self.do("resume")
        elif pick == 0 and known:
            self.do("abort", request=known[length % len(known)])
        elif pick == 1:
            self.do("flush")
        elif pick in (2, 3) and closed:
            self.do("open", session=closed[0], **({"turns": 8 * length} if answer == 1 else {}))
        elif pick == 4 and opened:
            self.do("close", session=opened[length % len(opened)])
        elif pick == 5 and not begun.paused:
            self.do("pause", mode="retract" if length % 2 else "in_place")
        elif pick == 6 and may_update_weights(begun, self.exclude):
            self.do("update_weights")
        elif pick == 7 and begun.quiet:
            if turns := turns_before_release(self.exclude):
                self.do("turn", times=turns)
            self.do("release_memory")
        elif not begun.paused:
            self._generate(pick, length, answer, fork)

    def _generate(self, pick: int, length: int, answer: int, fork: int) -> None:
        opened = sorted(self.begun.sessions)
        session = opened[length % len(opened)] if opened and pick % 2 else 0
        if not may_ask_for_turn(self.begun, self.exclude, session):
            session = 0
        first = len(self.begun.calls.texts.get(session, [])) if session else 0
        longest = max(1, self.begun.longest - SPARE)
        tokens = [token(first + n, fork) for n in range(min(length, longest))]
        stop = {"stop": first + length + answer // 2} if pick % 5 == 4 else {}
        urgent = pick % 4 and may_say_priority(self.begun, self.exclude)
        more = {"priority": (FAR, 2 * FAR, 0)[length % 3]} if urgent else {}
        known: Json = {"request": self.number, "tokens": tokens, "longest": answer, "session": session, "fork": fork}
        self.do("generate", **known, **stop, **more)
        self.number += 1

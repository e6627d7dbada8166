"""What the machines of all rooms for whole servers do: what clients send, and the flags of the server.

Pools are small, so that requests wait, are retracted and evict each other's prefixes.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from conformance.stems.launches import Launches, configuration
from conformance.stems.machine import StemMachine, started
from conformance.stems.server.client import LEAST, MOST, Client, Drawn
from conformance.stems.server.protocol import SENDS, TRANSFER
from conformance.stems.server.served import ServedClients

messages = st.tuples(*(st.integers(least, most) for least, most in zip(LEAST, MOST, strict=True)))
moves = st.lists(messages.map(Drawn._make), min_size=1, max_size=6)


def numbers_of(machine: ServedMachine) -> st.SearchStrategy[dict[str, int]]:
    """A number for each option of the engine's servers."""
    every = machine.launches().every.items()
    return st.fixed_dictionaries({name: st.integers(0, len(choices) - 1) for name, choices in every})


class ServedMachine(StemMachine):
    """Clients of one server."""

    run: ServedClients | None
    client: Client

    def launches(self) -> Launches:
        """The servers that are drawn."""
        raise NotImplementedError

    @initialize(numbers=st.runner().flatmap(numbers_of))
    def start(self, numbers: dict[str, int]) -> None:
        """Launches a drawn server; of what the engine refuses, one option after the other becomes plain."""
        launches = self.launches()
        for name in ("", *reversed(launches.every)) if launches.models else ():
            numbers = numbers | {name: 0}
            if self.begin(configuration(launches.chosen(numbers, self.exclude))):
                self.sink.avoided.update(launches.changed_by(numbers, self.exclude))
                return

    def has_begun(self) -> None:
        number = 1 + max((step.get("request", -1) for step in self.lock.trace.steps), default=-1)
        self.client = Client(self.do, self.exclude, number, self.sink.avoided)

    def turns(self, times: int) -> None:
        """The server makes so many turns."""
        assert self.run is not None
        self.client.turns(self.run, times)

    @staticmethod
    def widened(drawn: Drawn) -> Drawn:
        """What clients send, of drawn numbers."""
        return drawn

    @rule(sent=moves, turns=st.integers(1, 4))
    def serve(self, sent: list[Drawn], turns: int) -> None:
        """Clients send some messages before the server polls; then the server makes a few turns of its loop. It has no
        precondition, since Hypothesis needs one rule that can always be taken.
        """
        if self.run is None:
            return
        for drawn in sent:
            self.client.send(self.run, self.widened(drawn))
        self.turns(turns)

    @rule(turns=st.sampled_from((4, 12, 70)))
    @precondition(started)
    def serves_on(self, turns: int) -> None:
        """Nobody sends anything for a while."""
        assert self.run is not None
        if {TRANSFER, SENDS} <= {*self.run.lacks}:
            self.turns(turns)
        else:
            self.client.waits(self.run, turns)

"""The machine that draws runs of the room ``host_server``: what clients send, and when copies are done.

Most texts begin alike for longer than those of the room ``server``, since a short prefix is not loaded from the host.
Each run ends with ``drain``: every request leaves, every copy is done, and every slot of the host can be evicted.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from conformance.driver.shadow import FULL, STATES
from conformance.stems.host_server.exclusions import HostServerExclusion as Exclusion
from conformance.stems.host_server.exclusions import allowed
from conformance.stems.host_server.protocol import StorageOutcome, StorageThread
from conformance.stems.host_server.run import EVERY, HostServerRun
from conformance.stems.launches import Launches
from conformance.stems.machine import started
from conformance.stems.server.client import MOST, Drawn
from conformance.stems.server.crowd import wake
from conformance.stems.server.exclusions import may_flush
from conformance.stems.server.machine import ServedMachine, moves

WIDER = 2  # prompts are so many times longer than in the room ``server``
FORKS = (0, 16, 8, 24, 16, 12, 24)  # where texts part; a text comes again more often than there
FEW = 12  # turns with copies that end, where they are told one by one
MOSTLY_WELL: tuple[StorageOutcome, ...] = ("well", "well", "well", "partly", "fails", "raises")
Going = list[tuple[int, StorageOutcome]]  # threads that go on, by their numbers, and what becomes of their calls
threads_going = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(MOSTLY_WELL)), min_size=1, max_size=8)
QUERIES, FETCHES, AGREES, SAVES = range(4)  # numbers of threads
fetches_going = st.lists(
    st.tuples(st.sampled_from((FETCHES, FETCHES, FETCHES, AGREES, SAVES)), st.sampled_from(MOSTLY_WELL)),
    min_size=2,
    max_size=8,
)
ASKS = 16  # of the numbers of a draw: a client asks for an answer
ENDS = 5  # turns, after which a request with one token of an answer has ended
forks_of_others = st.lists(st.integers(1, 5), min_size=1, max_size=4, unique=True)
TURNS = 100  # so many turns, and a server without new requests has done what it can


def has_storage(machine: HostServerMachine) -> bool:
    """A precondition: the server is there, and has a storage."""
    return machine.run is not None and bool(machine.run.engine.storage_threads)


class HostServerMachine(ServedMachine):
    """Clients of one server with host memory, and its copies."""

    run: HostServerRun | None

    def launches(self) -> Launches:
        """The servers that are drawn."""
        return self.kinds.hosting

    def turns(self, times: int) -> None:
        """The server makes so many turns. Where states must not be held, no copy to the host is in flight meanwhile."""
        assert self.run is not None
        if not (STATES in self.run.bases and self.excludes(Exclusion.HELD_STATES)):
            self.do("turn", times=times)
            return
        self.sink.avoided[Exclusion.HELD_STATES] += 1
        for _ in range(min(times, FEW)):
            self.do("copies_end", stores=True, count=EVERY)
            self.do("turn", times=1)

    @staticmethod
    def widened(drawn: Drawn) -> Drawn:
        """Longer prompts, of which more begin alike."""
        return drawn._replace(length=WIDER * drawn.length, fork=FORKS[drawn.fork])

    @rule(stores=st.booleans(), count=st.integers(1, 3))
    @precondition(started)
    def copies_end(self, stores: bool, count: int) -> None:
        """Some copies are done."""
        self.do("copies_end", stores=stores, count=count)

    @rule(sent=moves, turns=st.integers(1, 3))
    @precondition(started)
    def serves_with_copies(self, sent: list[Drawn], turns: int) -> None:
        """Clients send some messages, and in each turn of the server the copies are done that were begun before."""
        assert self.run is not None
        for drawn in sent:
            self.client.send(self.run, self.widened(drawn))
        for _ in range(turns):
            self.all_copies_end()
            self.turns(1)

    @rule(fork=st.integers(0, 6), spare=st.integers(0, 3), more=st.integers(1, 4), others=forks_of_others)
    @precondition(started)
    def pushed_out(self, fork: int, spare: int, more: int, others: list[int]) -> None:
        """A text, and a longer one that begins with it, come and end; host memory has room for the KV cache of both,
        and for little more. Then others need the memory: what the longer one added leaves the device first, and goes to
        the host, and then the rest of it, of whose windows or states the host may not have room.
        """
        assert self.run is not None
        engine = self.run.engine
        room = min(engine.host_slots[FULL] * engine.host_pages[FULL], MOST.length * WIDER)
        length = max(1, room - more - spare)
        asked = [(length, FORKS[fork]), (length + more, FORKS[fork]), *((length + more, other) for other in others)]
        for tokens, other in asked:
            self.client.send(self.run, Drawn(pick=ASKS, length=tokens, answer=1, fork=other))
            for _ in range(ENDS):
                self.all_copies_end()
                self.turns(1)

    @rule(going=threads_going)
    @precondition(has_storage)
    def storage_goes_on(self, going: Going) -> None:
        """Threads between host memory and a storage go on."""
        self.go_on(going)

    @rule(sent=moves, turns=st.integers(1, 4), outcome=st.sampled_from(MOSTLY_WELL))
    @precondition(has_storage)
    def serves_with_storage(self, sent: list[Drawn], turns: int, outcome: StorageOutcome) -> None:
        """Clients send some messages, and in each turn of the server its copies are done, and its threads go on twice:
        to a call of the storage, and beyond it.
        """
        assert self.run is not None
        for drawn in sent:
            self.client.send(self.run, self.widened(drawn))
        for _ in range(turns):
            self.all_copies_end()
            for thread in self.run.engine.storage_threads:
                self.thread_goes_on(thread=thread, outcome="well")
                self.thread_goes_on(thread=thread, outcome=outcome)
            self.turns(1)

    @rule(sent=moves, going=fetches_going, aborts=st.booleans(), later=threads_going)
    @precondition(has_storage)
    def fetches(self, sent: list[Drawn], going: Going, aborts: bool, later: Going) -> None:
        """The server forgets what it has on the device and on the host, texts come again, and pages of them are on
        their way from the storage. A client may take its request back meanwhile.
        """
        assert self.run is not None
        run = self.run
        self.all_copies_end()
        self.go_on([(SAVES, "well")] * FEW)
        self.turns(FEW)
        if may_flush(run, self.exclude):
            self.do("flush")
        self.turns(1)
        for drawn in sent:
            self.client.send(run, self.widened(drawn))
        self.turns(1)
        self.go_on([(QUERIES, "well")] * 2)
        self.turns(1)
        self.go_on(going)
        if aborts and run.here:
            self.do("abort", request=max(run.here))
        self.turns(1)
        self.go_on(later)
        self.turns(2)

    def go_on(self, going: Going) -> None:
        """Threads of a storage, by their numbers, go on."""
        assert self.run is not None
        for number, outcome in going:
            self.thread_goes_on(self.run.engine.storage_threads[number], outcome)

    def thread_goes_on(self, thread: StorageThread, outcome: StorageOutcome) -> None:
        """A thread of the storage goes on."""
        self.do("storage_goes_on", thread=thread, outcome=allowed(outcome, self.exclude))

    def all_copies_end(self) -> None:
        """Every copy that is in flight is done."""
        for stores in (True, False):
            self.do("copies_end", stores=stores, count=EVERY)

    def teardown(self) -> None:
        """Ends everything, unless the run has failed before."""
        try:
            if self.run is not None and not self.failed:
                self.drain(self.run)
        finally:
            super().teardown()

    def drain(self, run: HostServerRun) -> None:
        """Clients take everything back, every copy is done, and the server hears of it."""
        wake(self.do, run)
        for request in sorted(run.here | run.coming):
            self.do("abort", request=request)
        for session in sorted(run.sessions):
            self.do("close", session=session)
        for _ in range(2):
            self.all_copies_end()
            for thread in run.engine.storage_threads * 2:
                self.thread_goes_on(thread=thread, outcome="well")
            self.do("turn", times=TURNS)
        if not (run.here or run.coming or run.memory.copies):
            self.do("rest")

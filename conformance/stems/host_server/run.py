"""A run of the room ``host_server``: clients send messages, and the law of ``host_tier`` follows the host memory.

The server decides what is copied, when, and what is evicted for it. The device ends copies at moments that are drawn.
Each page of a text is a key of the law: a slot of the host and a block of the device hold one page. What a page holds
is followed token by token in shadow memory; a forward pass reads all that comes before the tokens that it computes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping
from functools import partial
from typing import Any

from conformance.driver.diff import FieldDifference, Names
from conformance.driver.lockstep import INVARIANT, Calls, EngineCall, Finding, Ignores, Law, Operation, nothing
from conformance.driver.operations import operation, operations_of
from conformance.driver.protocol import EngineError, Json, Misuse
from conformance.stems.host_server.contents import ServedMemory
from conformance.stems.host_server.keys import KeyNumbers
from conformance.stems.host_server.projection import pool_problems, project_pool
from conformance.stems.host_server.protocol import HostPoolSnapshot, HostServerEngine, HostStep
from conformance.stems.server.protocol import POLL, ServerEvent, ServerPass
from conformance.stems.server.run import AGREES, AGREES_SENTENCE
from conformance.stems.server.served import GOES_ON, GOES_ON_SENTENCE, ServedClients
from spec import host_tier as law
from spec.finite import Seq
from spec.host_tier_state import NO_KEY, UNWRITTEN, WRITING, HostTierState
from spec.in_flight import NO_JOB

WAITS = "copy_waits_for_passes"
WAITS_SENTENCE = "A copy uses a block of the device only when the forward passes that write the block have ended."
RESTS = "host_memory_comes_back"
RESTS_SENTENCE = "When nothing runs and nothing is copied, every slot of host memory can be evicted."
WHOLE = "copy_is_of_whole_pages"
WHOLE_SENTENCE = "A copy between device and host moves whole pages, token by token in their order."


class HostServerRun(ServedClients):
    """Messages to one server with host memory."""

    name = "host_server"

    def __init__(self, engine: HostServerEngine, config: Json, strict: bool = True, ignores: Ignores = nothing) -> None:
        super().__init__(engine, config)
        slots, blocks = engine.host_slots, engine.shape["size"]
        jobs = slots + blocks
        self.law = Law(law.stem, law.initial(jobs + slots + blocks + 1, slots, blocks, 1, jobs), strict, ignores)
        self.law.names = Names()
        self.memory = ServedMemory(engine.host_page, lambda request: self.forks[request])
        self.shadow = self.memory.shadow
        self.keys = KeyNumbers()
        self.steps: deque[HostStep] = deque()  # what the server did with its host memory, and is not explained yet
        self.jobs: dict[tuple[int, int], int] = {}  # the law's number of each copy of a slot
        self.acks: dict[tuple[str, int], list[int]] = {}  # the slots that an acknowledgement will be of
        self.unfinished: frozenset[int] = frozenset()  # the blocks that forward passes in flight write
        self.operations: Mapping[str, Operation] = operations_of(self)
        self.seen: HostPoolSnapshot = engine.host_snapshot()

    # The device and the server.

    @operation
    def copies_end(self, stores: bool, count: int = 1) -> Calls:
        """So many copies of one direction are done, in their order, if so many are in flight. ``stores``: those to the
        host. The server hears of it later.
        """
        yield EngineCall("end_copies", partial(self.engine.end_copies, stores, count))
        self._follow_host()

    @operation
    def rest(self) -> Calls:
        """The server has no requests, and no copy is in flight: every slot of the host can be evicted."""
        if self.here or self.coming or self.memory.copies:
            raise Misuse("the server has requests, or a copy is in flight")
        self.law.count("rest", "done")
        kept = yield EngineCall("kept_on_host", self.engine.kept_on_host)
        if kept:
            raise Finding(RESTS, RESTS_SENTENCE, f"{kept} slots stay", kind=INVARIANT)

    def _turn(self) -> Generator[EngineCall | None, Any, ServerEvent]:
        while True:
            event: ServerEvent = yield EngineCall("go_on", self.engine.go_on, law=(GOES_ON, GOES_ON_SENTENCE))
            self._follow_host()
            if event.kind == POLL:
                self._polls(event)
                return event
            self._follow(event)

    def _polls(self, event: ServerEvent) -> None:
        self.here = set(event.requests)
        if not event.requests and (amiss := self.engine.idle_problems()):
            raise Finding(AGREES, AGREES_SENTENCE, "; ".join(amiss), kind=INVARIANT)

    def _follow(self, event: ServerEvent) -> None:
        """Requests come and leave, and forward passes are launched."""
        self.memory.follow(event)
        for request, known in event.requests.items():
            if event.kind == "arrived":
                self.here.add(request)
                self.coming.discard(request)
            elif event.kind == "left" and known.sent is not None:
                self.here.discard(request)
        if event.kind == "closed":
            self.sessions.discard(event.session)
        for one in event.passes:
            self._passes(one)
        if event.passes and self.engine.overlaps:  # the step before has ended when the next one is launched
            self.unfinished = frozenset(slot // self.memory.page for one in event.passes for slot in one.slots)

    def _passes(self, one: ServerPass) -> None:
        for block, prefix in self.memory.passes(one, self.engine.prefix_slots(one)):
            self.law.engine_step("write", block, self.keys.number(prefix, self.state) if prefix else UNWRITTEN)

    @property
    def settled(self) -> bool:
        """The server has heard of the end of each copy."""
        return not self.memory.copies and not self.acks

    def text_of(self, session: int) -> list[int]:
        """See ``ServedClients``."""
        return list(self.memory.said.get(session, []))

    # Host memory.

    def _follow_host(self) -> None:
        """Explains what the server has done with its host memory."""
        self.steps.extend(self.engine.host_steps())
        while self.steps:
            step = self.steps.popleft()
            getattr(self, f"_{step.kind}")(step)

    def _reserved(self, step: HostStep) -> None:
        """Slots are reserved for what the blocks hold now."""
        self._must_be_whole(step)
        for slot, block in step.pairs:
            self.law.engine_step("reserve", self.state.block_text(block), slot)
        self.acks["published", step.ack] = [slot for slot, _ in step.pairs]

    def _stores(self, step: HostStep) -> None:
        self._begins(step)
        for slot, block in step.pairs:
            self.law.engine_step("store", self._new_job(step.copy, slot), self.state.key(slot), Seq([block]))

    def _promised(self, step: HostStep) -> None:
        """The server has found keys, and will load them."""
        self._must_be_whole(step)
        for slot, _ in step.pairs:
            self.law.engine_step("find", self.state.key(slot), True)
            self.law.engine_step("promise", self.state.key(slot))
        self.acks["loaded", step.ack] = [slot for slot, _ in step.pairs]

    def _loads(self, step: HostStep) -> None:
        self._begins(step)
        for slot, block in step.pairs:
            self.law.engine_step("load", self._new_job(step.copy, slot), self.state.key(slot), 0, Seq([block]))

    def _ended(self, step: HostStep) -> None:
        copy = self.memory.ended(step.copy)
        for slot, _ in copy.pairs:
            self.law.engine_step("end", self.jobs.pop((step.copy, slot)), True)

    def _published(self, step: HostStep) -> None:
        for slot in self.acks.pop(("published", step.ack)):
            self.law.engine_step("publish", self.state.key(slot))

    def _loaded(self, step: HostStep) -> None:
        for slot in self.acks.pop(("loaded", step.ack)):
            self.law.engine_step("withdraw", self.state.key(slot))

    def _freed(self, step: HostStep) -> None:
        for slot, _ in step.pairs:
            key = self.state.key(slot)
            given_up = key != NO_KEY and self.state.phase(key) == WRITING
            self.law.engine_step("discard" if given_up else "evict", key, slot)

    def _cleared(self, _: HostStep) -> None:
        self.law.engine_step("reset")
        self.acks.clear()

    def _begins(self, step: HostStep) -> None:
        """A copy is in flight."""
        self.memory.begun(step)
        self._must_be_whole(step)
        early = [] if step.fenced else [block for _, block in step.pairs if block in self.unfinished]
        if early:
            raise Finding(WAITS, WAITS_SENTENCE, f"block {early[0]} is copied while a pass writes it", kind=INVARIANT)

    def _must_be_whole(self, step: HostStep) -> None:
        if parts := [slot for slot, block in step.pairs if not block]:
            raise Finding(WHOLE, WHOLE_SENTENCE, f"slot {parts[0]} is paired with no whole block", kind=INVARIANT)

    def _new_job(self, copy: int, slot: int) -> int:
        st = self.state
        number = next((int(n) for n in st.flight.jobs.items() if st.flight.kind(n) == NO_JOB), None)
        if number is None:
            raise EngineError("the server has more copies in flight than its pools have pages")
        self.jobs[copy, slot] = number
        return number

    @property
    def state(self) -> HostTierState:
        """The law's tier."""
        state: HostTierState = self.law.state
        return state

    # What the driver needs.

    def snapshot(self) -> HostPoolSnapshot:
        """The pool of host memory."""
        found: HostPoolSnapshot = self.engine.host_snapshot()
        return found

    def follow(self) -> None:
        """Nothing to do: each call explains what the server has done."""

    def project(self) -> Any:
        """The law's tier, with the number of free slots as the pool shows it."""
        return project_pool(self.state, self.seen)

    def hidden(self, change: FieldDifference) -> bool:
        """Nothing is hidden from a caller."""
        del change
        return False

    def beyond_state(self) -> list[str]:
        """What is wrong with the free list, and with the marks of the pool."""
        return pool_problems(self.state, self.seen)

    def judge(self) -> None:
        """Nothing to add: the invariants say everything."""

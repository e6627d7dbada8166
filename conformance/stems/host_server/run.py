"""A run of the room ``host_server``: clients send messages, and the law of ``host_tier`` follows the host memory.

The server decides what is copied, when, and what is evicted for it. The device ends copies at moments that are drawn.
Each page of a text is a key of the law: a slot of the host and a block of the device hold one page. What a page holds
is followed token by token in shadow memory; a forward pass reads all that comes before the tokens that it computes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from functools import partial
from typing import Any

from conformance.driver.diff import FieldDifference
from conformance.driver.lockstep import INVARIANT, Calls, EngineCall, Finding, Ignores, Law, Operation, nothing
from conformance.driver.operations import operation, operations_of
from conformance.driver.protocol import Json, Misuse
from conformance.driver.shadow import FULL, STATES, SWA
from conformance.stems.host_server.contents import ServedMemory, launched
from conformance.stems.host_server.keys import MORE_COPIES, MORE_KEYS, KeyNumbers, with_room_for_copy
from conformance.stems.host_server.projection import pool_problems, project_pools
from conformance.stems.host_server.protocol import (
    HostPoolSnapshot,
    HostServerEngine,
    HostStep,
    StorageOutcome,
    StorageThread,
)
from conformance.stems.host_server.storing import OnTheWay
from conformance.stems.lock_ref.projection import paths
from conformance.stems.server.economy import longest, short_hit, window_of
from conformance.stems.server.protocol import ADMITTED, FINDS, POLL, ServedRequest, ServerEvent, ServerPass
from conformance.stems.server.run import AGREES, AGREES_SENTENCE
from conformance.stems.server.served import GOES_ON, GOES_ON_SENTENCE, ServedClients
from spec import host_tier as law
from spec.finite import Seq
from spec.host_tier_state import NO_KEY, UNWRITTEN, WRITING, HostTierState

WAITS = "copy_waits_for_passes"
WAITS_SENTENCE = "A copy uses a block of the device only when the forward passes that write the block have ended."
RESTS = "host_memory_comes_back"
RESTS_SENTENCE = "When nothing runs and nothing is copied, every slot of host memory can be evicted."
HEARS = "server_hears_of_copies"
HEARS_SENTENCE = "A server hears of the end of each copy that is done."
HEARS_WITHIN = 100  # turns
EVERY = 1000  # more copies than are in flight
WHOLE = "copy_is_of_whole_pages"
WHOLE_SENTENCE = "A copy between device and host moves whole pages, token by token in their order."


class HostServerRun(ServedClients):
    """Messages to one server with host memory."""

    name = "host_server"
    seldom = 8  # see ServerRun

    def __init__(self, engine: HostServerEngine, config: Json, strict: bool = True, ignores: Ignores = nothing) -> None:
        super().__init__(engine, config)
        sizes = {FULL: "size", SWA: "size_swa", STATES: "size_mamba"}
        self.bases: dict[str, tuple[int, int]] = {}  # of each pool, the law's numbers before its slots and blocks
        slots = blocks = 0
        for pool, count in engine.host_slots.items():
            self.bases[pool] = slots, blocks
            slots, blocks = slots + count, blocks + engine.shape[sizes[pool]]
        self.law = Law(law.stem, law.initial(MORE_KEYS, slots, blocks, 1, MORE_COPIES), strict, ignores)
        self.memory = ServedMemory(engine.host_pages, lambda request: self.forks[request])
        self.shadow = self.memory.shadow
        self.keys = KeyNumbers()
        self.storage = OnTheWay(self.law, self.keys, blocks)
        self.steps: deque[HostStep] = deque()  # what the server did with its host memory, and is not explained yet
        self.jobs: dict[tuple[int, int, int], int] = {}  # by copy, slot and block, the law's number of the copy
        self.acks: dict[tuple[str, int], list[int]] = {}  # the slots that an acknowledgement will be of
        self.in_flight: deque[frozenset[int]] = deque()  # the law's blocks that each step in flight writes
        self.batches = 0  # the steps with a batch
        self.operations: Mapping[str, Operation] = operations_of(self)
        self.seen: Mapping[str, HostPoolSnapshot] = engine.host_snapshot()

    # The device and the server.

    @operation
    def copies_end(self, stores: bool, count: int = 1) -> Calls:
        """So many copies of one direction are done, in their order, if so many are in flight. ``stores``: those to the
        host. The server hears of it later.
        """
        yield EngineCall("end_copies", partial(self.engine.end_copies, stores, count))
        self._follow_host()

    @operation
    def storage_goes_on(self, thread: StorageThread, outcome: StorageOutcome = "well") -> Calls:
        """A thread of the server between host memory and storage goes on: to where it has nothing to do, or to its next
        call of the storage. ``outcome``: what becomes of the call before which it stands now.
        """
        if thread not in self.engine.storage_threads:
            raise Misuse(f"the server has no thread {thread!r}: expected one of {list(self.engine.storage_threads)}")
        yield from self._goes_on(thread, outcome)

    def _goes_on(self, thread: StorageThread, outcome: StorageOutcome) -> Calls:
        yield EngineCall("storage_goes_on", partial(self.engine.storage_goes_on, thread, outcome))
        self._follow_host()

    @operation
    def rest(self) -> Calls:
        """The server has no requests, and no copy is in flight. It makes turns until it has heard of the end of each
        copy; then every slot of the host can be evicted.
        """
        if self.here or self.coming or self.memory.copies:
            raise Misuse("the server has requests, or a copy is in flight")
        for _ in range(HEARS_WITHIN):
            for thread in self.engine.storage_threads:
                yield from self._goes_on(thread, "well")
            yield from self._turn()
            if self.settled or self.memory.copies:
                break
        if self.memory.copies:  # the server has begun copies that waited
            return
        if not self.settled:
            raise Finding(
                HEARS, HEARS_SENTENCE, f"within {HEARS_WITHIN} turns it does not: {self._unheard}", kind=INVARIANT
            )
        kept = yield EngineCall("kept_on_host", self.engine.kept_on_host)
        if kept:
            raise Finding(RESTS, RESTS_SENTENCE, kept, kind=INVARIANT)

    def _turn(self) -> Generator[EngineCall | None, Any, ServerEvent]:
        while True:
            event: ServerEvent = yield EngineCall("go_on", self.engine.go_on, law=(GOES_ON, GOES_ON_SENTENCE))
            self._follow_host()
            self.hears(event)
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
            elif event.kind == ADMITTED and FINDS not in self.lacks and not known.turned_away:
                self._admitted(request, known)
        if event.kind == "closed":
            self.sessions.discard(event.session)
        if event.passes:
            self.batches += 1
            self._passes(event.passes)
        if event.kind == "resulted" and self.in_flight:
            self.in_flight.popleft()

    def _admitted(self, request: int, known: ServedRequest) -> None:
        """A request will be in the next batch, and goes on after what it has matched and loads."""
        shape, text = self.engine.shape, self.memory.requests[request].tokens
        had = longest(paths(self.engine.tree_snapshot()), text, shape["page_size"], window_of(shape))
        if (short := short_hit(request, known.prefix, had)) is not None:
            self.law.report(short)

    def _passes(self, passes: Sequence[ServerPass]) -> None:
        self.in_flight.append(self._written(self.memory.passes(*launched(self.engine, passes))))

    def _written(self, written: Sequence[tuple[str, int, int]]) -> frozenset[int]:
        """Blocks were written. Returns the law's numbers of those of which the host has a pool."""
        found = [(pool, self.bases[pool][1] + block, prefix) for pool, block, prefix in written if pool in self.bases]
        for pool, block, prefix in found:
            self.law.engine_step("write", block, self._key(pool, prefix) if prefix else UNWRITTEN)
        return frozenset(block for _, block, _ in found)

    def _key(self, pool: str, prefix: int) -> int:
        """The number of a key."""
        return self.keys.number((pool, prefix), self.law)

    @property
    def settled(self) -> bool:
        """The server has heard of the end of each copy."""
        return not self.memory.copies and not self.acks and self.storage.nothing

    @property
    def _unheard(self) -> str:
        """Of what the server has not heard the end."""
        acks = [f"{kind} {number}: slots {slots}" for (kind, number), slots in self.acks.items()]
        return "; ".join([*acks, *self.storage.told()])

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

    def _pairs(self, step: HostStep) -> list[tuple[int, int]]:
        """The slots and blocks of a step, as the law's numbers."""
        slots, blocks = self.bases[step.pool]
        return [(slots + slot, blocks + block) for slot, block in step.pairs]

    def _reserved(self, step: HostStep) -> None:
        """Slots are reserved for what the blocks hold now."""
        self._must_be_whole(step)
        for slot, block in self._pairs(step):
            self.law.engine_step("reserve", self.state.block_text(block), slot)
        self.acks.setdefault(("published", step.ack), []).extend(slot for slot, _ in self._pairs(step))

    def _stores(self, step: HostStep) -> None:
        self._begins(step)
        for slot, block in self._pairs(step):
            self.law.engine_step("store", self._new_job(step.copy, slot, block), self.state.key(slot), Seq([block]))

    def _promised(self, step: HostStep) -> None:
        """The server has found keys, and will load them."""
        self._must_be_whole(step)
        for slot, _ in self._pairs(step):
            self.law.engine_step("find", self.state.key(slot), True)
            self.law.engine_step("promise", self.state.key(slot))
        self.acks.setdefault(("loaded", step.ack), []).extend(slot for slot, _ in self._pairs(step))

    def _loads(self, step: HostStep) -> None:
        self._begins(step)
        for slot, block in self._pairs(step):
            self.law.engine_step("load", self._new_job(step.copy, slot, block), self.state.key(slot), 0, Seq([block]))

    def _ended(self, step: HostStep) -> None:
        copy = self.memory.ended(step.copy)
        for slot, block in self._pairs(copy):
            self.law.engine_step("end", self.jobs.pop((step.copy, slot, block)), True)

    def _published(self, step: HostStep) -> None:
        for slot in self.acks.pop(("published", step.ack), ()):
            self.law.engine_step("publish", self.state.key(slot))

    def _loaded(self, step: HostStep) -> None:
        for slot in self.acks.pop(("loaded", step.ack), ()):
            self.law.engine_step("withdraw", self.state.key(slot))

    def _freed(self, step: HostStep) -> None:
        for slot, _ in self._pairs(step):
            key = self.state.key(slot)
            given_up = key != NO_KEY and self.state.phase(key) == WRITING
            self.law.engine_step("discard" if given_up else "evict", key, slot)

    def _cleared(self, _: HostStep) -> None:
        self.law.engine_step("reset")
        self.acks.clear()
        self.storage.forget()

    # The storage behind host memory.

    def _slots(self, step: HostStep) -> list[int]:
        """The slots of a step, as the law's numbers."""
        return [self.bases[step.pool][0] + slot for slot, _ in step.pairs]

    def _staged(self, step: HostStep) -> None:
        text, size = self.memory.requests[step.request].text, self.memory.pages[FULL]
        prefixes = self.shadow.texts.prefixes(text)
        ends = [prefixes[(page + 1) * size - 1] for _, page in step.pairs]
        self.storage.staged(step.copy, [(step.pool, *page) for page in zip(self._slots(step), ends, strict=True)])

    def _fetched(self, step: HostStep) -> None:
        self.memory.fetched(step)
        self.storage.fetched(step.copy, self._slots(step))

    def _fetch_ended(self, step: HostStep) -> None:
        self.storage.fetch_ended(step.copy)

    def _inserted(self, step: HostStep) -> None:
        self.storage.inserted(self._slots(step))

    def _saves(self, step: HostStep) -> None:
        self.storage.saves(step.copy, self._slots(step))

    def _saved(self, step: HostStep) -> None:
        self.memory.saved(step)

    def _save_ended(self, step: HostStep) -> None:
        self.storage.save_ended(step.copy)

    def _let_go(self, step: HostStep) -> None:
        self.storage.let_go(step.copy)

    def _begins(self, step: HostStep) -> None:
        """A copy is in flight."""
        self.memory.begun(step)
        self._must_be_whole(step)
        ordered = step.fenced or not self.engine.overlaps  # steps that do not overlap are on the copy's own stream
        unfinished = frozenset() if ordered else frozenset().union(*self.in_flight)
        if early := [block for _, block in self._pairs(step) if block in unfinished]:
            raise Finding(WAITS, WAITS_SENTENCE, f"block {early[0]} is copied while a pass writes it", kind=INVARIANT)

    def _ordered(self, _: HostStep) -> None:
        """Later copies wait for the forward passes that were launched before."""
        self.in_flight = deque(frozenset() for _ in self.in_flight)

    def _copied(self, step: HostStep) -> None:
        """States were copied on the device."""
        self._written(self.memory.copied(step))

    def _must_be_whole(self, step: HostStep) -> None:
        if parts := [slot for slot, block in step.pairs if not block]:
            raise Finding(WHOLE, WHOLE_SENTENCE, f"slot {parts[0]} is paired with no whole block", kind=INVARIANT)

    def _new_job(self, copy: int, slot: int, block: int) -> int:
        self.law.state, number = with_room_for_copy(self.state)
        self.jobs[copy, slot, block] = number
        return number

    @property
    def state(self) -> HostTierState:
        """The law's tier."""
        state: HostTierState = self.law.state
        return state

    # What the driver needs.

    def snapshot(self) -> Mapping[str, HostPoolSnapshot]:
        """The pools of host memory."""
        found: Mapping[str, HostPoolSnapshot] = self.engine.host_snapshot()
        return found

    def follow(self) -> None:
        """Nothing to do: each call explains what the server has done."""

    def project(self) -> Any:
        """The law's tier, with the number of free slots as the pools show it."""
        return project_pools(self.state, self.seen)

    def hidden(self, change: FieldDifference) -> bool:
        """Nothing is hidden from a caller."""
        del change
        return False

    def beyond_state(self) -> list[str]:
        """What is wrong with the free lists, and with the marks of the pools."""
        each = [pool_problems(self.state, self.bases[pool][0], pool, seen) for pool, seen in self.seen.items()]
        return [words for found in each for words in found]

    def judge(self) -> None:
        """Nothing to add: the invariants say everything."""

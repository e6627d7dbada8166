"""A run of ``block_cache`` that is played from a recording: the scheduler has acted already, and is judged.

Nobody is asked what happens next. Each operation is one record: it says what the scheduler did, which is explained as
steps of the law (``conformance.stems.block_cache.follow``), and what the scheduler showed afterwards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from conformance.driver.diff import FieldDifference, Names
from conformance.driver.lockstep import ANSWERED, ANSWERED_SENTENCE, QUIESCENT, Calls, Finding, Law, Operation
from conformance.driver.operations import operation, operations_of
from conformance.driver.shadow import Shadow
from conformance.recording.block_records import (
    RecordedCall,
    RecordedDone,
    RecordedLaunch,
    RecordedStart,
)
from conformance.stems.block_cache.follow import Follower
from conformance.stems.block_cache.projection import of_requests, with_row
from conformance.stems.block_cache.protocol import Launched
from conformance.stems.block_cache.recorded.parts import Parts
from conformance.stems.block_cache.recorded.player import Player, ShownBlocks
from conformance.stems.block_cache.recorded.state import first_state, standing_state
from conformance.stems.block_cache.recorded.stories import GET, BlockSizes, Digests, NamedPlace, RecordedStories
from conformance.stems.block_cache.run import must_have_left
from spec import block_cache as law
from spec.block_cache import BlockCacheState
from spec.block_pool_state import NO_HASH, NULL, BlockPoolState
from spec.logic import but

GIVEN_BACK = (
    "The blocks of a request that has left are given back at once, or when the steps are done that were in flight then."
)
LATER = 1  # a scheduler that gives blocks back in the order in which requests left may be so many steps late


class Left(NamedTuple):
    """A request has left, and its blocks were not given back at once. ``record``: the number of the call, from 1 on.
    ``step``: the last step that was in flight then.
    """

    record: int
    step: int


class RecordedRun:
    """Plays the records after ``start``. ``number``: of the call that is played, from 1 on. ``to_blame``: after a
    finding the number of the call that was wrong, 0 where that is the present one.
    """

    lacks: Collection[str] = ()

    def __init__(self, start: RecordedStart) -> None:
        sizes = BlockSizes(start.config)
        self.stories, self.engine, self._digests = RecordedStories(sizes), Player(start), Digests(sizes)
        stories, self._sizes = self.stories, sizes
        for one in self._digests.named(start):
            stories.names(one)
        held = {block for one in start.requests for table in one.tables for block in table}
        self._unplaced = {block for block, _, _ in start.names} - held  # found, and nobody knows at which place
        state = first_state(start.config, stories)
        self.law = Law(law.stem, state)
        self.follower = Follower(self.law, start.config, stories, passes=False)
        self.law.state = standing_state(state, start, self.engine.shown.requests, self.follower, stories)
        self.law.names = Names(row=self.follower.name, text=stories.name)
        self.shadow = Shadow()
        self._flying: deque[tuple[int, Launched, set[int]]] = deque(
            (one.step, self.engine.launches(one), set()) for one in start.steps
        )
        self.engine.begins(start)
        self.parts = Parts(start, sizes, stories, self.engine)
        self.operations: Mapping[str, Operation] = operations_of(self)
        self.seen: ShownBlocks = self.engine.shown
        self._asked: Iterable[int] = ()  # the requests of the present call
        self.record: RecordedCall | RecordedStart = start
        self.number = self.to_blame = 0
        self._left: dict[int, Left] = {}  # by request

    # The calls of a scheduler.

    @operation
    def start(self) -> Calls:
        """The recording shows the whole state once more: it must be what the calls before have led to."""
        assert isinstance(self.record, RecordedStart)
        self._names()
        self.engine.begins(self.record)
        self.parts.begins(self.record)
        self._asked = [*self.seen.requests]
        yield None

    @operation
    def add(self) -> Calls:
        """A request comes."""
        call = self._call()
        request = call.rest[0]
        if request not in self.follower.here:
            self.follower.comes(request, 0, (), ())
            self.engine.comes(request)
        self._explain(call)
        yield None

    @operation
    def launch(self) -> Calls:
        """The scheduler makes a step and sends it to the workers."""
        call = self._call()
        launch = RecordedLaunch(*call.rest)
        step = self.engine.launches(launch)
        step = Launched(step.passes, tuple(call.preempted))
        self._preempted(call)
        if step.passes:
            self._flying.append((launch.step, step, set()))
            self.follower.jobs.step_begins()
        self._explain(call, step)
        yield None

    @operation
    def done(self) -> Calls:
        """The oldest step in flight is done."""
        call = self._call()
        done = RecordedDone(*call.rest)
        self.engine.completes(done)
        while self._flying and self._flying[0][0] <= done.step:
            number, step, dropped = self._flying.popleft()
            if number == done.step:
                self._verified(step, done, dropped)
        self.follower.settle()
        self._preempted(call)
        self._explain(call)
        self._must_be_given_back(done.step)
        yield None

    def _verified(self, step: Launched, done: RecordedDone, dropped: Collection[int]) -> None:
        for (request, one), sampled in zip(step.passes.items(), done.sampled, strict=True):
            if request in self.follower.here and request not in dropped:
                self.follower.verified(request, sampled - 1 if sampled else one.drafts)
        self._asked = [*step.passes]

    @operation
    def abort(self) -> Calls:
        """Requests are aborted."""
        call = self._call()
        must_have_left(call.rest, self.seen.requests)
        self._explain(call)
        yield None

    @operation
    def outside(self) -> Calls:
        """Blocks change between two calls."""
        self._explain(self._call())
        yield None

    @operation
    def reset(self) -> Calls:
        """The prefix cache is reset."""
        call = self._call()
        self._preempted(call)
        self._explain(call)
        self.law.engine_step("reset", bool(call.rest[0]))
        yield None

    def _call(self) -> RecordedCall:
        """The record that is played. Raises ``Finding`` if the engine's call raised an exception."""
        call = self.record
        assert isinstance(call, RecordedCall)
        for move in call.moves:
            if move.kind == GET:
                self._unplaced.difference_update(move.blocks)
        self._names()
        self.engine.plays(call)
        self._asked = {*(request for request, _ in self.seen.places), *call.preempted}
        if call.raised:
            raise Finding(ANSWERED, ANSWERED_SENTENCE, f"{call.function} raised {call.raised}")
        return call

    def _names(self) -> None:
        """The record names places of requests. What the law has of them gets the numbers that they have now."""
        for one in self._digests.named(self.record):
            if one.block in self._unplaced:
                self._unplaced.discard(one.block)
                pool = self.law.state.pool
                self.law.state = but(self.law.state, pool=but(pool, index=pool.index.put(one.block, one.column)))
            if (changed := self.stories.names(one)) is not None and one.request in self.follower.here:
                self._renumber(one, *changed)

    def _renumber(self, one: NamedPlace, old: int, new: int) -> None:
        """The blocks of a request at this place contain a prefix whose number has changed."""
        for row in self.follower.here[one.request].rows:
            pool = self.law.state.pool
            column = self._sizes.column(pool.group(row), one.place)
            block = NULL if column is None else pool.table(row, column)
            if block != NULL and pool.content(block) == old:
                self.law.state = but(self.law.state, pool=but(pool, content=pool.content.put(block, new)))

    def _preempted(self, call: RecordedCall) -> None:
        """What steps in flight compute for these requests does not count any more."""
        for _, _, dropped in self._flying:
            dropped.update(call.preempted)

    def _explain(self, call: RecordedCall, step: Launched | None = None) -> None:
        computed = self.parts.named(call, self.follower.here)
        self.follower.call(self.engine.moves, self.seen.requests, step, call.preempted)
        passes = {} if step is None else step.passes
        self.parts.follow(call, passes, self.follower.here, computed)
        if step is not None:
            self._asked = {*self._asked, *step.passes}
        waiting = {request for request, _ in self.follower.kept}
        last = self._flying[-1][0] if self._flying else 0
        self._left = {request: self._left.get(request, Left(self.number, last)) for request in sorted(waiting)}
        if not self._flying:
            self._must_be_given_back(last)

    def _must_be_given_back(self, done: int) -> None:
        """``done``: the number of the last step that is done, 0 where none is in flight."""
        for request, left in self._left.items():
            if not self._flying or done > left.step + LATER:
                self.to_blame = left.record
                held = ", ".join(map(str, sorted(self.follower.holds(request))))
                raise Finding(QUIESCENT, GIVEN_BACK, f"request {request} has left, and blocks {held} are not free")

    # What the driver needs.

    def snapshot(self) -> ShownBlocks:
        """What the scheduler showed."""
        return self.engine.shown

    def follow(self) -> None:
        """Each operation explains what its call has changed."""

    def project(self) -> BlockCacheState:
        """The law's state, with tables, counts and hashes as the scheduler showed them."""
        st: BlockCacheState = self.law.state
        now = self._tables(self._blocks(st.pool))
        return st if now is st.pool else but(st, pool=now)

    def _blocks(self, st: BlockPoolState) -> BlockPoolState:
        refs, hashes = st.refs, st.hash
        for block, count in self.seen.refs.items():
            if st.refs(block) != count:
                refs = refs.put(block, count)
        for block, digest in self.seen.names.items():
            prefix = self.stories.of_digest(digest) if digest else NO_HASH
            if st.hash(block) != prefix:
                hashes = hashes.put(block, prefix)
        if refs is st.refs and hashes is st.hash and self.seen.available == st.available:
            return st
        return but(st, refs=refs, hash=hashes, available=self.seen.available)

    def _tables(self, st: BlockPoolState) -> BlockPoolState:
        table = st.table
        for (request, group), places in self.seen.places.items():
            one, shown = self.follower.here.get(request), self.seen.requests.get(request)
            if one is None or shown is None or not one.rows:
                continue
            row, blocks = one.rows[group], shown.tables[group]
            length = max(len(blocks), st.length(row))
            looked_at = range(length) if places is None or length > len(blocks) else places
            table = with_row(table, row, blocks, looked_at)
        return st if table is st.table else but(st, table=table)

    def hidden(self, change: FieldDifference) -> bool:
        """Nothing is hidden from a caller."""
        del change
        return False

    def beyond_state(self) -> list[str]:
        """What is wrong with what the scheduler knows of the requests of this call."""
        here = {request: one for request in self._asked if (one := self.follower.here.get(request)) is not None}
        return [*of_requests(self.seen.requests, here)]

    def judge(self) -> None:
        """Nothing to add: the invariants say everything."""

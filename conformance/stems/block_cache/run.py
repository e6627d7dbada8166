"""A run of the stem ``block_cache``: requests that come and leave, and a scheduler that is its own caller.

The run decides which requests come, what is drafted and sampled, and when a step is done. The scheduler decides
everything else. What it does to blocks is explained as steps of the law (``conformance.stems.block_cache.follow``), and
stand-in workers compute what it launches (``conformance.stems.block_cache.worker``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from math import lcm
from typing import Any

from conformance.driver.diff import FieldDifference, Names
from conformance.driver.lockstep import QUIESCENT, Calls, EngineCall, Finding, Ignores, Law, Operation, nothing
from conformance.driver.operations import KeyTokens, Tokens, operation, operations_of
from conformance.driver.protocol import Json, Misuse, lacking
from conformance.driver.shadow import BLOCK_SLOTS, NOBODY, STATES, Shadow, WrongSlot
from conformance.stems.block_cache.economy import Economy
from conformance.stems.block_cache.exchange import Exchange
from conformance.stems.block_cache.follow import NOTHING_HELD, BlockStories, Follower
from conformance.stems.block_cache.host import HOST_RESTS, IdleCopies, does_not_rest
from conformance.stems.block_cache.memory import Misread
from conformance.stems.block_cache.projection import parts, problems, project, whole
from conformance.stems.block_cache.protocol import (
    MAMBA,
    NO_LIMITS,
    WINDOW,
    BlockCacheEngine,
    BlockCacheSnapshot,
    Completed,
    HostLimits,
    Launched,
    exchanges,
    has_own_connector,
    sizes_of,
)
from conformance.stems.block_cache.worker import Astray, Workers
from conformance.stems.requests.request import token
from spec import block_cache as law
from spec import block_pool
from spec.block_cache import BlockCacheState
from spec.finite import Domain
from spec.logic import but

COMPUTES_OWN = "pass_computes_own_tokens"
COMPUTES_OWN_SENTENCE = "A pass computes tokens that its request has, and drafts that follow them."
PROGRESS = "waiting_requests_run"
PROGRESS_SENTENCE = (
    "When requests wait, while neither a step nor a transfer is under way, and the pool has room for each request "
    "alone, then the scheduler goes on: soon one of them is computed or loaded."
)
ENDS = "ends_with_its_last_token"
ENDS_SENTENCE = "A request ends with the last token that was asked for, and not before, unless it is aborted or fails."
ABORT = "aborted_request_ends"
ABORT_SENTENCE = "A request that is aborted ends at once."
STILL = 4  # so many empty steps, one after the other, and the scheduler makes no other any more
NEXT_MESSAGE = 1_000_000_001  # a token that no text of a run has
MOST_STORIES = 1 << 31
MOST_WITH_TRANSFERS = 8  # requests of a run with transfers that have not ended, or whose blocks a transfer uses


def wrong_of(misread: Misread, size: int, step: int) -> WrongSlot:
    """What a request has read that was not its own. ``size``: of the largest block. ``step``: the operation."""
    reader = f"request {misread.request}"
    writer = NOBODY if misread.writer is None else f"request {misread.writer}"
    where = misread.where if misread.writer is None else f"{misread.where}, which holds {misread.holds}"
    pool, slot = STATES if misread.is_state else BLOCK_SLOTS, misread.block * size + misread.offset
    return WrongSlot(reader, writer, pool, slot, misread.token, step, 0, where)


def must_have_left(aborted: Collection[int], known: Collection[int]) -> None:
    """Raises ``Finding`` if a request that was aborted has not ended. ``known``: those that have not."""
    if left := [request for request in aborted if request in known]:
        said = f"{'request' if len(left) == 1 else 'requests'} {', '.join(map(str, left))}"
        raise Finding(ABORT, ABORT_SENTENCE, f"{said} {'was' if len(left) == 1 else 'were'} aborted")


class BlockCacheRun:
    """Operations on requests. A number of a request comes once."""

    def __init__(self, engine: BlockCacheEngine, config: Json, strict: bool = True, ignores: Ignores = nothing) -> None:
        self.engine, self.config = engine, config
        self.lacks: Collection[str] = lacking(engine)
        self.sizes = sizes_of(config)
        self.largest = max(self.sizes)
        self.stories = BlockStories(self.sizes)
        self.law = Law(law.stem, self._initial(), strict, ignores)
        self.follower = Follower(self.law, config, self.stories, economy=Economy.of(self.law, config))
        self.law.names = Names(row=self.follower.name, text=self.stories.name)
        self.workers = Workers(config)
        self.exchange = Exchange(self.workers, lcm(*self.sizes))
        self.shadow = Shadow()
        self.flying: deque[Launched] = deque()
        self.forks: dict[int, int] = {}
        self.ends: dict[int, int] = {}  # by request the tokens with which it ends, with those of its prompt
        self._dropped: deque[set[int]] = deque()  # for each step in flight, the requests that were preempted since
        self.host_is_reset = False  # host memory was reset, and no step was made since
        self.idle = IdleCopies(config["blocks"])
        self._empty = 0  # the empty steps since anything else has happened
        self.operations: Mapping[str, Operation] = operations_of(self)
        self.seen: BlockCacheSnapshot = engine.snapshot()
        self._pool = whole(self.seen.pool, self.sizes)

    def _initial(self) -> BlockCacheState:
        config, groups = self.config, self.config["layers"]
        most = config["requests"] * (1 + config["steps_in_flight"])  # those that run, and those of steps in flight
        rows = (most + (MOST_WITH_TRANSFERS if config.get("transfers", False) else 0)) * len(groups)
        places = -(-config["max_length"] // min(self.sizes)) + 2
        stories: Any = self.stories  # it is called as the law's map is, and grows with the requests that come
        pool = block_pool.initial(config["blocks"], rows, places, len(groups), 0, stories)
        pool = but(pool, stories=Domain(0, MOST_STORIES))
        windows = [group["window"] - 1 if group["kind"] == WINDOW else None for group in groups]
        jobs = rows * (1 + config["steps_in_flight"])  # of each row one transfer, and in each step one pass
        return law.initial(pool, self.sizes, windows, [group["kind"] == MAMBA for group in groups], jobs)

    # Requests.

    @operation
    def add(
        self,
        request: int,
        tokens: KeyTokens,
        outputs: Tokens,
        fork: int = 0,
        mark: int = 0,
        priority: int = 0,
        elsewhere: Tokens = 0,
        sends: bool = False,
        most_loaded: Tokens | None = None,
        most_copied: Tokens | None = None,
    ) -> Calls:
        """A request comes with a prompt, and ends after ``outputs`` sampled tokens.

        ``fork``: requests with one prompt and one fork sample equal tokens. ``mark``: what its KV cache depends on
        beside its tokens, such as an adapter or a salt. ``priority``: a smaller number goes first. ``elsewhere``:
        another server has computed that many first tokens of the prompt. ``sends``: another server reads its blocks
        when it has ended. ``most_loaded``, ``most_copied``: see ``HostLimits``.
        """
        if request in self.forks or not tokens or outputs < 1:
            raise Misuse("the number of the request was used before, or it has no token or no output")
        if len(tokens) + outputs > self.config["max_length"]:
            raise Misuse("the request is longer than any may be")
        limits = HostLimits(most_loaded, most_copied)
        if limits != NO_LIMITS and "host" not in self.config:
            raise Misuse("no host memory is configured")
        if (elsewhere or sends) and not exchanges(self.config):
            raise Misuse("no transfers between servers are configured")
        if (
            self.config.get("transfers", False)
            and len({*self.follower.here, *self.exchange.known()}) >= MOST_WITH_TRANSFERS
        ):
            raise Misuse(f"a run with transfers has at most {MOST_WITH_TRANSFERS} requests at a time", by_engine=True)
        if elsewhere > len(tokens):
            raise Misuse("another server has no more tokens than the prompt")
        if self.hands_on(len(tokens), elsewhere, sends) and outputs > 1:
            raise Misuse("who computes a prompt for another server samples one token")
        self.forks[request], self.ends[request] = fork, len(tokens) + outputs
        self._empty = 0
        more = [token(n, fork) for n in range(len(tokens), self.config["max_length"] + self.largest)]
        self.follower.comes(request, mark, tokens, [*tokens, *more])
        self.workers.comes(request, mark)
        asked = (elsewhere, sends) if self.config.get("transfers", False) else ()
        of_host = (limits,) if "host" in self.config else ()
        yield EngineCall("add", partial(self.engine.add, request, tokens, outputs, mark, priority, *asked, *of_host))

    def hands_on(self, length: int, elsewhere: int, sends: bool) -> bool:
        """A prompt of this length, or what is not elsewhere of it, is computed for another server, and an engine's own
        connector decides about that.
        """
        goes_on = elsewhere > 0 and self.config.get("both_ways", False)
        return has_own_connector(self.config) and (sends or goes_on) and elsewhere < length

    def _read(self, request: int, count: int | None) -> list[int]:
        """The tokens of a request that another server reads: all but the last, or so many. Where these are more than
        the request has, the next prompt goes on with other tokens than those that the engine has computed there.
        """
        tokens = self.follower.here[request].tokens
        return tokens[:-1] if count is None else [*tokens, *[NEXT_MESSAGE] * (count - len(tokens))][:count]

    @operation
    def abort(self, request: int) -> Calls:
        """A request is aborted, also while a step with it is in flight."""
        if request in self.forks and request not in self.follower.here:
            raise Misuse(f"request {request} has ended", by_engine=True)
        self.follower.must_know(request)
        self._empty = 0
        yield EngineCall("abort", partial(self.engine.abort, request))
        must_have_left([request], self.seen.requests)
        self._explain()

    # Steps.

    @operation
    def schedule(self) -> Calls:
        """The scheduler makes a step and sends it to the workers."""
        if len(self.flying) >= self.config["steps_in_flight"]:
            raise Misuse("as many steps are in flight as may be", by_engine=True)
        slept = self.seen.sleeps
        step: Launched = yield EngineCall("schedule", self.engine.schedule)
        self.host_is_reset = False
        self.workers.launched(step)  # first, so that a run that is driven on after a finding has the step
        self._preempted(step.preempted)
        if step.passes or self.config.get("transfers", False):
            self.flying.append(step)
            self._dropped.append(set())
            self.follower.jobs.step_begins()
            self.exchange.launched(step, {request: one.tokens for request, one in self.follower.here.items()})
        self._explain(step)
        self._must_go_on(step)
        self.idle.launched(step, bool(self.follower.here), slept)

    @operation
    def complete(self, accept: int = 0) -> Calls:
        """The oldest step in flight is done. ``accept``: so many tokens of each draft are accepted, if somebody drafted
        them.
        """
        if not self.flying:
            raise Misuse("no step is in flight", by_engine=True)
        step, dropped = self.flying.popleft(), self._dropped.popleft()
        sampled = {request: self._sampled(request, 0 if one.placeholders else one.drafts, accept)
                   for request, one in step.passes.items() if one.samples}  # fmt: skip
        self.exchange.begins()
        try:
            self.note(self.workers.completed(sampled, self.follower.here))
        except Astray as astray:
            raise Finding(COMPUTES_OWN, COMPUTES_OWN_SENTENCE, str(astray)) from None
        transfers = self.exchange.completed()
        told = (transfers,) if self.config.get("transfers", False) else ()
        done: Completed = yield EngineCall("complete", partial(self.engine.complete, sampled, *told))
        self.follower.jobs.step_ends()
        for request, one in step.passes.items():
            if request in self.follower.here and request not in dropped:
                self.follower.verified(request, len(sampled[request]) - 1 if request in sampled else one.drafts)
        for request, tokens in done.delivered.items():
            if request in self.follower.here:
                self.follower.here[request].tokens += tokens
        self._must_end(transfers.failed)
        for request, tables in done.sends.items():
            self.exchange.ended(request, tables, self._read(request, done.reads.get(request)))
        for request, computed in transfers.received.items():
            if request in step.loads and step.loads[request].within_step:
                continue  # it counts as loaded since the step was launched
            if request in transfers.failed and not self._counts_tokens(request):
                self.follower.lost(request)
            else:
                self.follower.loaded(request, computed)
        for request in transfers.sent:
            self.follower.jobs.sent(request)
        self.follower.settle()
        self._explain(sends=[*done.sends])
        if self.config["drafts"] and "draft" not in self.lacks:
            drafts = {r: self._next(r, self.config["drafts"]) for r in sampled if r in self.follower.here}
            yield EngineCall("draft", partial(self.engine.draft, drafts))

    @operation
    def arrive(self, request: int, lost: int = 0, worker: int | None = None) -> Calls:
        """The transfer of KV cache into the blocks of a request is done; so many of its last blocks did not come.
        ``worker``: on this worker alone; without it on all where it is not done yet.

        The worker tells with the next step that is done, of those that were made when the transfer began or later.
        """
        self._must_be_there(worker)
        self.exchange.arrives(request, lost, worker)
        self._empty = 0
        yield None

    @operation
    def stored(self, job: int, worker: int | None = None) -> Calls:
        """A copy of blocks to host memory is done, on this ``worker`` alone, or on all where it is not done yet. The
        worker tells with the next step that is done.
        """
        self._must_be_there(worker)
        self.exchange.stores(job, worker)
        self._empty = 0
        yield None

    @operation
    def copied(self) -> Calls:
        """All copies of blocks to host memory that have begun are done."""
        for job in self.exchange.storing():
            self.exchange.stores(job)
        self._empty = 0
        yield None

    @operation
    def sent(self, request: int, worker: int | None = None) -> Calls:
        """Another server has read the blocks of a request that has ended, from this ``worker`` alone, or from all from
        which it has not. The worker tells with the next step that is done.
        """
        self._must_be_there(worker)
        self.note(self.exchange.leaves(request, worker))
        self._empty = 0
        yield None

    def _must_be_there(self, worker: int | None) -> None:
        if worker is not None and worker not in self.exchange.workers:
            raise Misuse(f"there is no worker {worker}")

    def _sampled(self, request: int, drafts: int, accept: int) -> list[int]:
        """The drafts that are accepted, and one token."""
        return self._next(request, 1 + min(accept, drafts))

    def _next(self, request: int, count: int) -> list[int]:
        """The next tokens of a request's text. A request that has ended meanwhile samples any."""
        one = self.follower.here.get(request)
        known = 0 if one is None else len(one.tokens)
        return [token(n, self.forks[request]) for n in range(known, known + count)]

    @operation
    def reset(self, preempt: bool, host: bool = False) -> Calls:
        """The prefix cache is reset.

        ``preempt``: the requests that run are preempted first, also while a step with them is in flight. What that step
        computes for them does not count. ``host``: host memory forgets everything, too, as after new weights: where the
        scheduler says that it is done, nothing that was computed before comes back from there.
        """
        if host and "host" not in self.config:
            raise Misuse("no host memory is configured")
        if len(self.flying) >= self.config["steps_in_flight"]:
            raise Misuse("as many steps are in flight as may be", by_engine=True)
        if preempt and self.waits_with_blocks():
            raise Misuse("the prefix cache is reset with a preemption only where who does not run has no blocks", True)
        self._empty = 0
        lent = bool(self.seen.lent) or self.stores_hold_blocks()
        running = [request for request, one in self.seen.requests.items() if one.status == "running"]
        more = (host,) if "host" in self.config else ()
        self.host_is_reset |= host
        done = yield EngineCall("reset", partial(self.engine.reset, preempt, *more))
        gone = [request for request in running if self.seen.requests[request].status != "running"]
        self._preempted(gone)
        self._explain(preempted=gone)
        if done or not lent:
            self.law.engine_step("reset", bool(done))
        if done and host:
            self.exchange.forgets_host()

    def waits_with_blocks(self) -> bool:
        """Somebody who does not run has blocks: a transfer, be it about to begin, but none to host memory; or a request
        whose transfer is done.
        """
        waiting = (one for one in self.seen.requests.values() if one.status != "running")
        return bool(self.exchange.known()) or any(any(map(any, one.tables)) for one in waiting)

    def holds_nothing(self) -> bool:
        """No block is held, so that a reset of the device is done."""
        pool = self.law.state.pool
        return bool(pool.available == pool.blocks.size)

    def stores_hold_blocks(self) -> bool:
        """Copies to a pool in host memory are under way, or begin with the next step, and hold their blocks."""
        begin = self.seen.host is not None and self.seen.host.busy
        return "pool" in self.config.get("host", {}) and (begin or self.exchange.copies())

    def has_given_up_window_blocks(self) -> bool:
        """A request that has blocks of a group with a window has given up some: they lie before its window."""
        windows = [at for at, group in enumerate(self.config["layers"]) if group["kind"] == WINDOW]
        tables = (one.tables[at] for one in self.seen.requests.values() for at in windows)
        return any(any(table) and not all(table) for table in tables)

    @operation
    def audit(self) -> Calls:
        """With no request, no step in flight and no transfer, every block is free, and host memory promises nothing."""
        if self.follower.here or self.flying or not self.exchange.is_quiet():
            raise Misuse("requests are there, or steps in flight, or transfers", by_engine=True)
        pool = self.law.state.pool
        if not self.holds_nothing():
            held = sorted(b for b in pool.blocks.items() if pool.refs(b) > 0)
            raise Finding(QUIESCENT, NOTHING_HELD, f"blocks {held} are not free")
        if self.seen.host is not None and (kept := does_not_rest(self.seen.host)):
            raise Finding(QUIESCENT, HOST_RESTS, kept)
        yield None

    def _counts_tokens(self, request: int) -> bool:
        """The scheduler has the request, and counts tokens of it as computed."""
        return request in self.seen.requests and self.seen.requests[request].computed > 0

    # What no law says of a single call.

    def _preempted(self, requests: Sequence[int]) -> None:
        """What steps in flight compute for these requests does not count any more."""
        for dropped in self._dropped:
            dropped.update(requests)

    def _must_go_on(self, step: Launched) -> None:
        """A scheduler that makes one empty step after the other, while requests wait, will make no other."""
        is_empty = not step.passes and not step.loads
        under_way = any(one.passes for one in self.flying) or not self.exchange.is_quiet()
        self._empty = self._empty + 1 if is_empty and not under_way else 0
        if self._empty >= STILL and self.follower.here and self.fits_alone():
            waiting = ", ".join(f"request {request}" for request in sorted(self.follower.here))
            free = self.law.state.pool.available
            waits = "waits" if len(self.follower.here) == 1 else "wait"
            room = f"{free} of {self.config['blocks']} blocks are free"
            detail = f"{waiting} {waits}, {room}, and the last {STILL} steps of the scheduler compute and load nothing"
            raise Finding(PROGRESS, PROGRESS_SENTENCE, detail)

    def fits_alone(self) -> bool:
        """The pool has room for the longest request, with its drafts and their states. A group with a window needs the
        blocks of its window and of the tokens in flight, as a server counts them when it starts.
        """
        config, drafts = self.config, self.config["drafts"]
        flying = config["batch"] * config["steps_in_flight"]
        need = 0
        for group, size in zip(config["layers"], self.sizes, strict=True):
            places = -(-(config["max_length"] + drafts) // size)
            if group["kind"] == WINDOW:
                places = min(places, -(-(group["window"] - 1 + flying + drafts) // size) + 1)
            elif group["kind"] == MAMBA:
                places += drafts + 1 + ("checkpoint" in group)
            need += places
        return bool(need <= config["blocks"])

    def _must_end(self, failed: Collection[int]) -> None:
        """The requests that have ended have their last token, and only they. ``failed``: those that may end earlier."""
        for request, one in self.follower.here.items():
            has, ends = len(one.tokens), self.ends[request]
            ended = request not in self.seen.requests
            if (ended and has < ends and request not in failed) or has > ends or (has == ends and not ended):
                what = "has ended" if ended else "has not ended"
                detail = f"request {request} {what} with {has} of {ends} tokens, its prompt among them"
                raise Finding(ENDS, ENDS_SENTENCE, detail)

    def of_requests(self) -> Mapping[int, Json]:
        """What a picture shows of each request that the scheduler has: also of one that waits without blocks."""
        return {
            request: {"status": one.status, "tokens": f"{len(one.text)} now, {self.ends[request]} at its end"}
            for request, one in self.seen.requests.items()
        }

    # What the driver needs.

    def _explain(self, step: Launched | None = None, preempted: Sequence[int] = (), sends: Sequence[int] = ()) -> None:
        self.follower.call(self.engine.moves, self.seen.requests, step, preempted, sends)

    def note(self, wrong: Misread | None) -> None:
        if wrong is not None:
            self.shadow.note(wrong_of(wrong, self.largest, self.shadow.step))

    def snapshot(self) -> BlockCacheSnapshot:
        """The requests, their tables and the pool."""
        return self.engine.snapshot()

    def follow(self) -> None:
        """Each operation explains what its calls have changed."""
        self._pool = whole(self.seen.pool, self.sizes)

    def project(self) -> Any:
        """The law's state, with tables, counts and hashes as the engine shows them."""
        return project(self.law.state, self.seen, self._pool, self.follower.here, self.stories)

    def hidden(self, change: FieldDifference) -> bool:
        """Nothing is hidden from a caller."""
        del change
        return False

    def beyond_state(self) -> list[str]:
        """What is wrong with the free queue, the prefix cache, host memory, or what the scheduler knows of requests."""
        slots = Domain(1, self.config.get("host", {"slots": 0})["slots"])
        found = problems(self.law.state, self.seen, self._pool, self.follower.here, slots)
        if self.seen.sleeps and self.follower.here:
            waits = ", ".join(map(str, sorted(self.follower.here)))
            found.append(f"the server sleeps, and requests {waits} have not ended: it makes no step for them")
        return found if self.flying else [*found, *self._parts()]

    def _parts(self) -> Iterator[str]:
        """What is wrong with the blocks that the prefix cache finds for a part of a block, while no step is in flight:
        the law knows whole blocks alone.
        """
        for name, blocks in parts(self.seen.pool, self.sizes):
            for block in blocks:
                mark, *text = name.text
                if (missing := self.workers.lacks(name.group, mark, text, block)) is not None:
                    what = f"for the first {len(text)} tokens of a text in group {name.group}"
                    lacks = "the state after them" if missing == len(text) else f"token {missing} of the text"
                    yield f"the prefix cache finds block {block} {what}, and the block does not hold {lacks}"

    def judge(self) -> None:
        """Nothing to add: the invariants say everything."""

    def waiting(self) -> Sequence[int]:
        """The requests that have not ended."""
        return list(self.follower.here)

"""A scheduler with block tables: which requests compute which tokens in a step, and which blocks they get.

Plain Python on the host: a block is a number, and no call touches a tensor. All groups of layers share one
``impl.block_pool.BlockPool``, and a request has a table of blocks in each group.

- **Steps.** ``schedule`` makes a step, ``complete`` says what the oldest one has sampled. Two steps may be in flight:
  the second one is made before it is known what the first one samples, and counts on all drafts of the first one.
- **Blocks in flight.** A block is given back only when no step in flight reads or writes it. So a request with a pass
  in flight is not preempted; the blocks of one that ends are kept until its passes are done; and a window gives up
  blocks by the tokens whose passes are done, never by drafts.
- **Block sizes.** Groups may have blocks of different sizes. A hash then covers as many tokens as divide the size of
  each, and a block has the last hash in it, which covers all that comes before. A hit has whole blocks in each group.
- **Prefix cache.** A block gets its hash once a pass is launched that computes its last token, and this token is known.
  Passes run in the order of their launch, so that whoever finds the block reads it later.
- **Transfers.** A request whose prompt another server has computed gets blocks for it, and is out of the queue until
  the transfer into them is done. Then it waits for its first pass like others, and keeps its blocks. While a transfer
  writes or reads blocks they are kept, also when the request has ended.
- **Preemption.** Running requests are served from the most to the least urgent one. One that lacks blocks takes them
  from the least urgent one behind it, also from one that waits with transferred blocks. So nobody is preempted who has
  a pass in the step that is made, and no two requests wait for each other's blocks.

The caller sees to it that the pool has room for each request alone: one that needs more is never computed to its end.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from math import gcd, lcm

from impl.block_pool import NULL, BlockPool
from impl.checks import expect, integer

__all__ = ["NEW", "RESUMED", "RUNNING", "BlockTable", "Load", "Pass", "Request", "Scheduler", "Step", "block_hash"]

NEW, RESUMED, RUNNING = "new", "resumed", "running"

Hasher = Callable[[bytes, Sequence[int]], bytes]


def block_hash(before: bytes, tokens: Sequence[int]) -> bytes:
    """The hash of a block: it covers the tokens of the block, and by the hash ``before`` all that comes before it.

    The first block of a text has as ``before`` the hash of the text's mark.
    """
    return sha256(before + array("q", tokens).tobytes()).digest()


class BlockTable:
    """The blocks of one request in one group of layers, in the order of its text.

    ``blocks``: the table; a place that is not needed has the null block. ``first``: the first place that the request
    still reads. ``offered``: so many places were found in the prefix cache, or were offered to it.
    """

    def __init__(self, pool: BlockPool, request: int, group: int) -> None:
        self.pool, self.request, self.group = pool, request, group
        self.blocks: list[int] = []
        self.first = self.offered = 0

    def share(self, skipped: int, found: Sequence[int]) -> None:
        """Begins with blocks that were found. ``skipped``: so many places before them are not needed."""
        self.pool.touch(found)
        self.blocks = [NULL] * skipped + list(found)
        self.first, self.offered = skipped, len(self.blocks)

    def grow(self, count: int) -> None:
        """Takes so many new blocks. The caller has seen that they are free."""
        if count > 0:
            taken = self.pool.alloc(count)
            if taken is None:
                raise RuntimeError(f"group {self.group} of request {self.request} needs {count} blocks, fewer are free")
            self.blocks += taken

    def slide(self, first: int) -> None:
        """Gives up the blocks before the place ``first``, the last one first: a prefix is worth more than its end."""
        if first > self.first:
            self.pool.free([block for block in reversed(self.blocks[self.first : first]) if block])
            self.blocks[self.first : first] = [NULL] * (first - self.first)
            self.first = first

    def offer(self, hashes: Sequence[bytes], count: int) -> None:
        """The first ``count`` blocks are found by the hashes of the text from now on."""
        if count > self.offered:
            named = [(self.group, known) for known in hashes[self.offered : count]]
            self.pool.cache(self.blocks[self.offered : count], named)
            self.offered = count

    def clear(self) -> None:
        """Gives every block back, the last one first."""
        self.pool.free([block for block in reversed(self.blocks) if block])
        self.blocks, self.first, self.offered = [], 0, 0


@dataclass(eq=False)
class Request:
    """A request that has not ended, or that has ended with passes in flight.

    ``tokens``: its text, the prompt and what was sampled. ``last``: so many tokens are computed at most, all but the
    last one sampled. ``urgency``: the smallest goes first. ``hashes``: the hash of its mark and of each whole unit of
    its text (``Scheduler.unit``). ``computed``: how many tokens of its own text the launched passes compute, without
    drafts that are not verified. ``flying``: its passes in flight. ``drafts``: how many tokens are drafted for its next
    pass. ``kind``: what its next pass is. ``elsewhere``: another server has so many of its first tokens, and they were
    not asked for yet. ``sends``: another server reads its blocks when it has ended. ``transfers``: transfers that use
    its blocks.
    """

    name: int
    tokens: list[int]
    last: int
    urgency: tuple[int, int]
    hashes: list[bytes]
    tables: list[BlockTable]
    computed: int = 0
    flying: deque[Pass] = field(default_factory=deque)
    drafts: int = 0
    kind: str = NEW
    elsewhere: int = 0
    sends: bool = False
    transfers: int = 0

    @property
    def has_blocks(self) -> bool:
        """It has at least one block."""
        return any(table.blocks for table in self.tables)

    @property
    def hoped(self) -> int:
        """How many tokens are computed, if all drafts in flight are accepted."""
        return self.computed + sum(one.drafts for one in self.flying)

    @property
    def length(self) -> int:
        """How long the text is, if all drafts in flight are accepted."""
        return len(self.tokens) + sum(1 + one.drafts for one in self.flying if one.samples)

    @property
    def done(self) -> int:
        """How many tokens of its own text are computed by passes that are done."""
        return self.computed - sum(one.count - one.drafts for one in self.flying)


@dataclass(frozen=True)
class Pass:
    """What a request computes in a step: ``count`` tokens from the place ``start`` on, the last ``drafts`` are drafts.

    ``samples``: a token is sampled after it. ``kind``: ``NEW``, ``RESUMED`` or ``RUNNING``. ``blocks``: for each group
    the blocks that are appended to the request's table, and all of its table for a new or resumed request.
    """

    start: int
    count: int
    drafts: int
    samples: bool
    kind: str
    blocks: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Load:
    """A transfer into blocks of a request, of its tokens from ``first`` up to ``end``. ``blocks``: for each group the
    request's table.
    """

    first: int
    end: int
    blocks: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Step:
    """A step. ``passes``: by the name of the request. ``preempted``: who gave up its blocks in this call. ``loads``: by
    the name of the request, the transfers into blocks that begin.
    """

    passes: Mapping[int, Pass]
    preempted: tuple[int, ...]
    loads: Mapping[int, Load]


class Scheduler:
    """Requests over one pool of blocks of ``block_size`` tokens; of a sequence each group of layers has one.

    ``windows``: for each group of layers how many tokens a token reads, itself among them; ``None`` for all. ``batch``:
    the most tokens of a step. ``requests``: how many run at once. ``drafts``: the most drafts of a pass; a pass gets
    slots for so many tokens after its own, so that the next drafts have slots when they are made. ``steps_in_flight``:
    with 2, workers keep their drafts to themselves, and each pass after a sampled token has ``drafts`` of them.
    ``threshold``: the most tokens of a chunk of a prompt, 0 for any number. ``by_priority``: the request with the
    smallest priority goes first, and not the oldest. ``caching``: there is a prefix cache. ``table``, ``hasher``: how a
    table is made and how a block is hashed. ``unit``: the tokens of a hash. ``whole``: a hit has a multiple of so many
    tokens.
    """

    def __init__(
        self,
        pool: BlockPool,
        block_size: int | Sequence[int],
        windows: Sequence[int | None],
        *,
        batch: int,
        requests: int,
        drafts: int = 0,
        steps_in_flight: int = 1,
        threshold: int = 0,
        by_priority: bool = False,
        caching: bool = True,
        table: Callable[[BlockPool, int, int], BlockTable] = BlockTable,
        hasher: Hasher = block_hash,
        debug: bool = False,
    ) -> None:
        self.pool, self.windows = pool, list(windows)
        sizes = block_size if isinstance(block_size, Sequence) else [block_size] * len(self.windows)
        self.sizes = [integer("block_size", size, 1) for size in sizes]
        if len(self.sizes) != len(self.windows):
            raise ValueError(f"block_size must have {len(self.windows)} sizes, one a group, got {len(self.sizes)}")
        self.unit, self.whole = gcd(*self.sizes), lcm(*self.sizes)
        self.batch = integer("batch", batch, 1)
        self.most, self.drafts = integer("requests", requests, 1), integer("drafts", drafts, 0)
        self.steps_in_flight = integer("steps_in_flight", steps_in_flight, 1)
        self.threshold, self.by_priority = integer("threshold", threshold, 0), by_priority
        self.caching, self.debug = caching, debug
        self._table, self._hash = table, hasher
        self.waiting: list[Request] = []  # both from the most to the least urgent one
        self.running: list[Request] = []
        self.loading: list[Request] = []  # a transfer into their blocks is under way
        self.leaving: list[Request] = []  # they have ended, and a pass in flight or a transfer uses their blocks
        self.flying: deque[dict[Request, Pass]] = deque()  # the passes of each step in flight
        self._made: dict[Request, Pass] = {}  # the passes of the step that is being made
        self._begun: dict[Request, Load] = {}  # the transfers that begin with it
        self._count = 0

    # Requests.

    def add(
        self,
        name: int,
        tokens: Sequence[int],
        outputs: int,
        mark: int = 0,
        priority: int = 0,
        *,
        elsewhere: int = 0,
        sends: bool = False,
    ) -> None:
        """A request comes. It ends after ``outputs`` sampled tokens.

        ``mark``: what its KV cache depends on beside its tokens, such as an adapter; requests with different marks
        share no block. ``elsewhere``: another server has so many of its first tokens. They are transferred, as far as
        the prefix cache does not have them, before it is computed. ``sends``: another server reads its blocks when it
        has ended; of an aborted request none does. ValueError for a request without a token, with more tokens elsewhere
        than it has, or with the name of one whose blocks are in use.
        """
        leaving = (request.name for request in self.leaving)
        if not tokens or (integer("outputs", outputs, 1) and name in (*self.known(), *leaving)):
            raise ValueError(f"request {name} needs at least one token and a name of its own")
        if integer("elsewhere", elsewhere, 0) > len(tokens):
            raise ValueError(f"elsewhere must be at most the {len(tokens)} tokens of the prompt, got {elsewhere}")
        self._count += 1
        self._insert(
            self.waiting,
            Request(
                name=name,
                tokens=list(tokens),
                last=len(tokens) + outputs - 1,
                urgency=(priority if self.by_priority else 0, self._count),
                hashes=[self._hash(b"", (mark,))],
                tables=[self._table(self.pool, name, group) for group in range(len(self.windows))],
                elsewhere=elsewhere,
                sends=sends,
            ),
        )

    def known(self) -> dict[int, Request]:
        """The requests that have not ended, by name."""
        return {request.name: request for request in (*self.running, *self.waiting, *self.loading)}

    def abort(self, name: int) -> None:
        """A request ends now. Its blocks are kept while passes in flight or transfers use them. KeyError without it."""
        self._end(self.known()[name])
        self._changed()

    def _end(self, request: Request) -> None:
        next(queue for queue in (self.running, self.waiting, self.loading) if request in queue).remove(request)
        self.leaving.append(request)
        self._leave(request)

    def _leave(self, request: Request) -> None:
        """A request that has ended gives its blocks back, unless something still uses them."""
        if not request.flying and not request.transfers:
            self.leaving.remove(request)
            self._give_back(request)

    def _give_back(self, request: Request) -> None:
        for table in request.tables:
            table.clear()

    def _insert(self, queue: list[Request], request: Request) -> None:
        queue.append(request)
        queue.sort(key=lambda one: one.urgency)

    # Steps.

    def schedule(self) -> Step:
        """Makes a step, which is in flight from now on if it has a pass. RuntimeError if as many are as may be."""
        if len(self.flying) >= self.steps_in_flight:
            raise RuntimeError(f"{len(self.flying)} steps are in flight already")
        preempted: list[Request] = []
        if self._serve(preempted):
            self._welcome()
        if self.caching:
            for request in self._made:
                self._offer(request)
        made, self._made = self._made, {}
        begun, self._begun = self._begun, {}
        if made:
            self.flying.append(made)
        self._changed()
        passes = {request.name: one for request, one in made.items()}
        loads = {request.name: one for request, one in begun.items()}
        return Step(passes, tuple(request.name for request in preempted), loads)

    def _left(self) -> int:
        """How many tokens the step has room for."""
        return self.batch - sum(one.count for one in self._made.values())

    def _serve(self, preempted: list[Request]) -> bool:
        """Passes of running requests. True if each got its blocks without a preemption."""
        enough = True
        for request in list(self.running):
            count, drafts = self._work(request)
            if not count or request not in self.running:
                continue
            self._slide(request)
            while not (fits := self._fits(request, count)) and (victim := self._victim(request)):
                if victim in self.running:
                    self._preempt(victim)
                    preempted.append(victim)
                else:
                    self._forget(victim)
            enough = enough and fits
            if fits:
                self._launch(request, count, drafts)
        return enough and not preempted

    def _welcome(self) -> None:
        """Waiting requests get their first pass, as long as there is room for the most urgent of them.

        Where nobody runs, a request that waits with blocks gives them up for a more urgent one.
        """
        while self.waiting and len(self.running) < self.most:
            if self._admit(self.waiting[0]):
                request = self.waiting.pop(0)
                self._insert(self.loading if request.transfers else self.running, request)
            elif not self.running and (last := next((r for r in self.waiting[:0:-1] if r.has_blocks), None)):
                self._forget(last)
            else:
                return

    def _work(self, request: Request) -> tuple[int, int]:
        """How many tokens the next pass of a request computes, and how many of them are drafts."""
        start, length, left = request.hoped, request.length, self._left()
        count = min(length - start, left, request.last - start)
        if self.threshold:
            count = min(count, self.threshold)
        if start + count < length:
            return max(count, 0), 0
        drafts = min(request.drafts, left - count, request.last - length)
        return count + drafts, drafts

    def _launch(self, request: Request, count: int, drafts: int) -> None:
        """The request gets its slots and its pass. The caller has seen that there is room."""
        start, told = request.hoped, [len(table.blocks) if request.kind == RUNNING else 0 for table in request.tables]
        self._grow(request, self._reach(request, count))
        new = tuple(tuple(table.blocks[at:]) for at, table in zip(told, request.tables, strict=True))
        samples = start + count - drafts == request.length
        made = Pass(start, count, drafts, samples, request.kind, new)
        request.flying.append(made)
        request.computed += count - drafts
        request.drafts = self.drafts if samples and self.steps_in_flight > 1 else 0
        request.kind = RUNNING
        self._made[request] = made

    def _reach(self, request: Request, count: int) -> int:
        """For how many tokens the tables have places after a pass of ``count`` tokens, with its lookahead."""
        end = request.hoped + count
        return max(end, min(end + self.drafts, request.last))

    def _places(self, group: int, tokens: int) -> int:
        """How many places so many tokens need in a group."""
        return -(-tokens // self.sizes[group])

    def _grow(self, request: Request, tokens: int) -> None:
        """The tables get places for so many tokens. The caller has seen that there is room."""
        for table in request.tables:
            table.grow(self._places(table.group, tokens) - len(table.blocks))

    def _fits(self, request: Request, count: int) -> bool:
        reach = self._reach(request, count)
        need = sum(max(0, self._places(table.group, reach) - len(table.blocks)) for table in request.tables)
        return need <= self.pool.available_size()

    def _victim(self, request: Request) -> Request | None:
        """Who gives up its blocks for a running request: the least urgent one that has no pass in flight and is less
        urgent than this request, be it running or waiting with transferred blocks. Where no step is under way, nothing
        else would free a block: then a waiting request gives up its blocks however urgent it is.
        """
        behind = [one for one in self.running[self.running.index(request) + 1 :] if not one.flying]
        still = not self.flying and not self._made
        holders = (one for one in self.waiting if one.has_blocks and (still or one.urgency > request.urgency))
        return max((*behind, *holders), key=lambda one: one.urgency, default=None)

    def _preempt(self, request: Request) -> None:
        """The request gives up its blocks, and waits until it is computed again."""
        self.running.remove(request)
        self._forget(request)
        request.drafts, request.kind = 0, RESUMED
        self._insert(self.waiting, request)

    def _forget(self, request: Request) -> None:
        """What was computed of a request is lost."""
        self._give_back(request)
        request.computed = 0

    def _slide(self, request: Request) -> None:
        """Blocks that no token after those that are done reads are given up."""
        for table in request.tables:
            table.slide(self._first(table.group, request.done))

    def _first(self, group: int, done: int) -> int:
        """The first place that the token after ``done`` tokens reads."""
        window = self.windows[group]
        return 0 if window is None else max(0, done - window + 1) // self.sizes[group]

    def complete(self, sampled: Mapping[int, Sequence[int]]) -> tuple[dict[int, list[int]], tuple[int, ...]]:
        """The oldest step in flight is done.

        ``sampled``: for each pass that samples the drafts that were accepted, and one token more. Returns the tokens
        that each request keeps, and which requests have ended by it. RuntimeError if no step is in flight.
        """
        if not self.flying:
            raise RuntimeError("no step is in flight")
        known = self.known()
        kept: dict[int, list[int]] = {}
        for request, one in self.flying.popleft().items():
            request.flying.popleft()
            tokens = list(sampled.get(request.name, ()))
            if known.get(request.name) is not request:
                self._leave(request)
            elif tokens:
                kept[request.name] = self._keep(request, one, tokens)
        ended = tuple(name for name in kept if len(known[name].tokens) > known[name].last)
        for name in ended:
            known[name].transfers += known[name].sends
            self._end(known[name])
        self._changed()
        return kept, ended

    def _keep(self, request: Request, done: Pass, tokens: list[int]) -> list[int]:
        """The text goes on with what was sampled after a pass. Of its drafts those are computed that were accepted."""
        kept = tokens[: request.last + 1 - len(request.tokens)]
        request.tokens += kept
        request.computed += min(len(tokens) - 1, done.drafts)
        if self.caching:
            self._offer(request)
        return kept

    def draft(self, drafts: Mapping[int, Sequence[int]]) -> None:
        """The drafts of requests for their next pass. Requests that do not run are passed over."""
        for request in self.running:
            request.drafts = min(len(drafts.get(request.name, ())), self.drafts)

    # Transfers.

    def received(self, name: int, count: int) -> None:
        """The transfer into the blocks of a request is done, which have its ``count`` first tokens now.

        ``count`` is less than was asked for where the transfer has failed. KeyError without such a transfer; ValueError
        for more tokens than the request has.
        """
        request = {one.name: one for one in (*self.leaving, *self.loading) if one.transfers}[name]
        if integer("count", count, 0) > len(request.tokens):
            raise ValueError(f"count must be at most the {len(request.tokens)} tokens of the request, got {count}")
        request.transfers -= 1
        if request in self.leaving:
            self._leave(request)
        else:
            self.loading.remove(request)
            self._insert(self.waiting, request)
            request.computed = min(count, len(request.tokens) - 1)  # the last one is computed, to sample a token
            if not count:
                self._give_back(request)
        self._changed()

    def sent(self, name: int) -> None:
        """Another server has read the blocks of a request that has ended. KeyError if none reads them."""
        request = {one.name: one for one in self.leaving if one.transfers}[name]
        request.transfers -= 1
        self._leave(request)
        self._changed()

    # The prefix cache.

    def _hashes(self, request: Request, group: int) -> list[bytes]:
        """The hash of each block in a group of the text that is whole."""
        hashes, unit = request.hashes, self.unit
        for at in range(len(hashes) - 1, len(request.tokens) // unit):
            hashes.append(self._hash(hashes[-1], request.tokens[at * unit : (at + 1) * unit]))
        last = self.sizes[group] // unit
        return hashes[last::last]

    def _offer(self, request: Request) -> None:
        """Blocks that are computed whole for tokens that are known are found from now on."""
        known = min(request.computed, len(request.tokens))
        for table in request.tables:
            table.offer(self._hashes(request, table.group), known // self.sizes[table.group])

    def _admit(self, request: Request) -> bool:
        """A waiting request takes what the prefix cache finds, and gets its first pass; or a transfer into its blocks
        begins. False, with nothing changed, where there is no room for it.
        """
        if request.has_blocks:  # a transfer was done
            count, drafts = self._work(request)
            if not count or not self._fits(request, count):
                return False
            self._launch(request, count, drafts)
            return True
        hit = self._hit(request) if self.caching else 0
        skips = [self._skipped(group, hit) for group in range(len(self.windows))]
        found = [self._found(request, group, skip, hit) for group, skip in enumerate(skips)]
        request.computed = hit
        count, drafts = self._work(request)
        loads = request.elsewhere > request.computed
        reach = request.elsewhere if loads else self._reach(request, count)
        held = (skip + len(blocks) for skip, blocks in zip(skips, found, strict=True))
        need = sum(self._places(group, reach) - places for group, places in enumerate(held))
        free = sum(not self.pool.refs[block] for blocks in found for block in blocks)
        if not count or need > self.pool.available_size() - free:
            request.computed = 0
            return False
        for table, skip, blocks in zip(request.tables, skips, found, strict=True):
            table.share(skip, blocks)
        if loads:
            self._load(request)
        else:
            self._launch(request, count, drafts)
        return True

    def _load(self, request: Request) -> None:
        """The request gets blocks for what another server has, and a transfer into them begins."""
        self._grow(request, request.elsewhere)
        tables = tuple(tuple(table.blocks) for table in request.tables)
        self._begun[request] = Load(request.computed, request.elsewhere, tables)
        request.elsewhere, request.transfers = 0, 1

    def _hit(self, request: Request) -> int:
        """How many tokens of the text the prefix cache has, in each group in whole blocks and as far back as the next
        token reads.

        The last token is left out: it is computed, so that a token can be sampled.
        """
        hit = self._reusable(request)
        groups = range(len(self.windows))
        while missing := [at for group in groups if (at := self._missing(request, group, hit)) is not None]:
            hit = min(missing) // self.whole * self.whole
        return hit

    def _reusable(self, request: Request) -> int:
        """How many tokens of the text a hit can have at most."""
        return (len(request.tokens) - 1) // self.whole * self.whole

    def _missing(self, request: Request, group: int, hit: int) -> int | None:
        """The token with which the first block begins that a hit of ``hit`` tokens needs in a group, and that the
        prefix cache does not have.
        """
        hashes, size = self._hashes(request, group), self.sizes[group]
        places = range(self._skipped(group, hit), hit // size)
        return next((at * size for at in places if self.pool.find((group, hashes[at])) is None), None)

    def _skipped(self, group: int, hit: int) -> int:
        """How many places before a hit of so many tokens are not needed. At least its last block is."""
        return min(self._first(group, hit), max(hit // self.sizes[group] - 1, 0))

    def _found(self, request: Request, group: int, skipped: int, hit: int) -> list[int]:
        known = self._hashes(request, group)[skipped : hit // self.sizes[group]]
        return [block for each in known if (block := self.pool.find((group, each))) is not None]

    def reset(self, preempt: bool) -> bool:
        """The prefix cache forgets every block, as after new weights. ``preempt``: who runs is preempted first.

        False, with nothing changed, while a step is in flight, or a request has blocks that is not preempted.
        """
        if self.flying or (self.running and not preempt):
            return False
        for request in list(self.running):
            self._preempt(request)
        for request in self.waiting if preempt else ():
            self._forget(request)
        done = self.pool.reset()
        self._changed()
        return done

    def _changed(self) -> None:
        if self.debug:
            self.check()

    def check(self) -> None:
        """AssertionError if the tables contradict each other or the pool. Takes time in proportion to the pool."""
        self.pool.check()
        there = {*self.running, *self.waiting, *self.loading, *self.leaving}
        refs = [0] * (self.pool.size + 1)
        for request in there:
            for table in request.tables:
                needed = self._places(table.group, request.hoped) if request.tables[0].blocks else 0
                expect(f"slots of request {request.name}", len(table.blocks) >= needed, True)
                expect(f"first place of request {request.name}", NULL in table.blocks[table.first :], False)
                for block in filter(None, table.blocks):
                    refs[block] += 1
        expect("the holders of the blocks", self.pool.refs, refs)

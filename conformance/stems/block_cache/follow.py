"""Explains what a scheduler did to its blocks as steps of the law ``block_cache``.

The scheduler says in which order blocks were taken, shared, given back and hashed (``Move``), and which tokens a step
computes (``RequestPass``). ``Follower`` takes the law's steps in this order. What the moves do not explain stays a
difference between the law's state and the snapshot, which the driver reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from conformance.driver.lockstep import INVARIANT, QUIESCENT, Finding, Law
from conformance.driver.protocol import Json, Misuse
from conformance.driver.shadow import EMPTY, PrefixNumbers
from conformance.stems.block_cache.economy import Economy
from conformance.stems.block_cache.jobs import Jobs, first_read, first_state
from conformance.stems.block_cache.protocol import MAMBA, Known, Launched, Move, RequestLoad, RequestPass, sizes_of
from conformance.stems.block_pool.protocol import NULL
from spec.block_cache import IDLE, KEPT, BlockCacheState, ahead, has_states
from spec.finite import Seq, Set
from spec.lengths import Length, in_pages, in_tokens

NOTHING_HELD = "With no request, no step in flight and no transfer, every block is free."
GIVES_BACK = ("free", "unpin")  # kinds of moves
UNKNOWN = -1  # the number of a prefix that nobody knows yet


class StoryNumbers(Protocol):
    """The texts that requests will ever have."""

    def new(self, request: int, mark: int, text: Iterable[int]) -> int:
        """The number of a new text: the whole text of a request."""

    def cut(self, text: int, group: int) -> int:
        """The story of a text, cut into blocks of the size that this group has."""


class BlockStories:
    """The whole texts that requests will ever have, each with its mark before it: the law's map from a story and a
    place to a prefix. A run samples known tokens, so that a text is known before it is computed. ``sizes``: by group,
    the tokens of a block; a text has a story for each size.
    """

    arity = 2

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes, self.texts = sizes, PrefixNumbers()
        self._cuts = sorted(set(sizes))
        self._prefixes: list[list[int]] = []  # by text, from its mark on
        self._requests: list[int] = []  # by text
        self._numbers: dict[tuple[int, ...], int] = {}

    def new(self, request: int, mark: int, text: Iterable[int]) -> int:
        """The number of a new text: the whole text of a request."""
        self._requests.append(request)
        root = self.texts.prefixes([mark])
        self._prefixes.append(root + self.texts.prefixes(text, root[0]))
        return len(self._prefixes) - 1

    def cut(self, text: int, group: int) -> int:
        """The story of a text, cut into blocks of the size that this group has."""
        return text * len(self._cuts) + self._cuts.index(self.sizes[group])

    def __call__(self, story: int, index: int) -> int:
        """The prefix of the story that ends with the block at this place, ``UNKNOWN`` where it does not go so far."""
        text, cut = divmod(story, len(self._cuts))
        if not 0 <= text < len(self._prefixes) or index < 0:
            return EMPTY
        known, at = self._prefixes[text], (index + 1) * self._cuts[cut]
        return known[at] if at < len(known) else UNKNOWN

    def name(self, prefix: int) -> str:
        """A prefix in words."""
        for request, known in zip(self._requests, self._prefixes, strict=True):
            if prefix in known:
                return f"the first {known.index(prefix)} tokens of request {request}"
        return "nothing" if prefix == EMPTY else "a text that no request has"

    def number(self, text: tuple[int, ...]) -> int:
        """The number of a prefix that is given with its mark."""
        if text not in self._numbers:
            self._numbers[text] = self.texts.prefixes(text)[-1] if text else UNKNOWN
        return self._numbers[text]

    def items(self) -> list[tuple[tuple[int, int], int]]:
        """The places that are known, with their prefixes."""
        return [
            ((text * len(self._cuts) + cut, at // size - 1), prefix)
            for text, known in enumerate(self._prefixes)
            for cut, size in enumerate(self._cuts)
            for at, prefix in enumerate(known)
            if at and at % size == 0
        ]


@dataclass
class FollowedRequest:
    """A request as the run knows it.

    ``text``: the number of its whole text. ``tokens``: its text so far, the prompt and what was sampled. ``computed``:
    how many of them launched passes have computed, without drafts that are not verified. ``drafts``: of each of its
    passes in flight, how many drafts it has. ``gives_up``: the scheduler may still show blocks of it which it does
    not go on with.
    """

    text: int
    tokens: list[int]
    rows: list[int] = field(default_factory=list)
    computed: int = 0
    drafts: list[int] = field(default_factory=list)
    gives_up: bool = False


def without_withdrawn(moves: Sequence[Move]) -> list[Move]:
    """The moves of a call, without the hashes that it gives to blocks and takes back before a request gets the blocks.

    A call gives a block its hash before it launches what computes the block. Where it decides otherwise meanwhile, and
    takes the hash back, no request can have found the block.
    """
    kept: list[Move] = []
    withdrawn: set[int] = set()
    for move in reversed(moves):
        if move.kind == "evict":
            withdrawn.update(move.blocks)
        elif move.kind in ("touch", "get"):
            withdrawn.difference_update(move.blocks)
        elif move.kind == "cache":
            named = tuple(NULL if block in withdrawn else block for block in move.blocks)
            kept.append(move._replace(blocks=named))
            continue
        kept.append(move)
    return kept[::-1]


def first_place(table: Sequence[int], blocks: Sequence[int]) -> int:
    """The place of the first of these blocks in a table; 0 where it is not there, or there is none."""
    return table.index(blocks[0]) if blocks and blocks[0] in table else 0


class Follower:
    """The law's side of a run of ``block_cache``. ``here``: the requests that have not ended, by number. ``passes``: as
    of ``Jobs``. ``economy``: without it nothing is said of what is wasted.
    """

    def __init__(
        self, law: Law, config: Json, stories: StoryNumbers, passes: bool = True, economy: Economy | None = None
    ) -> None:
        self.law, self.stories, self.jobs, self.economy = law, stories, Jobs(law, passes), economy
        self._sizes = sizes_of(config)
        self.kinds = [group["kind"] for group in config["layers"]]
        self._loads_states = config.get("transfers", False) and config["caching"]
        self.here: dict[int, FollowedRequest] = {}
        self.kept: list[
            tuple[int, FollowedRequest]
        ] = []  # requests that left, and whose blocks were not given back yet
        self._given: dict[int | None, set[int]] = {}  # the blocks that the present call gives back, by request
        self._sending: set[int] = set()  # requests that end in the present call, and whose blocks another server reads
        rows: int = law.state.pool.rows.size
        groups = len(self.kinds)
        starts = range(1, rows - groups + 2, groups)
        self._free = [sorted(range(first, first + groups), key=lambda r: r % groups) for first in starts]

    @property
    def state(self) -> BlockCacheState:
        """The law's state."""
        state: BlockCacheState = self.law.state
        return state

    def name(self, row: int) -> str:
        """A row in words."""
        group = row % len(self.kinds)
        for request, one in (*self.here.items(), *self.kept):
            if row in one.rows:
                return f"row of request {request}" + (f" in group {group}" if len(self.kinds) > 1 else "")
        return f"row {row}, which nobody uses"

    # Requests.

    def comes(self, request: int, mark: int, tokens: Sequence[int], text: Sequence[int]) -> None:
        """A request comes with ``tokens`` and waits. ``text``: all that it will ever have."""
        self.here[request] = FollowedRequest(self.stories.new(request, mark, text), list(tokens))

    def stands(self, request: int, computed: int, drafts: Sequence[int]) -> list[int]:
        """A request has blocks when the run begins. Returns its rows, by group. ``computed``, ``drafts``: as of
        ``FollowedRequest``.
        """
        rows = [self._row(request, group) for group in range(len(self.kinds))]
        self.here[request].computed, self.here[request].drafts = computed, [*drafts]
        return rows

    def story(self, request: int, group: int) -> int:
        """The story of a request's rows in this group."""
        return self.stories.cut(self.here[request].text, group)

    def must_know(self, request: int) -> FollowedRequest:
        """Raises ``Misuse`` for a request that is not here."""
        if request not in self.here:
            raise Misuse(f"there is no request {request}")
        return self.here[request]

    # What a call did.

    def call(
        self,
        moves: Sequence[Move],
        known: Mapping[int, Known],
        step: Launched | None = None,
        preempted: Sequence[int] = (),
        sends: Sequence[int] = (),
    ) -> None:
        """Explains one call. ``known``: the requests as the scheduler shows them then. ``step``: what it launched.
        ``preempted``: the requests that a call which launches nothing has preempted. ``sends``: the requests that have
        ended, and whose blocks another server reads from now on.
        """
        passes: Mapping[int, RequestPass] = step.passes if step is not None else {}
        again = {request for request, one in passes.items() if one.kind != "running"}
        gone = preempted if step is None else step.preempted
        self._given, self._sending = {}, {*sends}
        if self.economy is not None:
            self.economy.begins()
            if step is not None:
                self.economy.preempts(gone, [row for request in gone for row in self.here[request].rows])
        for move in moves:
            if move.kind in GIVES_BACK:
                self._given.setdefault(move.request, set()).update(move.blocks)
        for request in gone:
            if request not in again:
                self._leaves(request)
        loads: Mapping[int, RequestLoad] = {} if step is None else step.loads
        into = {request: load for request, load in loads.items() if not self.must_know(request).rows}
        self._moves(without_withdrawn([self._as_whole(move) for move in moves]), known, passes, into)
        for request, one in passes.items():
            self._launched(request, one, known)
        for request in gone:
            self._defers(request, known)
        for request in (request for request, load in loads.items() if not load.within_step):
            self.jobs.loads(request, self.must_know(request).rows)
        for request in () if step is None else step.twice:
            self.jobs.loads_again(self.must_know(request).rows)
        for request in [*self._sending]:  # what has left the window is given up before
            self._sends(request)
        for request in [r for r in self.here if r not in known]:
            self._ends(request)
        for request in self.here:
            for group in range(len(self.kinds)):
                self._shift(request, group, known)

    def _sends(self, request: int) -> None:
        """Another server reads the blocks of a request that has ended, from now on."""
        self._sending.discard(request)
        self.jobs.sends(request, self.here[request].rows)

    def _leaves(self, request: int) -> None:
        """A request that was preempted has no pass in flight any more that counts."""
        self.here[request].drafts.clear()

    def _defers(self, request: int, known: Mapping[int, Known]) -> None:
        """A preempted request gives up its blocks, but they are given back later: a step in flight writes them."""
        one = self.here[request]
        if one.rows and not any(self._table(request, group, known) for group in range(len(self.kinds))):
            self._keep(request, replace(one))
            one.rows, one.computed = [], 0

    def _moves(
        self,
        moves: Sequence[Move],
        known: Mapping[int, Known],
        passes: Mapping[int, RequestPass],
        loads: Mapping[int, RequestLoad],
    ) -> None:
        """``loads``: the transfers into blocks of requests that have no row yet."""
        last = {move.request: at for at, move in enumerate(moves) if move.request in loads}
        of_loads: dict[int, list[Move]] = {request: [] for request in loads}
        for at, move in enumerate(moves):
            if move.request is None or move.request not in of_loads or self._gives_up_kept(move):
                self._move(move, known, passes)
                continue
            own = of_loads[move.request]
            own.append(move)
            if last[move.request] == at:
                self._admit_with(loads[move.request], move.request, own, known)
                for other in own:
                    if other.kind not in ("touch", "get"):
                        self._move(other, known, passes)

    def _gives_up_kept(self, move: Move) -> bool:
        """Blocks are given back that a request has kept after a transfer that failed."""
        return (
            move.kind in GIVES_BACK and move.request is not None and {*move.blocks} <= {*self.holds(move.request), NULL}
        )

    def _admit_with(self, load: RequestLoad, request: int, moves: Sequence[Move], known: Mapping[int, Known]) -> None:
        """A request gets its rows for a transfer that begins at once. Where the request runs in this step already, the
        transfer counts as done, and the request has blocks for its pass, too.
        """
        left = [self._admit_into(load, request, group, moves, known) for group in range(len(self.kinds))]
        if load.within_step:
            self.loaded(request, load.end)
        for group, blocks in enumerate(left):
            self._taken(Move("get", blocks, request, group), known)

    def _admit_into(
        self, load: RequestLoad, request: int, group: int, moves: Sequence[Move], known: Mapping[int, Known]
    ) -> tuple[int, ...]:
        """A request gets a row of this group, with what was found for it and the blocks into which the transfer writes.
        Returns the blocks that are for its pass.
        """
        row, table = self._row(request, group), self._table(request, group, known)
        found, taken = (self._blocks_of(moves, kind, group) for kind in ("touch", "get"))
        skipped = first_place(table, found or taken)
        places = -(-load.end // self._sizes[group]) if load.within_step else skipped + len(found) + len(taken)
        into = taken[: max(0, places - skipped - len(found))]
        if into:
            end = Length(skipped + len(found) + len(into), 0)
            self.jobs.admits(request, row, self.story(request, group), skipped, Seq(found), end, Seq(into))
        else:
            self._admit(request, row, first_place(table, found), found)
        return tuple(taken[len(into) :])

    def _blocks_of(self, moves: Sequence[Move], kind: str, group: int) -> list[int]:
        """The blocks of this group that moves of one kind name."""
        return [
            block
            for move in moves
            if move.kind == kind
            for block in move.blocks
            if block != NULL and group == (self.state.pool.home(block) if move.group is None else move.group)
        ]

    def _as_whole(self, move: Move) -> Move:
        """A hash of so many tokens as whole blocks have is one of a whole block."""
        if move.kind != "cache_partial" or move.group is None or move.first % self._sizes[move.group]:
            return move
        return move._replace(kind="cache", first=move.first // self._sizes[move.group] - 1)

    def _move(self, move: Move, known: Mapping[int, Known], passes: Mapping[int, RequestPass]) -> None:
        if move.kind == "evict":
            self.law.engine_step("evict", Set(move.blocks))
        elif move.kind in GIVES_BACK:
            self._freed(move, known)
        elif move.kind == "touch" and move.group is None:
            for group in range(len(self.kinds)):
                blocks = tuple(b for b in move.blocks if b != NULL and self.state.pool.home(b) == group)
                self._move(move._replace(blocks=blocks, group=group), known, passes)
        elif move.request is not None and move.request in self.here and move.group is not None:
            if move.kind == "touch":
                self._found(move, known)
            elif move.kind == "get":
                self._taken(move, known)
            elif move.kind == "cache":
                self._shift(move.request, move.group, known)
                self._hashed(move, passes)

    def _row(self, request: int, group: int) -> int:
        """The row of a request in a group. A request without rows gets some."""
        one = self.here[request]
        if not one.rows:
            if not self._free:  # there are rows for all that run, and for all that steps in flight or transfers use
                left = sorted(request for request, _ in self.kept)
                raise Finding(QUIESCENT, NOTHING_HELD, f"the blocks of requests {left}, which have left, are not free")
            one.rows, one.computed, one.gives_up = self._free.pop(0), 0, False
            if self.economy is not None:
                stories = [self.story(request, group) for group in range(len(self.kinds))]
                self.economy.admits(request, one.rows, stories, len(one.tokens))
        return one.rows[group]

    def _table(self, request: int, group: int, known: Mapping[int, Known]) -> tuple[int, ...]:
        shown = known.get(request)
        return shown.tables[group] if shown is not None and group < len(shown.tables) else ()

    def _found(self, move: Move, known: Mapping[int, Known]) -> None:
        """The prefix cache has found blocks for a request."""
        blocks = [b for b in move.blocks if b != NULL]
        if not blocks or move.request is None or move.group is None:
            return
        row, table = self._row(move.request, move.group), self._table(move.request, move.group, known)
        self._admit(move.request, row, first_place(table, blocks), blocks)

    def _admit(self, request: int, row: int, first: int, found: list[int]) -> None:
        if self.state.phase(row) == IDLE:
            one, group = self.here[request], self.state.pool.group(row)
            self.law.engine_step("admit", row, self.story(request, group), first, Seq(found))
            one.computed = max(one.computed, (first + len(found)) * self._sizes[group])

    def _taken(self, move: Move, known: Mapping[int, Known]) -> None:
        """A request got new blocks."""
        assert move.request is not None
        assert move.group is not None
        blocks = [b for b in move.blocks if b != NULL]
        if not blocks:
            return
        row = self._row(move.request, move.group)
        self._admit(move.request, row, 0, [])
        length = self.state.pool.length(row)
        skipped = length
        if self.kinds[move.group] == MAMBA:
            table = self._table(move.request, move.group, known)
            skipped = max(length, table.index(blocks[0])) if blocks[0] in table else length
        to = Length(skipped + len(blocks), 0)
        self.law.engine_step("allocate", row, to, skipped, Seq(blocks))
        self._shift(move.request, move.group, known)

    def _hashed(self, move: Move, passes: Mapping[int, RequestPass]) -> None:
        """The prefix cache finds blocks of a request from now on."""
        assert move.request is not None
        assert move.group is not None
        one = self.here[move.request]
        named = Set(b for b in move.blocks if b != NULL)
        if one.rows:
            row, size = one.rows[move.group], self._sizes[move.group]
            slots = in_tokens(ahead(self.state, row), size)  # blocks of a transfer get hashes before it gets more
            last = max((self.state.pool.index(block) for block in named.items()), default=-1)
            end = (last + 1) * size  # a state behind them may be shifted before it is computed
            self._compute(row, min(slots, end, self._target(one, passes.get(move.request))), named)

    def _target(self, one: FollowedRequest, launched: RequestPass | None) -> int:
        """How many tokens of a request are computed, with those of a pass that this call launches."""
        start = one.computed if launched is None or launched.kind == "running" else max(one.computed, launched.start)
        more = 0 if launched is None else launched.count - launched.drafts
        if launched is not None and launched.kind != "running":
            return max(one.computed, launched.start + more)
        return start + more

    def _compute(self, row: int, computed: int, named: Set) -> None:
        """The law's step for tokens that are computed."""
        size = self.state.block_size(row)
        now = in_tokens(Length(self.state.whole(row), self.state.rest(row)), size)
        to = max(now, computed)
        if to > now or named.size:
            self.law.engine_step("compute", row, in_pages(to, size), named)

    def _launched(self, request: int, told: RequestPass, known: Mapping[int, Known]) -> None:
        """A pass of a request is launched."""
        if request not in self.here:
            return
        one = self.here[request]
        for group in range(len(self.kinds)):
            self._admit(request, self._row(request, group), 0, [])
        if self.economy is not None:
            self.economy.launches(request, told.start)
            self.economy.goes_on(request, one.rows, told.start)
        earliest = told.start - sum(one.drafts)  # where all drafts in flight are refused
        one.computed = self._target(one, told)
        one.drafts.append(told.drafts)
        for row in one.rows:
            self._compute(row, one.computed, Set())
        self.jobs.launched({row: self._since(row, told.start, earliest) for row in one.rows})
        self._must_have_slots(request, told.start + told.count, known)

    def _must_have_slots(self, request: int, end: int, known: Mapping[int, Known]) -> None:
        """In each group the table of a request has places for so many tokens. Raises ``Finding`` if it has not."""
        tables = known[request].tables if request in known else ()
        for group, (table, size) in enumerate(zip(tables, self._sizes, strict=True) if tables else ()):
            if end > len(table) * size:
                law = self.law.stem.invariants["computed_within_slots"]
                has = f"{len(table)} blocks" + (f" in group {group}" if len(self.kinds) > 1 else "")
                detail = f"a pass of request {request} computes {end} tokens with its drafts, and has {has}"
                raise Finding(law.name, law.sentence, detail, kind=INVARIANT)

    def _since(self, row: int, start: int, earliest: int) -> int:
        """The first place of a row that a pass uses. A transfer may get the states before it, and without transfers
        nobody may keep them; without a prefix cache all states are in the first places.
        """
        if (self._loads_states or self.economy is not None) and has_states(self.state, row):
            return first_state(self.state, row, earliest)
        return first_read(self.state, row, start)

    def _freed(self, move: Move, known: Mapping[int, Known]) -> None:
        """Blocks were given back: a window has moved on, or a row has ended.

        A request may end after its window has moved on in the same call, and keep its blocks for what is in flight.
        """
        of_rows: dict[int, list[int]] = {}
        rows = self._rows_of(move)
        for block in move.blocks:
            if block != NULL and (row := self._holder(rows, block)):
                of_rows.setdefault(row, []).append(block)
        for row, blocks in of_rows.items():
            held = self._held([row])
            if set(blocks) == held or (self._has_ended(row, known) and held <= self._given[move.request]):
                if move.request in self._sending:  # its blocks are given back although another server reads them
                    self._sends(move.request)
                self._finish(row)
            elif self.state.phase(row) != IDLE:
                self._slide(row, blocks)

    def _rows_of(self, move: Move) -> list[int]:
        """The rows of the request whose blocks are given back.

        Where the scheduler does not say for whom, these are rows that were kept: those of the request that holds
        exactly these blocks, else all.
        """
        if move.request is not None and move.request in self.here and not self.here[move.request].gives_up:
            return self.here[move.request].rows
        blocks = {block for block in move.blocks if block != NULL}
        of_request = [one for request, one in self.kept if request == move.request]
        kept = [self._kept_rows(one) for one in of_request or (one for _, one in self.kept)]
        return next((rows for rows in kept if self._held(rows) == blocks), [row for rows in kept for row in rows])

    def _kept_rows(self, one: FollowedRequest) -> list[int]:
        return [row for row in one.rows if self.state.phase(row) == KEPT]

    def holds(self, request: int) -> set[int]:
        """The blocks of a request that has left, and which were not given back yet."""
        return self._held([row for name, one in self.kept if name == request for row in self._kept_rows(one)])

    def _held(self, rows: Sequence[int]) -> set[int]:
        pool = self.state.pool
        return {pool.table(row, i) for row in rows for i in range(pool.length(row))} - {NULL}

    def _holder(self, rows: Sequence[int], block: int) -> int:
        """The row that gives up a block, 0 if there is none. A row that was kept holds the block."""
        pool = self.state.pool
        of_group = (r for r in rows if pool.group(r) == pool.home(block))
        kept = (r for r in of_group if self.state.phase(r) != KEPT or pool.table(r, pool.index(block)) == block)
        return next(kept, 0)

    def _has_ended(self, row: int, known: Mapping[int, Known]) -> bool:
        """The scheduler shows no table for the row any more."""
        for request, one in self.here.items():
            if row in one.rows:
                return not any(self._table(request, one.rows.index(row), known))
        return True

    def _finish(self, row: int) -> None:
        if self.state.phase(row) != IDLE:
            self.law.engine_step("finish", row)
        for request, one in self.here.items():
            if row in one.rows and all(self.state.phase(r) == IDLE for r in one.rows):
                self._free.append(self.here[request].rows)
                one.rows, one.computed = [], 0
                one.drafts.clear()
        for each in list(self.kept):
            rows = each[1].rows
            if row in rows and all(self.state.phase(r) == IDLE for r in rows):
                self.kept.remove(each)
                self._free.append(rows)

    def _slide(self, row: int, blocks: list[int]) -> None:
        first = self.state.first(row)
        to = first if self.state.stateful(row) else max(first, 1 + max(self.state.pool.index(b) for b in blocks))
        self.law.engine_step("slide", row, to, Set(blocks))

    def _ends(self, request: int) -> None:
        """A request has ended. Where its blocks were not given back yet, its rows are kept."""
        self._keep(request, self.here.pop(request))

    def _keep(self, request: int, one: FollowedRequest) -> None:
        """The rows of a request that has ended, or was preempted, are kept until their blocks are given back."""
        held = [row for row in one.rows if self.state.phase(row) != IDLE]
        for row in held:
            if self._holds_nothing(row):
                self.law.engine_step("finish", row)
            else:
                self.law.engine_step("keep", row)
        if any(self.state.phase(row) == KEPT for row in one.rows):
            self.kept.append((request, one))
        elif one.rows:
            self._free.append(one.rows)

    def _holds_nothing(self, row: int) -> bool:
        pool = self.state.pool
        return not any(pool.table(row, i) for i in range(pool.length(row)))

    def _shift(self, request: int, group: int, known: Mapping[int, Known]) -> None:
        """A scheduler may put a state that it still writes at another place of the table."""
        if self.kinds[group] != MAMBA or not self.here[request].rows:
            return
        row, table = self.here[request].rows[group], self._table(request, group, known)
        for place in range(min(len(table), self.state.pool.length(row)) - 1, -1, -1):
            pool, block = self.state.pool, table[place]
            if block != NULL and pool.table(row, place) == NULL and pool.table(row, pool.index(block)) == block:
                self.law.engine_step("shift", row, block, place)

    def loaded(self, request: int, computed: int) -> None:
        """A transfer into the blocks of a request is done, which has so many of its tokens now."""
        self.jobs.loaded(request, computed)
        if (one := self.here.get(request)) is not None:
            one.computed = computed

    def lost(self, request: int) -> None:
        """A transfer into the blocks of a request has failed, and the scheduler counts nothing of what it wrote: the
        request gives up its blocks.
        """
        if (one := self.here.get(request)) is not None:
            self._keep(request, replace(one))
            one.rows, one.computed, one.gives_up = [], 0, True
        self.jobs.loaded(request, 0)

    # What was verified.

    def verified(self, request: int, accepted: int) -> None:
        """The oldest pass of a request in flight is done, and so many of its drafts were accepted."""
        one = self.here.get(request)
        if one is not None and one.drafts:
            one.drafts.pop(0)
            one.computed += accepted

    def settle(self) -> None:
        """Drafts that were accepted are computed."""
        for one in self.here.values():
            for row in one.rows:
                if self.state.phase(row) != IDLE:
                    self._compute(row, one.computed, Set())

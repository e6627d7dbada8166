"""A run of the stem ``block_pool``: rows of blocks beside the law, with a prefix cache that many rows share.

The engine chooses which free blocks it hands out, which of several blocks with one hash it finds, for which of the
blocks that are offered to it it keeps the hash, and whether it finds one block for a hash or several. Everything
else is the caller's.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from conformance.driver.diff import FieldDifference, Names
from conformance.driver.lockstep import Calls, EngineCall, Finding, Ignores, Law, Operation, nothing
from conformance.driver.operations import KeyTokens, operation, operations_of
from conformance.driver.protocol import Json, Misuse, lacking
from conformance.driver.shadow import Shadow
from conformance.stems.block_pool.contents import Table, forward, table_of
from conformance.stems.block_pool.projection import UNKNOWN, block_problems, found_under, prefix_names, project_blocks
from conformance.stems.block_pool.protocol import NULL, BlockPoolEngine, BlockPoolSnapshot, Name
from spec import block_pool as law
from spec.block_pool_state import BlockPoolState, alike, found_for
from spec.finite import Domain, Map, Seq, Set
from spec.logic import but

FINDS = "finds_what_it_has"
FINDS_SENTENCE = "The prefix cache finds a block wherever one has the hash that is asked for."
OFFERED = "offered_is_found"
OFFERED_SENTENCE = "What a row offers to the prefix cache is found there, if not in its own block then in an equal one."


class BlockPoolRun:
    """Operations on rows of blocks. Rows count from 1, and row ``r`` belongs to group ``r % groups``.

    ``tables``: the tables of the rows in use, as the caller keeps them. ``texts``: the prefix with each number.
    ``displaced``: the hash of each block that is not found since another block got its hash. The block may still say
    that it has the hash, until it is handed out or evicted.
    """

    def __init__(self, engine: BlockPoolEngine, config: Json, strict: bool = True, ignores: Ignores = nothing) -> None:
        self.engine = engine
        self.lacks: Collection[str] = lacking(engine)
        self.groups: int = config["groups"]
        self.caching: bool = config["caching"]
        empty = law.initial(config["blocks"], config["rows"], config["indices"], self.groups, 0, Map(2))
        self.shadow = Shadow()
        self.law = Law(law.stem, empty, strict, ignores)
        self.tables: dict[int, Table] = {}
        self.displaced: dict[int, Name] = {}
        self.stories: dict[tuple[int, ...], int] = {}
        self.texts: dict[int, tuple[int, ...]] = {}
        self._numbers: dict[tuple[int, ...], int] = {}
        self.law.names = Names(text=prefix_names(self.texts))
        self.operations: Mapping[str, Operation] = operations_of(self)
        self.seen: BlockPoolSnapshot = engine.snapshot()

    # A request or a transfer begins and ends.

    @operation
    def admit(self, row: int, text: KeyTokens, skip: int = 0, hits: int = 0, to: int = 0) -> Calls:
        """A request begins with a row: it takes over the blocks that the prefix cache finds, and new ones up to ``to``
        places.

        ``text``: the request's whole text, a number for each block. The prefix cache is asked for the blocks at
        ``hits`` places from ``skip`` on, until it finds none. The places before ``skip`` get null blocks, as before a
        sliding window; without a hit nothing is skipped. A request for which there are too few blocks does not begin.
        """
        group = self._must_be_idle(row)
        table = table_of(self.shadow, text, group)
        if skip + hits > len(text) or to > self.state.indices.size or (hits and not self.caching):
            raise Misuse("the text or the table is shorter than that, or there is no prefix cache")
        self.law.caller_step("begin", row, self._story(text, table))
        self.tables[row] = table
        found: list[int] = []
        for place in range(skip, skip + hits):
            block = yield EngineCall("find", partial(self.engine.find, group, text[: place + 1]))
            if block is None:
                self._must_have_none(row, place)
                break
            found.append(block)
        if found:
            yield None
            if skip:
                self.law.caller_step("skip", row, skip)
                self.law.caller_step("fill", row, skip)
            self.law.engine_step("join", row, Seq(found))
            table.blocks = [NULL] * skip + found
            table.filled = table.offered = len(table.blocks)
            yield EngineCall("touch", partial(self.engine.touch, found))
        if len(table.blocks) < to:
            granted = yield from self._take(row, to)
            if not granted:
                if found:
                    yield None
                yield from self._give_back(row)

    def _take(self, row: int, to: int) -> Generator[EngineCall, Any, bool]:
        """New blocks up to ``to`` places. Its value: the engine had enough."""
        table = self.tables[row]
        count = to - len(table.blocks)
        fits = bool(count <= self.state.available)
        risky = self.engine.fragile and not fits
        chosen = yield EngineCall("get", partial(self.engine.get, count), risky)
        if chosen is None:
            self.law.refused("take", fits)
            return False
        table.blocks = [*table.blocks, *chosen]
        self._named_anew(chosen)
        self.law.engine_step("take", row, count, Seq(chosen))
        return True

    @operation
    def release(self, row: int) -> Calls:
        """A request ends, is aborted or is preempted, or a transfer is done: the row gives back all its blocks, the
        last one first.
        """
        self._must_run(row)
        return self._give_back(row)

    def _give_back(self, row: int) -> Calls:
        self.law.caller_step("release", row)
        if blocks := self.tables.pop(row).blocks:
            yield EngineCall("free", partial(self.engine.free, blocks[::-1]))

    @operation
    def lend(self, row: int, other: int) -> Calls:
        """A transfer reads the computed blocks of a row: it holds them too, in a row of its own, and releases that."""
        table, group = self._must_run(row), self._must_be_idle(other)
        if group != row % self.groups:
            raise Misuse("the rows belong to different groups")
        lent = table.held(0, table.filled)
        self.law.caller_step("begin", other, self._story(table.text, table))
        self.law.caller_step("lend", row, other, Set(lent))
        self.tables[other] = replace(table, blocks=table.blocks[: table.filled], offered=table.filled)
        if lent:
            yield EngineCall("touch", partial(self.engine.touch, lent))

    # A request works.

    @operation
    def grow(self, row: int, to: int, skip: int = 0) -> Calls:
        """A row gets new blocks up to ``to`` places, for tokens to come or for drafts; none if there are too few.

        ``skip``: the first new places get null blocks, as where only the last of several states is kept.
        """
        table = self._must_run(row)
        first = len(table.blocks)
        if not first + skip < to <= self.state.indices.size:
            raise Misuse("the row has the places already, or cannot have so many")
        if skip:
            self.law.caller_step("skip", row, first + skip)
            table.blocks = [*table.blocks, *([NULL] * skip)]
        granted = yield from self._take(row, to)
        if skip and not granted:
            self.law.caller_step("cut", row, first)
            table.blocks = table.blocks[:first]

    @operation
    def move(self, row: int, place: int, to: int) -> Calls:
        """A row puts a block that it has not computed at another of its places, where it has a null block. The engine
        is not asked.
        """
        table = self._must_run(row)
        places = range(table.filled, len(table.blocks))
        if place not in places or to not in places or table.blocks[place] == NULL or table.blocks[to] != NULL:
            raise Misuse("the row has no such block, or none to put there")
        self.law.caller_step("move", row, table.blocks[place], to)
        blocks = list(table.blocks)
        blocks[place], blocks[to] = NULL, blocks[place]
        table.blocks = blocks
        yield from ()

    @operation
    def compute(self, row: int, to: int, cache: bool = True) -> Calls:
        """A forward pass: the places up to ``to`` are computed whole, and all places before are read.

        ``cache``: then the row offers to the prefix cache what it has not offered yet.
        """
        table = self._must_run(row)
        if not table.filled <= to <= min(len(table.blocks), len(table.text)):
            raise Misuse("the places are computed already, or the row or its text ends before")
        self.law.caller_step("fill", row, to)
        forward(self.shadow, row, table, to)
        if cache and self.caching and table.offered < to:
            first, table.offered = table.offered, to
            offer = (row % self.groups, table.text, table.blocks, first, to)
            yield EngineCall("cache", partial(self.engine.cache, *offer))
            self._explain_hashes(row, first, to)

    def _explain_hashes(self, row: int, first: int, last: int) -> None:
        """Explains which of the offered blocks have a hash. Raises ``Finding`` where one is not found at all."""
        shown, table = found_under(self.seen, self._number), self.tables[row]
        named = [b for b in table.held(first, last) if b in shown]
        self.law.engine_step("cache", row, Set(named))
        self._explain_displaced(named, shown)
        for place in range(first, last):
            if table.blocks[place] != NULL and not self._has(row, place):
                what = f"block {table.blocks[place]} of row {row} was offered for {list(table.text[: place + 1])}"
                raise Finding(OFFERED, OFFERED_SENTENCE, f"{what}, and no block is found there")

    def _explain_displaced(self, named: Collection[int], shown: Collection[int]) -> None:
        """Explains which blocks are not found any more, since others that have just got their hash took their place.
        ``shown``: the blocks that are found.
        """
        st = self.state
        twins = (b for b in st.blocks.items() if b not in shown and any(alike(st, b, new) for new in named))
        if gone := {b: Name(int(st.home(b)), self.texts[st.hash(b)]) for b in twins}:
            self.law.engine_step("displace", Set(gone))
            self.displaced |= gone

    @operation
    def slide(self, row: int, to: int) -> Calls:
        """The window of a row moves: its blocks before place ``to``, which are computed, are given back, the last one
        first, and null blocks stand in their places.
        """
        table = self._must_run(row)
        if to > table.filled:
            raise Misuse("the window would leave places that are not computed")
        gone = table.held(0, to)
        self.law.caller_step("leave", row, Set(gone))
        table.blocks = [NULL] * to + table.blocks[to:]
        if gone:
            yield EngineCall("free", partial(self.engine.free, gone[::-1]))

    @operation
    def cut(self, row: int, to: int) -> Calls:
        """Drafts are refused: the row gives back its places from ``to`` on, none of which is computed, the last one
        first.
        """
        table = self._must_run(row)
        if not table.filled <= to <= len(table.blocks):
            raise Misuse("the row has not so many places, or they are computed")
        gone = table.held(to)
        self.law.caller_step("cut", row, to)
        table.blocks = table.blocks[:to]
        if gone:
            yield EngineCall("free", partial(self.engine.free, gone[::-1]))

    # The prefix cache.

    @operation
    def evict(self, row: int, first: int, last: int) -> Calls:
        """The prefix cache shall not find a row's blocks at the places from ``first`` to ``last`` any more, as after a
        transfer that brought wrong contents.
        """
        gone = self._must_run(row).held(first, last)
        if not gone or not self.caching:
            raise Misuse("the row has no block there, or there is no prefix cache")
        self.law.caller_step("evict", Set(gone))
        self._named_anew(gone)
        yield EngineCall("evict", partial(self.engine.evict, gone))

    @operation
    def reset(self) -> Calls:
        """The prefix cache shall forget everything, as after new weights."""
        done = yield EngineCall("reset", self.engine.reset)
        self.law.engine_step("reset", bool(done))
        self._named_anew(self.state.blocks.items() if done else ())

    def _named_anew(self, blocks: Iterable[int]) -> None:
        """These blocks have no hash from now on, also where they kept one under which another block is found."""
        self.displaced = {block: name for block, name in self.displaced.items() if block not in set(blocks)}

    # What callers can send now.

    @property
    def state(self) -> BlockPoolState:
        """The law's blocks."""
        state: BlockPoolState = self.law.state
        return state

    def _must_be_idle(self, row: int) -> int:
        """The group of a row that is not in use."""
        if not self.state.rows.has(row) or row in self.tables:
            raise Misuse(f"there is no row {row} that is not in use")
        return row % self.groups

    def _must_run(self, row: int) -> Table:
        if row not in self.tables:
            raise Misuse(f"row {row} is not in use")
        return self.tables[row]

    # Texts.

    def _story(self, text: Sequence[int], table: Table) -> int:
        """The law's number of a text. A new text gets the next number, and its prefixes get theirs."""
        known = tuple(text)
        if known not in self.stories:
            self.stories[known] = number = len(self.stories)
            tells = self.state.tells
            for place, prefix in enumerate(table.prefixes):
                tells = tells.put((number, place), prefix)
                self._numbers[known[: place + 1]] = prefix
                self.texts[prefix] = known[: place + 1]
            self.law.state = but(self.state, stories=Domain(0, number), tells=tells)
        return self.stories[known]

    def _number(self, text: tuple[int, ...]) -> int:
        """The law's number of a prefix."""
        if text not in self._numbers:
            self._numbers[text] = self.shadow.texts.prefixes(text)[-1] if text else UNKNOWN
        return self._numbers[text]

    def _has(self, row: int, place: int) -> bool:
        """A block has the hash of the row's text at this place."""
        return bool(self.state.blocks.any(lambda b: found_for(self.state, row, place, b)))

    def _must_have_none(self, row: int, place: int) -> None:
        """Raises ``Finding`` if the engine says that it has no block for the row at this place, and it has one."""
        if self._has(row, place):
            text = list(self.tables[row].text[: place + 1])
            raise Finding(FINDS, FINDS_SENTENCE, f"for {text} in group {row % self.groups} it answered none")

    # What the driver needs.

    def snapshot(self) -> BlockPoolSnapshot:
        """The free queue, the counts and the hashes."""
        return self.engine.snapshot()

    def follow(self) -> None:
        """Nothing to do: each operation explains what its calls have changed."""

    def project(self) -> Any:
        """The law's blocks, with counts, hashes and the number of free blocks as the engine shows them."""
        return project_blocks(self.state, self.seen, self._number)

    def hidden(self, change: FieldDifference) -> bool:
        """Nothing is hidden from a caller."""
        del change
        return False

    def beyond_state(self) -> list[str]:
        """What is wrong with the free queue, and where blocks and the prefix cache contradict each other."""
        return block_problems(self.state, self.seen, self.displaced)

    def judge(self) -> None:
        """Nothing to add: the invariants say everything."""

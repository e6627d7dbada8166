"""What a recorded scheduler does with parts of blocks, with copies of blocks, and with states: no law speaks of them.

The law knows whole blocks. That a block which the prefix cache finds for a part of a text holds this part is judged
here, from what the recording says: which passes were launched, which copies the workers were told to make, and for
which parts blocks are found. A step copies blocks first, and then computes its passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from conformance.driver.lockstep import INVARIANT, Finding
from conformance.recording.block_records import KINDS, RecordedCall, RecordedLaunch, RecordedMove, RecordedStart
from conformance.stems.block_cache.follow import FollowedRequest
from conformance.stems.block_cache.protocol import MAMBA, RUNNING, RequestPass
from conformance.stems.block_cache.recorded.player import Player
from conformance.stems.block_cache.recorded.stories import RecordedStories, Sizes
from conformance.stems.block_pool.protocol import NULL

TOLD = "copies_are_told"
TOLD_SENTENCE = (
    "The workers are told to make each copy of a block with which a request, or the prefix cache, goes on, and no other."
)
OWN_COPY = "copy_is_of_own_text"
OWN_COPY_SENTENCE = (
    "A request goes on in a copy of a block that held its own text, or the state after it, before the step."
)
BEGINS = "pass_begins_where_blocks_end"
BEGINS_SENTENCE = (
    "A request that has got its first blocks begins with the token behind those of them that were found, or before it, "
    "in each group of layers."
)
HELD = "found_part_is_held"
HELD_SENTENCE = (
    "A block that the prefix cache finds for a part of a block holds this part; one of layers with states holds the "
    "state after the text for which it is found."
)
NAMING = ("get", "evict", "cache", "cache_partial", "move_hashes")  # kinds of moves that change what a block is for
State = tuple[int, int]  # a request, and after how many of its tokens


class Parts:
    """``sizes``, ``stories``, ``player``: of the recording."""

    def __init__(self, start: RecordedStart, sizes: Sizes, stories: RecordedStories, player: Player) -> None:
        self._layers = start.config["layers"]
        kinds = [group["kind"] for group in self._layers]
        self._sizes, self._stories = sizes, stories
        self._tables, self._before = player.tables, player.before
        self._states = [group for group, kind in enumerate(kinds) if kind == MAMBA] if "unit" in start.config else []
        self._found: dict[int, set[bytes]] = {}  # by block, the parts for which it is found
        self._whole: dict[int, bytes] = {}  # by block, the text up to its end for which it is found
        self._holds: dict[int, State] = {}  # by block, the state that a pass has left in it, as far as it is known
        self.begins(start)

    def begins(self, start: RecordedStart) -> None:
        """The recording says the whole state."""
        self._found = {block: {*digests} for block, digests in start.parts}
        self._whole = {block: digest for block, _, digest in start.names}

    def named(self, call: RecordedCall, here: Mapping[int, FollowedRequest]) -> dict[int, int]:
        """How many tokens are computed of each request for a part of whose text the call has named a block."""
        named = {move.request for move in call.moves if KINDS[move.kind] == "cache_partial"}
        return {request: here[request].computed for request in named if request in here}

    def follow(
        self,
        call: RecordedCall,
        names: Mapping[int, bytes],
        passes: Mapping[int, RequestPass],
        here: Mapping[int, FollowedRequest],
        before: Mapping[int, int],
    ) -> None:
        """Judges a call. ``names``: of the blocks whose hashes it may have changed, those of whole blocks. ``passes``:
        what it has launched. ``here``: the requests that have not ended, with these passes. ``before``: what ``named``
        has said before the call was explained.

        Raises ``Finding``.
        """
        moves = [(KINDS[move.kind], move) for move in call.moves]
        launch = RecordedLaunch(*call.rest) if passes else None
        if launch is not None:
            self._must_be_told(moves, launch)
            self._must_be_own(moves, passes)
            self._must_begin(moves, passes)
            self._compute(moves, passes, launch, here)
        now = self.named(call, here)
        self._must_hold(moves, call, {request: max(count, now.get(request, 0)) for request, count in before.items()})
        self._whole.update(names)
        if launch is not None:
            self._must_stay(call, passes, launch)

    # Copies.

    def _must_be_told(self, moves: Sequence[tuple[str, RecordedMove]], launch: RecordedLaunch) -> None:
        made = Counter((move.blocks[0], move.blocks[1]) for kind, move in moves if kind in ("copy", "move_hashes"))
        told = Counter((source, target) for source, target in launch.copies)
        for copies, say in ((made - told, "is not told to the workers"), (told - made, "is of nobody")):
            for source, target in copies:
                raise Finding(TOLD, TOLD_SENTENCE, f"the copy of block {source} to block {target} {say}", kind=INVARIANT)

    def _must_be_own(self, moves: Sequence[tuple[str, RecordedMove]], passes: Mapping[int, RequestPass]) -> None:
        """Who goes on in a copy, or from a state that was found, has what it reads there."""
        fresh: set[int] = set()  # what this call has put into the prefix cache
        for kind, move in moves:
            if kind in ("cache", "cache_partial"):
                fresh.update(move.blocks)
            elif kind == "move_hashes":
                fresh.add(move.blocks[1])
            elif kind == "copy" and move.request in passes:
                start, source = passes[move.request].start, move.blocks[0]
                is_own = any(self._stories.at(move.request, place) in self._numbers(source)
                             for place in self._places(move.group, move.first, start))  # fmt: skip
                if not is_own or source in fresh:
                    what = "this very step computes it" if is_own else "it was not found for its text"
                    detail = f"request {move.request} goes on after {start} tokens in a copy of block {source}: {what}"
                    raise Finding(OWN_COPY, OWN_COPY_SENTENCE, detail, kind=INVARIANT)
            elif kind == "touch":
                self._must_be_old(move, fresh)

    def _must_begin(self, moves: Sequence[tuple[str, RecordedMove]], passes: Mapping[int, RequestPass]) -> None:
        """No pass leaves out tokens that nobody has computed."""
        begins = {request: one.start for request, one in passes.items() if one.kind != RUNNING}
        ends = {(request, group): 0 for request in begins for group in range(len(self._sizes.of_groups))}
        for kind, move in moves:
            if move.request in begins and kind in ("touch", "copy"):
                table, size = self._tables[move.request, move.group], self._sizes.of_groups[move.group]
                found = [move.first] if kind == "copy" else map(table.index, {*move.blocks} & {*table} - {NULL})
                end = max(((index + 1) * size for index in found), default=0)
                ends[move.request, move.group] = max(end, ends[move.request, move.group])
        for (request, group), end in ends.items():
            start = begins[request]
            if end < start and self._reads_before(group):
                detail = f"request {request} begins after {start} tokens, and has {end} of them in group {group}"
                raise Finding(BEGINS, BEGINS_SENTENCE, detail, kind=INVARIANT)

    def _reads_before(self, group: int) -> bool:
        """A token reads others before it, or a state."""
        return bool(self._layers[group].get("window") != 1)

    def _must_be_old(self, touched: RecordedMove, fresh: set[int]) -> None:
        for block in touched.blocks if touched.group in self._states else ():
            if block and block in fresh:
                detail = f"request {touched.request} goes on from the state in block {block}: this very step computes it"
                raise Finding(OWN_COPY, OWN_COPY_SENTENCE, detail, kind=INVARIANT)

    def _places(self, group: int, index: int, start: int) -> Iterable[int]:
        """The places of a text for which a block must have been found in which a request goes on after ``start``
        tokens: a state is of so many tokens, and what is beside it may be of more.
        """
        first = self._sizes.place(start)
        return (first,) if group in self._states else range(first, self._sizes.last(group, index) + 1)

    def _numbers(self, block: int) -> set[int]:
        """The prefixes for which a block is found."""
        whole = self._whole.get(block)
        return {self._stories.of_digest(each) for each in (*self._found.get(block, ()), *([whole] if whole else ()))}

    # States.

    def _compute(
        self,
        moves: Sequence[tuple[str, RecordedMove]],
        passes: Mapping[int, RequestPass],
        launch: RecordedLaunch,
        here: Mapping[int, FollowedRequest],
    ) -> None:
        """Copies are made, and then passes leave their states."""
        for kind, move in moves:
            if kind == "copy" and move.group in self._states and move.request in passes:
                self._holds[move.blocks[1]] = move.request, passes[move.request].start
            elif kind == "move_hashes":
                self._leaves(move.blocks[1], self._holds.get(move.blocks[0]))
            elif kind == "get":
                for block in move.blocks:
                    self._leaves(block, None)
        for request, one in passes.items() if self._states else ():
            drafts = request not in here or any(here[request].drafts)
            for group in self._states:
                for block in self._written(group, request, one, drafts):
                    self._leaves(block, None if drafts else (request, one.start + one.count))
        for request, group, tokens, index in launch.states:
            if request in passes:
                self._leaves(self._block(group, request, index), (request, tokens))

    def _leaves(self, block: int, state: State | None) -> None:
        if state is None:
            self._holds.pop(block, None)
        else:
            self._holds[block] = state

    def _written(self, group: int, request: int, one: RequestPass, drafts: bool) -> Iterator[int]:
        """The blocks into which a pass may write states: with drafts any of its last ones."""
        table = self._tables.get((request, group), ())
        last = (one.start + one.count - 1) // self._sizes.of_groups[group]
        yield from table[max(0, last - 1) :] if drafts else table[last : last + 1]

    def _block(self, group: int, request: int, index: int) -> int:
        table = self._tables.get((request, group), ())
        return table[index] if index < len(table) else NULL

    # What blocks are found for.

    def _must_hold(
        self, moves: Sequence[tuple[str, RecordedMove]], call: RecordedCall, computed: Mapping[int, int]
    ) -> None:
        """Blocks are found for what they hold, and a block for no part that nobody gave it. ``computed``: by request,
        of how many of its tokens.
        """
        shown = {block: {*digests} for block, digests in call.parts}
        may: dict[int, set[bytes]] = {}
        for kind, move in moves:
            if kind == "reset":
                self._found.clear()
                self._whole.clear()
            for block in move.blocks if kind in NAMING else ():
                may.setdefault(block, {*self._found.get(block, ())})
            if kind in ("get", "evict"):
                may.update((block, set()) for block in move.blocks)
            elif kind == "cache_partial" and move.names:
                (block,) = move.blocks
                may[block].add(move.names[0])
                if move.names[0] in (*shown.get(block, ()), move.names[1]):
                    self._must_have(move, computed.get(move.request, 0))
            elif kind == "cache":
                self._must_have_states(move)
            elif kind == "move_hashes":
                source, target = move.blocks
                may[target], may[source] = may[target] | may[source], set()
        may.pop(NULL, None)
        for block, allowed in may.items():
            if shown.get(block, set()) - allowed:
                detail = f"block {block} is found for a part of a text that it does not hold any more"
                raise Finding(HELD, HELD_SENTENCE, detail, kind=INVARIANT)
            self._found[block] = shown.get(block, set())

    def _must_have(self, named: RecordedMove, computed: int) -> None:
        """A block that is found for the first tokens of a request from now on has them, or the state after them."""
        (block,), request, tokens, group = named.blocks, named.request, named.first, named.group
        if group in self._states:
            self._must_be_state(block, request, tokens)
        elif self._sizes.is_part(group, tokens):
            if computed < tokens:
                self._raise(block, request, tokens, f"the request has computed {computed}")
            index = tokens // self._sizes.of_groups[group]
            if block not in (self._block(group, request, index), *self._before.get((request, group), ())[index:][:1]):
                self._raise(block, request, tokens, "they are in another block of the request")
        if self._stories.of_digest(named.names[0]) != self._stories.at(request, self._sizes.place(tokens)):
            self._raise(block, request, tokens, "its hash is of another text")

    def _must_have_states(self, named: RecordedMove) -> None:
        """Blocks that are found for whole blocks of a request's text hold the states there."""
        if named.group in self._states:
            for index, (block, digest) in enumerate(zip(named.blocks, named.names, strict=True), start=named.first):
                own = self._stories.at(named.request, self._sizes.last(named.group, index))
                if digest and self._stories.of_digest(digest) == own:  # else the call has named it anew
                    self._must_be_state(block, named.request, (index + 1) * self._sizes.of_groups[named.group])

    def _must_be_state(self, block: int, request: int, tokens: int) -> None:
        if (state := self._holds.get(block)) is not None and state != (request, tokens):
            self._raise(block, request, tokens, f"it holds the state after {state[1]} tokens of request {state[0]}")

    def _must_stay(self, call: RecordedCall, passes: Mapping[int, RequestPass], launch: RecordedLaunch) -> None:
        """A state that a pass writes over is found no more."""
        for request in passes if self._states else ():
            inside = {(group, index) for other, group, _, index in launch.states if other == request}
            for group in self._states:
                last = (passes[request].start + passes[request].count - 1) // self._sizes.of_groups[group]
                for index in (last, *(index for other, index in inside if other == group)):
                    block = self._block(group, request, index)
                    if block and (state := self._holds.get(block)) is not None:
                        self._must_be_found_for(block, *state)

    def _must_be_found_for(self, block: int, request: int, tokens: int) -> None:
        place, rest = divmod(tokens, self._sizes.unit)
        own = {self._stories.at(request, place - 1)} if not rest else set()
        if self._numbers(block) - own:
            detail = f"block {block} gets the state after {tokens} tokens of request {request}, and is found for others"
            raise Finding(HELD, HELD_SENTENCE, detail, kind=INVARIANT)

    def _raise(self, block: int, request: int, tokens: int, why: str) -> None:
        detail = f"block {block} is found for the first {tokens} tokens of request {request}: {why}"
        raise Finding(HELD, HELD_SENTENCE, detail, kind=INVARIANT)

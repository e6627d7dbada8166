"""What a recorded scheduler does with parts of blocks, with copies of blocks, and with states: no law speaks of them.

The law knows whole blocks. That a block which the prefix cache finds for a part of a text holds this part is judged
here, from what the recording says: which passes were launched, which copies the workers were told to make, and for
which parts blocks are found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from conformance.driver.lockstep import INVARIANT, Finding
from conformance.recording.block_records import KINDS, RecordedCall, RecordedLaunch, RecordedMove, RecordedStart
from conformance.stems.block_cache.follow import FollowedRequest
from conformance.stems.block_cache.protocol import MAMBA, RUNNING, RequestPass
from conformance.stems.block_cache.recorded.held_states import HeldStates
from conformance.stems.block_cache.recorded.player import Player
from conformance.stems.block_cache.recorded.stories import BlockSizes, RecordedStories
from conformance.stems.block_pool.protocol import NULL

TOLD = "copies_are_told"
TOLD_SENTENCE = (
    "The workers are told to make each copy of a block with which a request or the prefix cache goes on, and no other."
)
OWN_COPY = "copy_is_of_own_text"
OWN_COPY_SENTENCE = (
    "A request goes on in a copy of a block that held its own text before the step, and from a state that was computed "
    "before the step."
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
Moves = Sequence[tuple[str, RecordedMove]]  # each with its kind


class Parts:
    """``sizes``, ``stories``, ``player``: of the recording."""

    def __init__(self, start: RecordedStart, sizes: BlockSizes, stories: RecordedStories, player: Player) -> None:
        self._layers, self._sizes, self._stories, self._player = start.config["layers"], sizes, stories, player
        of_states = [group for group, layers in enumerate(self._layers) if layers["kind"] == MAMBA]
        self._states = HeldStates(of_states if "unit" in start.config else [], sizes, player)
        self.begins(start)

    def begins(self, start: RecordedStart) -> None:
        """The recording says the whole state."""
        self._found = {block: {*digests} for block, digests in start.parts}  # by block, of its parts
        self._whole = {block: digest for block, _, digest in start.names}

    def named(self, call: RecordedCall, here: Mapping[int, FollowedRequest]) -> dict[int, int]:
        """How many tokens are computed of each request for a part of whose text the call has named a block."""
        named = {move.request for move in call.moves if KINDS[move.kind] == "cache_partial"}
        return {request: here[request].computed for request in named if request in here}

    def follow(
        self,
        call: RecordedCall,
        passes: Mapping[int, RequestPass],
        here: Mapping[int, FollowedRequest],
        before: Mapping[int, int],
    ) -> None:
        """Judges a call. ``passes``: what it has launched. ``here``: the requests that have not ended, with these
        passes. ``before``: what ``named`` has said before the call was explained.

        Raises ``Finding``.
        """
        moves = [(KINDS[move.kind], move) for move in call.moves]
        launch = RecordedLaunch(*call.rest) if passes else None
        if launch is not None:
            self._must_be_told(moves, launch)
            self._must_be_own(moves, passes)
            self._must_begin(moves, passes)
            self._states.launched(call.moves, passes, launch, here)
        now = self.named(call, here)
        self._must_hold(moves, call, {request: max(count, now.get(request, 0)) for request, count in before.items()})
        self._whole.update(self._player.shown.names)
        for block, state in self._states.written(passes, launch) if launch is not None else ():
            self._must_be_found_for(block, *state)

    # Copies.

    def _must_be_told(self, moves: Moves, launch: RecordedLaunch) -> None:
        made = Counter((move.blocks[0], move.blocks[1]) for kind, move in moves if kind in ("copy", "move_hashes"))
        told = Counter((source, target) for source, target in launch.copies)
        for copies, say in ((made - told, "is not told to the workers"), (told - made, "is of nobody")):
            for source, target in copies:
                raise _finding(TOLD, TOLD_SENTENCE, f"the copy of block {source} to block {target} {say}")

    def _must_be_own(self, moves: Moves, passes: Mapping[int, RequestPass]) -> None:
        """Who goes on in a copy, or from a state that was found, has what it reads there."""
        fresh: set[int] = set()  # what this call has put into the prefix cache
        for kind, move in moves:
            if kind in ("cache", "cache_partial"):
                fresh.update(move.blocks)
            elif kind == "move_hashes":
                fresh.add(move.blocks[1])
            elif kind == "copy" and move.request in passes:
                self._must_be_copy(move, passes[move.request].start, fresh)
            elif kind == "touch" and move.group in self._states.groups:
                for block in {*move.blocks} & fresh - {NULL}:
                    detail = f"request {move.request} goes on from the state in block {block}: this step computes it"
                    raise _finding(OWN_COPY, OWN_COPY_SENTENCE, detail)

    def _must_be_copy(self, copied: RecordedMove, start: int, fresh: set[int]) -> None:
        """The block that is copied was found for the request's own text. ``start``: so many tokens of it."""
        request, source = copied.request, copied.blocks[0]
        own = {self._stories.at(request, place) for place in self._places(copied.group, copied.first, start)}
        why = "it was not found for its text" if not own & self._numbers(source) else ""
        if why or source in fresh:
            detail = f"request {request} goes on after {start} tokens in a copy of block {source}: "
            raise _finding(OWN_COPY, OWN_COPY_SENTENCE, detail + (why or "this step computes it"))

    def _places(self, group: int, column: int, start: int) -> Iterable[int]:
        """The places of a text for which a block must have been found in which a request goes on after ``start``
        tokens: a state is of so many tokens, and anything else may be of more.
        """
        first = self._sizes.place(start)
        return (first,) if group in self._states.groups else range(first, self._sizes.last(group, column) + 1)

    def _numbers(self, block: int) -> set[int]:
        """The prefixes for which a block is found."""
        whole = self._whole.get(block)
        return {self._stories.of_digest(each) for each in (*self._found.get(block, ()), *([whole] if whole else ()))}

    # Where requests begin.

    def _must_begin(self, moves: Moves, passes: Mapping[int, RequestPass]) -> None:
        """No pass leaves out tokens that nobody has computed."""
        begins = {request: one.start for request, one in passes.items() if one.kind != RUNNING}
        reads = [group for group, layers in enumerate(self._layers) if layers.get("window") != 1]
        ends = {(request, group): 0 for request in begins for group in reads}
        for kind, move in moves:
            key = move.request, move.group
            if key in ends and kind in ("touch", "copy"):
                table = self._player.tables[key]
                found = [move.first] if kind == "copy" else map(table.index, {*move.blocks} & {*table} - {NULL})
                size = self._sizes.of_groups[move.group]
                ends[key] = max((ends[key], *((column + 1) * size for column in found)))
        for (request, group), end in ends.items():
            if end < begins[request]:
                detail = f"request {request} begins after {begins[request]} tokens, and has {end} in group {group}"
                raise _finding(BEGINS, BEGINS_SENTENCE, detail)

    # What blocks are found for.

    def _must_hold(self, moves: Moves, call: RecordedCall, computed: Mapping[int, int]) -> None:
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
            elif kind == "cache":
                self._must_have_states(move)
            elif kind == "cache_partial" and move.names:
                (block,) = move.blocks
                may[block].add(move.names[0])
                if move.names[0] in (*shown.get(block, ()), move.names[1]):
                    self._must_have(move, computed.get(move.request, 0))
            elif kind == "move_hashes":
                source, target = move.blocks
                may[target], may[source] = may[target] | may[source], set()
        may.pop(NULL, None)
        for block, allowed in may.items():
            if shown.get(block, set()) - allowed:
                detail = f"block {block} is found for a part of a text that it does not hold any more"
                raise _finding(HELD, HELD_SENTENCE, detail)
            self._found[block] = shown.get(block, set())

    def _must_have(self, named: RecordedMove, computed: int) -> None:
        """A block that is found for the first tokens of a request from now on has them, or the state after them."""
        (block,), request, tokens, group = named.blocks, named.request, named.first, named.group
        if group in self._states.groups:
            self._must_be_state(block, request, tokens)
        elif self._sizes.is_part(group, tokens):
            if computed < tokens:
                raise _not_held(block, request, tokens, f"the request has computed {computed}")
            if block not in self._player.blocks(request, group, tokens // self._sizes.of_groups[group]):
                raise _not_held(block, request, tokens, "they are in another block of the request")
        if self._stories.of_digest(named.names[0]) != self._stories.at(request, self._sizes.place(tokens)):
            raise _not_held(block, request, tokens, "its hash is of another text")

    def _must_have_states(self, named: RecordedMove) -> None:
        """Blocks that are found for whole blocks of a request's text hold the states there."""
        if named.group not in self._states.groups:
            return
        size = self._sizes.of_groups[named.group]
        for column, (block, digest) in enumerate(zip(named.blocks, named.names, strict=True), start=named.first):
            own = self._stories.at(named.request, self._sizes.last(named.group, column))
            if digest and self._stories.of_digest(digest) == own:  # else the call has named it anew
                self._must_be_state(block, named.request, (column + 1) * size)

    def _must_be_state(self, block: int, request: int, tokens: int) -> None:
        if (state := self._states.of(block)) is not None and state != (request, tokens):
            why = f"it holds the state after {state.tokens} tokens of request {state.request}"
            raise _not_held(block, request, tokens, why)

    def _must_be_found_for(self, block: int, request: int, tokens: int) -> None:
        """A block into which a pass has written a state is found for no other."""
        own = set() if tokens % self._sizes.unit else {self._stories.at(request, self._sizes.place(tokens))}
        if self._numbers(block) - own:
            detail = f"block {block} gets the state after {tokens} tokens of request {request}, and is found for others"
            raise _finding(HELD, HELD_SENTENCE, detail)


def _finding(law: str, sentence: str, detail: str) -> Finding:
    return Finding(law, sentence, detail, kind=INVARIANT)


def _not_held(block: int, request: int, tokens: int, why: str) -> Finding:
    return _finding(
        HELD, HELD_SENTENCE, f"block {block} is found for the first {tokens} tokens of request {request}: {why}"
    )

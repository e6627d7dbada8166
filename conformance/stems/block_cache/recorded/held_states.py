"""Which states the blocks of a recorded scheduler hold, as far as the recording says it.

A step copies blocks first. Then each pass leaves the state after its last token in a block of its request's table, and
some leave one inside their tokens. Where a request has drafts, it is not known here which of its last blocks has which
state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from conformance.recording.block_records import KINDS, RecordedLaunch, RecordedMove
from conformance.stems.block_cache.follow import FollowedRequest
from conformance.stems.block_cache.protocol import RequestPass
from conformance.stems.block_cache.recorded.player import Player
from conformance.stems.block_cache.recorded.stories import BlockSizes
from conformance.stems.block_pool.protocol import NULL


class State(NamedTuple):
    """The state after so many tokens of a request."""

    request: int
    tokens: int


class HeldStates:
    """``groups``: the groups of layers with states."""

    def __init__(self, groups: Collection[int], sizes: BlockSizes, player: Player) -> None:
        self.groups, self._sizes, self._player = groups, sizes, player
        self._held: dict[int, State] = {}  # by block

    def of(self, block: int) -> State | None:
        """The state that a block holds, ``None`` where it is not known."""
        return self._held.get(block)

    def launched(
        self,
        moves: Sequence[RecordedMove],
        passes: Mapping[int, RequestPass],
        launch: RecordedLaunch,
        here: Mapping[int, FollowedRequest],
    ) -> None:
        """A step is launched. ``moves``: of its call. ``here``: the requests that have not ended."""
        for move in moves:
            self._moved(move, passes)
        for request, one in passes.items() if self.groups else ():
            has_drafts = request not in here or any(here[request].drafts)
            for group in self.groups:
                last = self._last(group, one)
                if has_drafts:
                    for block in self._player.tables[request, group][max(0, last - 1) :]:
                        self._leaves(block, None)
                else:
                    self._leaves(self._player.block(request, group, last), State(request, one.start + one.count))
        for request, group, tokens, column in launch.states:
            if request in passes:
                self._leaves(self._player.block(request, group, column), State(request, tokens))

    def _moved(self, move: RecordedMove, passes: Mapping[int, RequestPass]) -> None:
        kind = KINDS[move.kind]
        if kind == "copy" and move.group in self.groups and move.request in passes:
            self._leaves(move.blocks[1], State(move.request, passes[move.request].start))
        elif kind == "move_hashes":
            self._leaves(move.blocks[1], self.of(move.blocks[0]))
        elif kind == "get":
            for block in move.blocks:
                self._leaves(block, None)

    def _leaves(self, block: int, state: State | None) -> None:
        if state is None or block == NULL:
            self._held.pop(block, None)
        else:
            self._held[block] = state

    def _last(self, group: int, one: RequestPass) -> int:
        """The place of a table where a pass leaves its last state."""
        return (one.start + one.count - 1) // self._sizes.of_groups[group]

    def written(self, passes: Mapping[int, RequestPass], launch: RecordedLaunch) -> Iterator[tuple[int, State]]:
        """The blocks into which the passes of a step write states, and the states."""
        places = [(request, group, self._last(group, one)) for request, one in passes.items() for group in self.groups]
        places += [(request, group, column) for request, group, _, column in launch.states if request in passes]
        for place in places:
            block = self._player.block(*place)
            if (state := self.of(block)) is not None:
                yield block, state

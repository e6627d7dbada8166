"""What a scheduler did to blocks, as the law sees it: without copies of blocks, and with each state at its own place.

Where the prefix cache finds a prefix that ends inside a block, the request goes on in a copy of this block, which the
workers make before the step. The copy counts as a holder of both blocks until it is made, though no request holds the
first one. A request that goes on to write into a block that the prefix cache has keeps the block, and the prefix cache
gets the copy. The law has rows of requests alone, so copies are left out of the moves.
"""

from __future__ import annotations

from collections.abc import Sequence

from conformance.stems.block_cache.protocol import Move, Tables


class WithoutCopies:
    """``moves``: what was done to blocks since ``begin``, without copies."""

    def __init__(self) -> None:
        self.moves: list[Move] = []

    def begin(self) -> None:
        """A call begins."""
        self.moves = []

    def takes(self, move: Move) -> None:
        """The next thing that was done, with copies."""
        if move.kind == "copy":
            self._copied(move)
            return
        if move.kind == "move_hashes":  # the copy is handed out to no request, and what it held is forgotten
            target = move.blocks[1]
            self._without("get", move.request, move.group, target, Move("evict", (target,), None, None))
        self.moves.append(move)

    def _copied(self, move: Move) -> None:
        """A request that has found a block goes on in a copy: it has the copy alone."""
        source, target = move.blocks
        self._without("touch", move.request, move.group, source)
        alone = Move("get", (target,), move.request, move.group)  # new blocks may stand at other places
        self._without("get", move.request, move.group, target, alone)

    def apart(self, cached: Move) -> None:
        """Where the block of a move was handed out in this call, it was by a move of its own."""
        (block,) = cached.blocks
        self._without("get", cached.request, cached.group, block, Move("get", (block,), cached.request, cached.group))

    def _without(self, kind: str, request: int | None, group: int | None, block: int, *before: Move) -> None:
        """The last move of this kind for a request leaves the block out; the moves ``before`` come before it."""
        for at in reversed(range(len(self.moves))):
            move = self.moves[at]
            if (move.kind, move.request, move.group) == (kind, request, group) and block in move.blocks:
                rest = move._replace(blocks=tuple(each for each in move.blocks if each != block))
                self.moves[at : at + 1] = [*before, rest] if rest.blocks else [*before]
                return


class StatesOfPasses:
    """The states that passes leave inside their tokens. Such a state may be of fewer blocks of the text than stand
    before it in the table of its request. ``sizes``: by group the tokens of a block.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self._places: dict[tuple[int, int, int], int] = {}  # by request, group and block

    def stands(self, request: int, group: int, block: int, place: int) -> None:
        """A block of a request has the state of this place."""
        self._places[request, group, block] = place

    def follow(self, done: WithoutCopies) -> None:
        """Notes the states that a call has named, and forgets those whose blocks it has handed out."""
        for move in [*done.moves]:
            if move.kind == "get":
                for key in [key for key in self._places if key[-1] in move.blocks]:
                    del self._places[key]
            elif move.kind == "cache_partial" and move.request is not None and move.group is not None:
                place, rest = divmod(move.first, self._sizes[move.group])
                if not rest:
                    done.apart(move)
                    self.stands(move.request, move.group, move.blocks[0], place - 1)

    def are_apart(self, request: int, group: int) -> bool:
        """A state of the request's table may stand at another place than its own."""
        return any(key[:2] == (request, group) for key in self._places)

    def shown(self, request: int, tables: Sequence[Sequence[int]]) -> Tables:
        """The tables of a request, with each block at the place of which its contents are."""
        found = [[*table] for table in tables]
        for (known, group, block), place in self._places.items():
            if known == request and block in (table := found[group]):
                column = table.index(block)
                table[column], table[place] = table[place], table[column]
        return tuple(map(tuple, found))

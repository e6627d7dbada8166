"""Writes down what a scheduler of vLLM does to blocks, and for whom.

Where the prefix cache finds a prefix that ends inside a block, the request goes on in a copy of this block, which the
workers make before the step. The copy counts as a holder of both blocks, though no request holds the first one: until
the step is done where steps overlap, else within the call. A request that goes on to write into a block that the prefix
cache has keeps the block, and the prefix cache gets the copy. What is written down here is of requests alone: copies
are left out, and ``held`` counts them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from conformance.engines.vllm.recording.block_hooks import BlockHooks, Noted, number, numbers
from conformance.stems.block_cache.protocol import Move


class Moves:
    """``moves``: what was done to blocks since ``begin``. ``scheduler``: the one whose blocks are watched. ``copies``:
    its requests may go on in copies of blocks.
    """

    def __init__(self, scheduler: Any, copies: bool) -> None:
        self.moves: list[Move] = []
        self._scheduler = scheduler
        singles: Sequence[Any] = scheduler.kv_cache_manager.coordinator.single_type_managers
        self._singles = singles if copies else ()
        self._of_copies: list[Any] = []  # lists of blocks that are given back with a step, and that copies hold
        self._given_back: deque[bool] = deque()  # of each such list that is given back now, whether copies hold it
        BlockHooks(scheduler.kv_cache_manager, self._note)
        for group, single in enumerate(self._singles):
            single._apply_cow = self._with_copy(single._apply_cow, group)
        if copies:
            scheduler._free_cow_retained_blocks = self._retaining(scheduler._free_cow_retained_blocks)
            scheduler._drain_deferred_frees = self._draining(scheduler._drain_deferred_frees)

    def begin(self) -> None:
        """A call begins."""
        self.moves = []

    def held(self) -> Mapping[int, int]:
        """How many copies hold each block."""
        pending = (pair for single in self._singles for pair in single._pending_cow_copies)
        return Counter(number(block) for blocks in (*self._of_copies, *pending) for block in blocks)

    def deferred(self, waiting: Iterable[Sequence[Any]]) -> list[int]:
        """Of the blocks that wait for a step in flight to be given back, those that requests have given up."""
        of_copies = {id(blocks) for blocks in self._of_copies}
        return [number(block) for blocks in waiting if id(blocks) not in of_copies for block in blocks if number(block)]

    def _note(self, noted: Noted) -> None:
        if noted.kind == "free" and self._given_back and self._given_back.popleft():
            return
        request = noted.request
        name = request if request is None or isinstance(request, str) else request.request_id
        whose = None if name is None else int(name)
        if noted.kind == "move_hashes":  # the copy is handed out to no request, and what it held is forgotten
            target = number(noted.blocks[1])
            self._without("get", whose, noted.group, target, Move("evict", (target,), None, None))
        self.moves.append(Move(noted.kind, tuple(numbers(noted.blocks)), whose, noted.group, noted.first))

    def apart(self, cached: Move) -> None:
        """Where the block of a move was handed out in this call, it was by a move of its own."""
        (block,) = cached.blocks
        self._without("get", cached.request, cached.group, block, Move("get", (block,), cached.request, cached.group))

    # Copies of blocks.

    def _with_copy(self, function: Callable[..., None], group: int) -> Callable[..., None]:
        """A request that has found a block goes on in a copy: it has the copy alone."""

        def apply_cow(request_id: str, block_idx: int, source: Any, target: Any) -> None:
            function(request_id, block_idx, source, target)
            self._without("touch", int(request_id), group, number(source))
            alone = Move("get", (number(target),), int(request_id), group)  # new blocks may stand at other places
            self._without("get", int(request_id), group, number(target), alone)

        return apply_cow

    def _without(self, kind: str, request: int | None, group: int | None, block: int, *before: Move) -> None:
        """The last move of this kind for a request leaves the block out; the moves ``before`` come before it."""
        for at in reversed(range(len(self.moves))):
            move = self.moves[at]
            if (move.kind, move.request, move.group) == (kind, request, group) and block in move.blocks:
                rest = move._replace(blocks=tuple(each for each in move.blocks if each != block))
                self.moves[at : at + 1] = [*before, rest] if rest.blocks else [*before]
                return

    def _retaining(self, function: Callable[..., None]) -> Callable[..., None]:
        """Copies give back what they held: at once, or with a step that is in flight."""

        def free_cow_retained_blocks(blocks: list[Any], fence_seq: int) -> None:
            before = len(self._scheduler.deferred_frees)
            self._given_back = deque([True])
            function(blocks, fence_seq)
            self._given_back.clear()
            self._of_copies += [waiting for _, waiting in [*self._scheduler.deferred_frees][before:]]

        return free_cow_retained_blocks

    def _draining(self, function: Callable[[], None]) -> Callable[[], None]:
        """What waited for a step in flight is given back, one list after the other."""

        def drain_deferred_frees() -> None:
            of_copies = {id(blocks) for blocks in self._of_copies}
            self._given_back = deque(id(blocks) in of_copies for _, blocks in self._scheduler.deferred_frees if blocks)
            function()
            self._given_back.clear()
            waiting = {id(blocks) for _, blocks in self._scheduler.deferred_frees}
            self._of_copies = [blocks for blocks in self._of_copies if id(blocks) in waiting]

        return drain_deferred_frees

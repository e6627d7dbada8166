"""Writes down what a scheduler of vLLM does to blocks for requests, without copies of blocks.

What is left out is said in ``conformance.stems.block_cache.copied``.

A copy holds both of its blocks until the step is done where steps overlap, else within the call; ``held`` counts that.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from conformance.engines.vllm.recording.block_hooks import BlockHooks, Noted, number, numbers
from conformance.stems.block_cache.copied import StatesOfPasses, WithoutCopies
from conformance.stems.block_cache.protocol import Move


class Moves:
    """``scheduler``: the one whose blocks are watched. ``copies``: its requests may go on in copies of blocks."""

    def __init__(self, scheduler: Any, copies: bool) -> None:
        self._done = WithoutCopies()
        self._scheduler = scheduler
        singles: Sequence[Any] = scheduler.kv_cache_manager.coordinator.single_type_managers
        self._singles = singles if copies else ()
        self._of_copies: list[Any] = []  # lists of blocks that are given back with a step, and that copies hold
        self._given_back: deque[bool] = deque()  # of each such list that is given back now, whether copies hold it
        BlockHooks(scheduler.kv_cache_manager, self._note)
        if copies:
            scheduler._free_cow_retained_blocks = self._retaining(scheduler._free_cow_retained_blocks)
            scheduler._drain_deferred_frees = self._draining(scheduler._drain_deferred_frees)

    @property
    def moves(self) -> list[Move]:
        """What was done to blocks since ``begin``."""
        return self._done.moves

    def begin(self) -> None:
        """A call begins."""
        self._done.begin()

    def follow(self, states: StatesOfPasses) -> None:
        """Notes the states that passes leave inside their tokens."""
        states.follow(self._done)

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
        self._done.takes(Move(noted.kind, tuple(numbers(noted.blocks)), whose, noted.group, noted.first))

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

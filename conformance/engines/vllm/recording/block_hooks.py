"""Watches what a scheduler of vLLM does to blocks, and for whom.

The methods of the pool that change blocks are wrapped on the object, and so are the methods of the managers above it
that say for which request it is done. Nothing of what they do or return changes. Both who drives a release
(``conformance.engines.vllm.moves``) and who records a server (``conformance.engines.vllm.recording.recorder``) watch
in this way.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

Function = Callable[..., Any]
REQUESTS = ("request", "request_id")  # how methods name the request for which they do something


class Note(Protocol):
    """Is told what was done to blocks, after it was done. ``conformance.stems.block_cache.protocol.Move`` says which
    kinds there are. ``blocks``: the engine's objects, ``None`` where a block is left out. ``request``: the engine's
    object, or its id, or ``None`` where nobody said for whom.
    """

    def __call__(self, kind: str, blocks: list[Any], request: Any, group: int | None, first: int) -> None:
        """Takes the note."""


class BlockHooks:
    """The hooks on one KVCacheManager with its pool and the managers of its groups."""

    __slots__ = ("group", "note", "request")

    def __init__(self, manager: Any, note: Note) -> None:
        self.note = note
        self.request: Any = None
        self.group: int | None = None
        pool = manager.block_pool
        for name, hook in self._hooks().items():
            if hasattr(pool, name):
                setattr(pool, name, hook(getattr(pool, name), pool))
        for at, single in enumerate(manager.coordinator.single_type_managers):
            for name, first in calls_for_requests(single):
                setattr(single, name, self._on_behalf(getattr(single, name), first, at))
        for name, first in calls_for_requests(manager):
            setattr(manager, name, self._on_behalf(getattr(manager, name), first, None))

    def _hooks(self) -> dict[str, Callable[[Function, Any], Function]]:
        return {
            "get_new_blocks": self._get,
            "touch": self._touch,
            "free_blocks": self._free,
            "cache_full_blocks": self._cache,
            "cache_partial_block": self._partial,
            "evict_blocks": self._evict,
            "reset_prefix_cache": self._reset,
            "move_block_hashes": self._move,
            "unpin_blocks": self._unpin,
        }

    def _on_behalf(self, function: Function, named: str, group: int | None) -> Function:
        """The method, which is called for each request of each step; what it does is done for its first argument."""

        def for_request(request: Any, *args: Any, **kwargs: Any) -> Any:
            before, self.request = self.request, request
            group_before, self.group = self.group, group
            try:
                return function(request, *args, **kwargs)
            finally:
                self.request, self.group = before, group_before

        def for_id(request_id: Any, *args: Any, **kwargs: Any) -> Any:
            before, self.request = self.request, request_id
            group_before, self.group = self.group, group
            try:
                return function(request_id, *args, **kwargs)
            finally:
                self.request, self.group = before, group_before

        return for_request if named == "request" else for_id

    # The methods of the pool.

    def _get(self, function: Function, _: Any) -> Function:
        def get_new_blocks(*args: Any, **kwargs: Any) -> Any:
            taken = function(*args, **kwargs)
            if taken:
                self.note("get", taken, self.request, self.group, 0)
            return taken

        return get_new_blocks

    def _touch(self, function: Function, _: Any) -> Function:
        def touch(blocks: Any) -> Any:
            held = list(flat(blocks))
            done = function(blocks)
            if held:
                self.note("touch", held, self.request, self.group, 0)
            return done

        return touch

    def _free(self, function: Function, _: Any) -> Function:
        def free_blocks(ordered_blocks: Any) -> Any:
            ordered = list(ordered_blocks)
            done = function(ordered)
            if ordered:
                self.note("free", ordered, self.request, self.group, 0)
            return done

        return free_blocks

    def _cache(self, function: Function, _: Any) -> Function:
        known = inspect.signature(function)

        def cache_full_blocks(*args: Any, **kwargs: Any) -> Any:
            done = function(*args, **kwargs)
            given = known.bind(*args, **kwargs).arguments
            first, last = given["num_cached_blocks"], given["num_full_blocks"]
            if first < last:
                places = given["blocks"][first:last]
                if (mask := given.get("block_mask")) is not None:
                    places = [block if kept else None for block, kept in zip(places, mask, strict=True)]
                self.note("cache", places, given["request"], given["kv_cache_group_id"], first)
            return done

        return cache_full_blocks

    def _partial(self, function: Function, _: Any) -> Function:
        known = inspect.signature(function)

        def cache_partial_block(*args: Any, **kwargs: Any) -> Any:
            done = function(*args, **kwargs)
            given = known.bind(*args, **kwargs).arguments
            group, tokens = given["kv_cache_group_id"], given["num_tokens"]
            self.note("cache_partial", [given["block"]], given["request"], group, tokens)
            return done

        return cache_partial_block

    def _evict(self, function: Function, pool: Any) -> Function:
        def evict_blocks(block_ids: Any) -> Any:
            done = function(block_ids)
            self.note("evict", [pool.blocks[at] for at in sorted(block_ids)], self.request, self.group, 0)
            return done

        return evict_blocks

    def _reset(self, function: Function, _: Any) -> Function:
        def reset_prefix_cache() -> Any:
            done = function()
            if done:
                self.note("reset", [], self.request, self.group, 0)
            return done

        return reset_prefix_cache

    def _move(self, function: Function, _: Any) -> Function:
        def move_block_hashes(src_block: Any, dst_block: Any) -> Any:
            done = function(src_block, dst_block)
            self.note("move_hashes", [src_block, dst_block], self.request, self.group, 0)
            return done

        return move_block_hashes

    def _unpin(self, function: Function, _: Any) -> Function:
        def unpin_blocks(blocks: Any, *args: Any, **kwargs: Any) -> Any:
            given = list(blocks)
            done = function(given, *args, **kwargs)
            self.note("unpin", given, self.request, self.group, 0)
            return done

        return unpin_blocks


def calls_for_requests(manager: Any) -> Iterator[tuple[str, str]]:
    """The methods of a manager whose first argument is a request, or its id, and that may change blocks; with the name
    of the argument.
    """
    for name, function in inspect.getmembers(type(manager), inspect.isfunction):
        first = list(inspect.signature(function).parameters)[1:2]
        if not name.startswith(("_", "get_num")) and first and first[0] in REQUESTS:
            yield name, first[0]


def flat(blocks: Any) -> Iterator[Any]:
    """The blocks of a list, or of the lists of all groups."""
    for block in blocks:
        if hasattr(block, "block_id"):
            yield block
        else:
            yield from block


def number(block: Any) -> int:
    """The number of a block; 0 for the null block, and for one that is left out."""
    return 0 if block is None or block.is_null else int(block.block_id)


def numbers(blocks: Iterable[Any]) -> list[int]:
    """The numbers of blocks."""
    return [0 if block is None or block.is_null else block.block_id for block in blocks]

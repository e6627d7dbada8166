"""Writes down what a scheduler of vLLM does to blocks, and for whom.

The methods of the pool that change blocks are wrapped on the object, and so are the methods of the managers above it
that say for which request it is done. Nothing of what they do or return changes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from conformance.engines.vllm import release
from conformance.engines.vllm.reading import number, numbers
from conformance.stems.block_cache.protocol import Move

Function = Callable[..., Any]


class Recorder:
    """``moves``: what was done to blocks since ``begin``."""

    def __init__(self) -> None:
        self.moves: list[Move] = []
        self._request: int | None = None
        self._group: int | None = None

    def begin(self) -> None:
        """A call begins."""
        self.moves = []

    def watch(self, manager: Any) -> None:
        """Watches the pool of a KVCacheManager, and the managers of its groups."""
        pool = manager.block_pool
        watched = {"get_new_blocks": self._get, "touch": self._touch, "free_blocks": self._free}
        watched |= {"cache_full_blocks": self._cache, "cache_partial_block": self._partial}
        watched |= {"evict_blocks": self._evict, "reset_prefix_cache": self._reset}
        watched |= {"move_block_hashes": self._move, "unpin_blocks": self._unpin}
        for name in release.calls_of(pool, watched):
            setattr(pool, name, watched[name](getattr(pool, name)))
        for at, single in enumerate(manager.coordinator.single_type_managers):
            for name in release.calls_for_requests(single):
                setattr(single, name, self._on_behalf(getattr(single, name), at))
        for name in release.calls_for_requests(manager):
            setattr(manager, name, self._on_behalf(getattr(manager, name), None))

    def _on_behalf(self, function: Function, group: int | None) -> Function:
        """The method, whose first argument is a request or its id; what it does is done for this request."""

        def wrapped(request: Any, *args: Any, **kwargs: Any) -> Any:
            before = self._request, self._group
            self._request = int(request if isinstance(request, str) else request.request_id)
            self._group = group
            try:
                return function(request, *args, **kwargs)
            finally:
                self._request, self._group = before

        def named(*args: Any, **kwargs: Any) -> Any:
            if args:
                return wrapped(*args, **kwargs)
            name = next(name for name in release.REQUESTS if name in kwargs)
            return wrapped(kwargs.pop(name), **kwargs)

        return named

    def _note(self, kind: str, blocks: list[int], first: int = 0, group: int | None = None) -> None:
        group = self._group if group is None else group
        self.moves.append(Move(kind, tuple(blocks), self._request, group, first))

    # The methods of the pool.

    def _get(self, function: Function) -> Function:
        def get_new_blocks(*args: Any, **kwargs: Any) -> Any:
            taken = function(*args, **kwargs)
            if taken:
                self._note("get", numbers(taken))
            return taken

        return get_new_blocks

    def _touch(self, function: Function) -> Function:
        def touch(blocks: Any) -> Any:
            held = list(release.flat(blocks))
            if held:
                self._note("touch", numbers(held))
            return function(blocks)

        return touch

    def _free(self, function: Function) -> Function:
        def free_blocks(ordered_blocks: Any) -> Any:
            ordered = list(ordered_blocks)
            if ordered:
                self._note("free", numbers(ordered))
            return function(ordered)

        return free_blocks

    def _cache(self, function: Function) -> Function:
        known = inspect.signature(function)

        def cache_full_blocks(*args: Any, **kwargs: Any) -> Any:
            given = known.bind(*args, **kwargs).arguments
            first, last = given["num_cached_blocks"], given["num_full_blocks"]
            if first < last:
                places = numbers(given["blocks"][first:last])
                mask = given.get("block_mask")
                if mask is not None:
                    places = [block if kept else 0 for block, kept in zip(places, mask, strict=True)]
                self._note("cache", places, first, given["kv_cache_group_id"])
            return function(*args, **kwargs)

        return cache_full_blocks

    def _partial(self, function: Function) -> Function:
        known = inspect.signature(function)

        def cache_partial_block(*args: Any, **kwargs: Any) -> Any:
            given = known.bind(*args, **kwargs).arguments
            self._note("cache_partial", [number(given["block"])], given["num_tokens"], given["kv_cache_group_id"])
            return function(*args, **kwargs)

        return cache_partial_block

    def _evict(self, function: Function) -> Function:
        def evict_blocks(block_ids: Any) -> Any:
            self._note("evict", sorted(block_ids))
            return function(block_ids)

        return evict_blocks

    def _reset(self, function: Function) -> Function:
        def reset_prefix_cache() -> Any:
            done = function()
            if done:
                self._note("reset", [])
            return done

        return reset_prefix_cache

    def _move(self, function: Function) -> Function:
        def move_block_hashes(src_block: Any, dst_block: Any) -> Any:
            self._note("move_hashes", [number(src_block), number(dst_block)])
            return function(src_block, dst_block)

        return move_block_hashes

    def _unpin(self, function: Function) -> Function:
        def unpin_blocks(blocks: Any, *args: Any, **kwargs: Any) -> Any:
            given = list(blocks)
            self._note("unpin", numbers(given))
            return function(given, *args, **kwargs)

        return unpin_blocks

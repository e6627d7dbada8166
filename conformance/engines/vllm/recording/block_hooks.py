"""Watches what a scheduler of vLLM does to blocks, and for whom.

The methods of the pool that change blocks are wrapped on the object; nothing of what they do or return changes. For
whom it is done, the stack says: the innermost method of the engine whose first argument is a request or its id. So only
what changes blocks costs anything, and not the many calls for each request of each step that change none. Both who
drives a release (``conformance.engines.vllm.moves``) and who records a server
(``conformance.engines.vllm.recording.recorder``) watch in this way.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

Function = Callable[..., Any]
REQUESTS = ("request", "request_id")  # how methods name the request for which they do something
DEEPEST = 16  # so many callers of a method of the pool are looked at


class Noted(NamedTuple):
    """What was done to blocks. ``conformance.stems.block_cache.protocol.Move`` says which kinds there are; and with
    ``copy`` the request, which has found the first block, goes on in a copy of it, the second one, at the place
    ``first`` of its table. ``blocks``: the engine's objects, ``None`` where a block is left out. ``request``: the
    engine's object, or its id, or ``None`` where no caller says for whom. ``key``: of ``cache_partial`` the hash.
    """

    kind: str
    blocks: list[Any]
    request: Any
    group: int | None
    first: int = 0
    key: bytes = b""


class BlockHooks:
    """The hooks on the pool of one KVCacheManager. ``take`` is called with what was done, after it was done."""

    def __init__(self, manager: Any, take: Callable[[Noted], None]) -> None:
        self._take = take
        self._groups = {id(single): at for at, single in enumerate(manager.coordinator.single_type_managers)}
        self._package = _package(vars(sys.modules[type(manager).__module__]))
        self._is_at_once = False  # blocks lose their hashes by a call that is noted itself
        self._is_engine: dict[int, bool] = {}  # by the id of the globals of a module, whether it is the engine's
        pool = manager.block_pool
        for name, hook in self._hooks().items():
            if hasattr(pool, name):
                setattr(pool, name, hook(getattr(pool, name), pool))
        for group, single in enumerate(manager.coordinator.single_type_managers):
            if hasattr(single, "_apply_cow"):
                single._apply_cow = self._copy(single._apply_cow, group)

    def _note(self, kind: str, blocks: list[Any]) -> None:
        """Notes what the caller of the caller of this method has done."""
        self._take(Noted(kind, blocks, *self._for_whom()))

    def _for_whom(self) -> tuple[Any, int | None]:
        """The request for which a method of the pool is called, and its group of layers; ``None`` where nobody says."""
        frame = sys._getframe(3)
        for _ in range(DEEPEST):
            code = frame.f_code
            if code.co_argcount > 1 and code.co_varnames[1] in REQUESTS and self._of_engine(frame.f_globals):
                known = frame.f_locals
                return known[code.co_varnames[1]], self._groups.get(id(known[code.co_varnames[0]]))
            if frame.f_back is None:
                break
            frame = frame.f_back
        return None, None

    def _of_engine(self, module: dict[str, Any]) -> bool:
        found = self._is_engine.get(id(module))
        if found is None:
            found = self._is_engine[id(module)] = _package(module) == self._package
        return found

    def _hooks(self) -> dict[str, Callable[[Function, Any], Function]]:
        return {
            "get_new_blocks": self._get,
            "touch": self._touch,
            "free_blocks": self._free,
            "cache_full_blocks": self._cache,
            "cache_partial_block": self._partial,
            "evict_blocks": self._evict,
            "_maybe_evict_cached_block": self._forget,
            "reset_prefix_cache": self._reset,
            "move_block_hashes": self._move,
            "unpin_blocks": self._unpin,
        }

    def _at_once(self, function: Function, *args: Any, **kwargs: Any) -> Any:
        """Calls a method of the pool by which blocks lose their hashes; that is not noted of each block."""
        self._is_at_once = True
        try:
            return function(*args, **kwargs)
        finally:
            self._is_at_once = False

    # The methods of the pool.

    def _get(self, function: Function, _: Any) -> Function:
        def get_new_blocks(*args: Any, **kwargs: Any) -> Any:
            taken = self._at_once(function, *args, **kwargs)
            if taken:
                self._note("get", [*taken])
            return taken

        return get_new_blocks

    def _touch(self, function: Function, _: Any) -> Function:
        def touch(blocks: Any, *args: Any, **kwargs: Any) -> Any:
            held = list(flat(blocks))
            done = function(blocks, *args, **kwargs)
            if held:
                self._note("touch", held)
            return done

        return touch

    def _free(self, function: Function, _: Any) -> Function:
        def free_blocks(ordered_blocks: Any, *args: Any, **kwargs: Any) -> Any:
            ordered = list(ordered_blocks)
            done = function(ordered, *args, **kwargs)
            if ordered:
                self._note("free", ordered)
            return done

        return free_blocks

    def _cache(self, function: Function, _: Any) -> Function:
        given = _by_name(function)

        def cache_full_blocks(*args: Any, **kwargs: Any) -> Any:
            done = function(*args, **kwargs)
            first, last = given("num_cached_blocks", args, kwargs), given("num_full_blocks", args, kwargs)
            if first < last:
                places = given("blocks", args, kwargs)[first:last]
                if (mask := given("block_mask", args, kwargs)) is not None:
                    places = [block if kept else None for block, kept in zip(places, mask, strict=True)]
                request, group = given("request", args, kwargs), given("kv_cache_group_id", args, kwargs)
                self._take(Noted("cache", places, request, group, first))
            return done

        return cache_full_blocks

    def _partial(self, function: Function, pool: Any) -> Function:
        given = _by_name(function)

        def names(block: Any) -> tuple[Any, int]:
            return block.block_hash, len(pool.cached_block_hashes_by_block.get(block.block_id, ()))

        def cache_partial_block(*args: Any, **kwargs: Any) -> Any:
            block = given("block", args, kwargs)
            before = names(block)
            done = function(*args, **kwargs)
            replaces = given("replace_existing_hashes", args, kwargs)
            if done is None or (before == names(block) and not replaces):  # the null block gets no hash
                return done
            request, group = given("request", args, kwargs), given("kv_cache_group_id", args, kwargs)
            tokens = given("num_tokens", args, kwargs)
            if replaces:
                self._take(Noted("evict", [block], request, group))
            self._take(Noted("cache_partial", [block], request, group, tokens, done))
            return done

        return cache_partial_block

    def _evict(self, function: Function, pool: Any) -> Function:
        def evict_blocks(block_ids: Any, *args: Any, **kwargs: Any) -> Any:
            done = self._at_once(function, block_ids, *args, **kwargs)
            self._note("evict", [pool.blocks[at] for at in sorted(block_ids)])
            return done

        return evict_blocks

    def _forget(self, function: Function, _: Any) -> Function:
        def maybe_evict_cached_block(block: Any, *args: Any, **kwargs: Any) -> Any:
            done = function(block, *args, **kwargs)
            if done and not self._is_at_once:
                self._note("evict", [block])
            return done

        return maybe_evict_cached_block

    def _reset(self, function: Function, _: Any) -> Function:
        def reset_prefix_cache(*args: Any, **kwargs: Any) -> Any:
            done = function(*args, **kwargs)
            if done:
                self._note("reset", [])
            return done

        return reset_prefix_cache

    def _move(self, function: Function, _: Any) -> Function:
        def move_block_hashes(src_block: Any, dst_block: Any, *args: Any, **kwargs: Any) -> Any:
            done = function(src_block, dst_block, *args, **kwargs)
            self._note("move_hashes", [src_block, dst_block])
            return done

        return move_block_hashes

    def _copy(self, function: Function, group: int) -> Function:
        """Of the cache of one group of layers: a request goes on in a copy of a block that it has found."""

        def apply_cow(request_id: str, block_idx: int, source_block: Any, cow_block: Any) -> None:
            function(request_id, block_idx, source_block, cow_block)
            self._take(Noted("copy", [source_block, cow_block], request_id, group, block_idx))

        return apply_cow

    def _unpin(self, function: Function, _: Any) -> Function:
        def unpin_blocks(blocks: Any, *args: Any, **kwargs: Any) -> Any:
            given = list(blocks)
            done = function(given, *args, **kwargs)
            self._note("unpin", given)
            return done

        return unpin_blocks


def _package(module: Mapping[str, Any]) -> str:
    """The package to which the globals of a module belong."""
    return str(module.get("__name__", "")).partition(".")[0]


def _by_name(function: Function) -> Callable[[str, tuple[Any, ...], dict[str, Any]], Any]:
    """Finds what a call of the function is given under a name; ``None`` where it is given nothing under it."""
    places = {name: place for place, name in enumerate(inspect.signature(function).parameters)}

    def given(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        place = places.get(name, len(args))
        return args[place] if place < len(args) else kwargs.get(name)

    return given


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

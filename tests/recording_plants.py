"""Bugs that are planted into a release of vLLM while it is recorded. Written down before the first run.

Each is a function of the release's module ``v1.core`` and of ``happens``, which the planted code asks each time
whether the bug happens now; the first time it does is the call that the judge must name. It returns class, name of the
method, and the method that takes its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Happens = Callable[[], bool]


class Core(NamedTuple):
    """The classes of a release that are edited."""

    pool: Any
    single: Any
    window: Any
    manager: Any
    scheduler: Any
    full: Any


Planted = tuple[Any, str, Any]
Plant = Callable[[Core, Happens], Planted]


def last_block_is_not_freed(core: Core, happens: Happens) -> Planted:
    """A request that ends keeps a block."""
    free = core.pool.free_blocks

    def free_blocks(self: Any, ordered_blocks: Any) -> None:
        ordered = list(ordered_blocks)
        free(self, ordered[1:] if len(ordered) > 1 and happens() else ordered)

    return core.pool, "free_blocks", free_blocks


def block_is_freed_twice(core: Core, happens: Happens) -> Planted:
    """A block that two requests hold loses both holders where one ends."""
    free = core.pool.free_blocks

    def free_blocks(self: Any, ordered_blocks: Any) -> None:
        ordered = list(ordered_blocks)
        shared = next((block for block in ordered if block.ref_cnt > 1), None)
        if shared is not None and happens():
            shared.ref_cnt -= 1
        free(self, ordered)

    return core.pool, "free_blocks", free_blocks


def touch_forgets_a_holder(core: Core, happens: Happens) -> Planted:
    """A request gets a block from the prefix cache and is not counted as its holder."""
    touches = core.pool.touch

    def touch(self: Any, blocks: Any) -> None:
        touches(self, blocks)
        held = next((block for block in blocks if block.ref_cnt > 1), None)
        if held is not None and happens():
            held.ref_cnt -= 1

    return core.pool, "touch", touch


def held_block_is_handed_out(core: Core, happens: Happens) -> Planted:
    """A block that a request holds is handed out to another one."""
    get = core.pool.get_new_blocks

    def get_new_blocks(self: Any, num_blocks: int) -> Any:
        taken = get(self, num_blocks)
        held = next((block for block in self.blocks if block.ref_cnt == 1 and block not in taken), None)
        if taken and held is not None and not held.is_null and happens():
            self.free_block_queue.append(taken[0])
            taken[0].ref_cnt = 0
            taken[0] = held
        return taken

    return core.pool, "get_new_blocks", get_new_blocks


def new_block_keeps_its_hash(core: Core, happens: Happens) -> Planted:
    """A block that is handed out anew is still found under its old text."""
    evicts = core.pool._maybe_evict_cached_block

    def evict(self: Any, block: Any) -> bool:
        if block.block_hash is not None and happens():
            return False
        return bool(evicts(self, block))

    return core.pool, "_maybe_evict_cached_block", evict


def hash_of_the_block_before(core: Core, happens: Happens) -> Planted:
    """A block gets the hash of the text up to the end of the block before it."""
    caches = core.pool.cache_full_blocks

    def cache_full_blocks(
        self: Any,
        request: Any,
        blocks: Any,
        num_cached_blocks: int,
        num_full_blocks: int,
        block_size: int,
        kv_cache_group_id: int,
        block_mask: Any = None,
    ) -> None:
        before, first = request.block_hashes, num_cached_blocks
        if 0 < first < num_full_blocks and happens():
            request.block_hashes = [*before[:first], before[first - 1], *before[first + 1 :]]
        try:
            caches(self, request, blocks, first, num_full_blocks, block_size, kv_cache_group_id, block_mask)
        finally:
            request.block_hashes = before

    return core.pool, "cache_full_blocks", cache_full_blocks


def hit_of_another_text(core: Core, happens: Happens) -> Planted:
    """The prefix cache gives a request a block of another text at the end of what it has found."""
    finds = core.manager.get_computed_blocks

    def get_computed_blocks(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        found, *rest = finds(self, request, *args, **kwargs)
        blocks = [list(group) for group in found.blocks]
        other = next((b for b in self.block_pool.blocks if b.block_hash is not None and b not in blocks[0]), None)
        if len(blocks[0]) > 1 and other is not None and happens():
            blocks[0][-1] = other
            return (type(found)(tuple(blocks)), *rest)
        return (found, *rest)

    return core.manager, "get_computed_blocks", get_computed_blocks


def window_slides_too_far(core: Core, happens: Happens) -> Planted:
    """A window gives up a block that the next token still reads."""
    skips = core.window.get_num_skipped_tokens

    def get_num_skipped_tokens(self: Any, num_computed_tokens: int) -> int:
        skipped = int(skips(self, num_computed_tokens))
        reaches = (skipped + self.block_size) // self.block_size > skipped // self.block_size
        if skipped > 0 and reaches and skipped + self.block_size < num_computed_tokens and happens():
            return skipped + int(self.block_size)
        return skipped

    return core.window, "get_num_skipped_tokens", get_num_skipped_tokens


def aborted_request_keeps_its_blocks(core: Core, happens: Happens) -> Planted:
    """A request that is aborted gives nothing back."""
    frees = core.scheduler._free_request_blocks

    def free_request_blocks(self: Any, request: Any) -> None:
        running = self.kv_cache_manager.get_block_ids(request.request_id)
        if request.status.name == "FINISHED_ABORTED" and any(running) and happens():
            return
        frees(self, request)

    return core.scheduler, "_free_request_blocks", free_request_blocks


def reset_while_blocks_are_held(core: Core, happens: Happens) -> Planted:
    """A reset says that it is done while requests hold blocks."""
    resets = core.pool.reset_prefix_cache

    def reset_prefix_cache(self: Any) -> bool:
        if self.get_num_free_blocks() < len(self.blocks) - 1 and happens():
            return True
        return bool(resets(self))

    return core.pool, "reset_prefix_cache", reset_prefix_cache


def refused_drafts_count_as_computed(core: Core, happens: Happens) -> Planted:
    """A request whose drafts are refused counts them as computed."""
    updates = core.scheduler.update_from_output

    def update_from_output(self: Any, output: Any, answer: Any) -> Any:
        before = {name: request.num_computed_tokens for name, request in self.requests.items()}
        done = updates(self, output, answer)
        for name, request in self.requests.items():
            if 0 < request.num_computed_tokens < before.get(name, 0) and happens():
                request.num_computed_tokens += 1
        return done

    return core.scheduler, "update_from_output", update_from_output


def abort_is_passed_over(core: Core, happens: Happens) -> Planted:
    """A request that is aborted goes on."""
    finishes = core.scheduler.finish_requests

    def finish_requests(self: Any, request_ids: Any, finished_status: Any) -> Any:
        return finishes(self, () if happens() else request_ids, finished_status)

    return core.scheduler, "finish_requests", finish_requests


# Each with the load, beside the default, that it needs.
PLANTS: dict[Plant, dict[str, Any]] = {
    last_block_is_not_freed: {},
    block_is_freed_twice: {},
    touch_forgets_a_holder: {},
    held_block_is_handed_out: {},
    new_block_keeps_its_hash: {"blocks": 150},
    hash_of_the_block_before: {},
    hit_of_another_text: {},
    window_slides_too_far: {"window": 40},
    aborted_request_keeps_its_blocks: {"aborts": 30},
    reset_while_blocks_are_held: {"resets": 100},
    abort_is_passed_over: {"aborts": 60},
    refused_drafts_count_as_computed: {"drafts": 3, "steps_in_flight": 1},
}

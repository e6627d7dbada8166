"""Bugs where blocks are copied within a step, found for a part, or have several sizes, that are planted into a release
of vLLM while it is recorded. Written down before the first run.

Each is as in ``recording_plants``: the first time that ``happens`` says so is the call that the judge must name.
``PLANTS`` has the load that each needs.
"""

from __future__ import annotations

from typing import Any

from recording_plants import Core, Happens, Plant, Planted

from conformance.engines.vllm.settings import Tuning

FULL = {"kind": "full"}
STATES = {"kind": "mamba"}
MATCH = Tuning(retention=0, match=4)
PARTS: dict[str, Any] = {"blocks": 300, "turns": 40, "layers": (FULL, STATES), "tuning": MATCH}
CHECKPOINTS: dict[str, Any] = {
    "blocks": 300,
    "turns": 40,
    "layers": ({**FULL, "block_size": 32}, {**STATES, "checkpoint": 8}),
}
WINDOWS: dict[str, Any] = {
    "blocks": 300,
    "turns": 40,
    "layers": (
        {**FULL, "block_size": 32},
        {"kind": "window", "window": 24},
        {"kind": "window", "window": 40, "block_size": 8},
    ),
    "tuning": Tuning(retention=0),
}


# Copies of blocks within a step.


def copy_is_no_holder(core: Core, happens: Happens) -> Planted:
    """The copy in which a request goes on is given back with the step's copies, though nobody counted them."""
    applies = core.single._apply_cow

    def apply_cow(self: Any, request_id: str, block_idx: int, source_block: Any, cow_block: Any) -> None:
        applies(self, request_id, block_idx, source_block, cow_block)
        cow_block.ref_cnt -= int(happens())

    return core.single, "_apply_cow", apply_cow


def copy_is_not_told(core: Core, happens: Happens) -> Planted:
    """The workers are not told of a copy."""
    takes = core.manager.take_kv_cache_block_copies

    def take_kv_cache_block_copies(self: Any) -> Any:
        copies, retained = takes(self)
        return (copies[1:] if copies and happens() else copies), retained

    return core.manager, "take_kv_cache_block_copies", take_kv_cache_block_copies


def copy_of_another_block(core: Core, happens: Happens) -> Planted:
    """The workers are told to copy the block behind the one that was found."""
    takes = core.manager.take_kv_cache_block_copies

    def take_kv_cache_block_copies(self: Any) -> Any:
        copies, retained = takes(self)
        if copies and happens():
            made = type(copies[0])
            wrong = made(src_block_id=copies[0].src_block_id + 1, dst_block_id=copies[0].dst_block_id)
            copies = [wrong, *copies[1:]]
        return copies, retained

    return core.manager, "take_kv_cache_block_copies", take_kv_cache_block_copies


def copies_keep_a_block(core: Core, happens: Happens) -> Planted:
    """A block that was copied from is not given back when the copy is done."""
    frees = core.scheduler._free_cow_retained_blocks

    def free_cow_retained_blocks(self: Any, blocks: Any, fence_seq: int) -> None:
        frees(self, blocks[1:] if happens() else blocks, fence_seq)

    return core.scheduler, "_free_cow_retained_blocks", free_cow_retained_blocks


def goes_on_in_what_was_found(core: Core, happens: Happens) -> Planted:
    """A request keeps the block that was found in its table, and writes into it."""
    applies = core.single._apply_cow

    def apply_cow(self: Any, request_id: str, block_idx: int, source_block: Any, cow_block: Any) -> None:
        applies(self, request_id, block_idx, source_block, cow_block)
        if happens():
            self.req_to_blocks[request_id][block_idx] = source_block

    return core.single, "_apply_cow", apply_cow


def running_state_keeps_its_hash(core: Core, happens: Happens) -> Planted:
    """The prefix cache keeps a state that the request overwrites, and not the copy of it."""
    moves = core.pool.move_block_hashes

    def move_block_hashes(self: Any, src_block: Any, dst_block: Any) -> None:
        if not happens():
            moves(self, src_block, dst_block)

    return core.pool, "move_block_hashes", move_block_hashes


# Parts of blocks.


def part_of_a_longer_text(core: Core, happens: Happens) -> Planted:
    """A block is found for a part that is longer than what it holds."""
    hashes = core.pool._get_partial_block_hash

    def get_partial_block_hash(self: Any, request: Any, num_tokens: int) -> Any:
        longer = num_tokens + self.hash_block_size
        there = longer // self.hash_block_size <= len(request.block_hashes)
        return hashes(self, request, longer if there and happens() else num_tokens)

    return core.pool, "_get_partial_block_hash", get_partial_block_hash


def part_before_it_is_computed(core: Core, happens: Happens) -> Planted:
    """While a first chunk of a prompt is computed, its last block is found for the last part of the whole prompt."""
    caches = core.full._cache_partial_tail_block

    def cache_partial_tail_block(self: Any, request: Any, num_tokens: int) -> None:
        unit, blocks = self.block_pool.hash_block_size, self.req_to_blocks[request.request_id]
        ends = (request.num_prompt_tokens - 1) // unit * unit
        is_first = 0 < num_tokens <= ends - 32  # what is cached is rounded down
        if is_first and ends % self.block_size and blocks[-1].block_hash is None and happens():
            group, size = self.kv_cache_group_id, self.block_size
            self.block_pool.cache_partial_block(request, blocks[-1], ends, group, size)
        caches(self, request, num_tokens)

    return core.full, "_cache_partial_tail_block", cache_partial_tail_block


def hit_in_a_part_of_another_text(core: Core, happens: Happens) -> Planted:
    """The prefix cache gives a request a part of another text: the block is found for a part, but not for this one."""
    adds = core.single.add_local_computed_blocks

    def add_local_computed_blocks(self: Any, request_id: str, found: Any, tokens: int, *args: Any) -> None:
        pool, of_group = self.block_pool, self.kv_cache_group_id.to_bytes(4, "big")
        if found and tokens % self.block_size:
            own = {found[-1].block_hash, *pool.cached_block_hashes_by_block.get(found[-1].block_id, ())}
            others = (
                block
                for block in pool.blocks
                if block.block_hash is not None
                and block.block_hash_num_tokens % self.block_size
                and block.block_hash not in own
                and block.block_hash[32:] == of_group
                and all(block is not each for each in found)
            )
            if (other := next(others, None)) is not None and happens():
                found = [*found[:-1], other]
        adds(self, request_id, found, tokens, *args)

    return core.single, "add_local_computed_blocks", add_local_computed_blocks


def new_block_keeps_a_part(core: Core, happens: Happens) -> Planted:
    """A block that is handed out anew is still found for a part of what it held."""
    removes = core.pool._remove_cached_block_hashes

    def remove_cached_block_hashes(self: Any, block: Any) -> Any:
        kept = self.cached_block_hashes_by_block.get(block.block_id)
        if kept and block.ref_cnt == 0 and happens():
            del self.cached_block_hashes_by_block[block.block_id]
            removed = removes(self, block)
            self.cached_block_hashes_by_block[block.block_id] = kept
            return removed
        return removes(self, block)

    return core.pool, "_remove_cached_block_hashes", remove_cached_block_hashes


def state_of_a_shorter_text(core: Core, happens: Happens) -> Planted:
    """The state after a part of a prompt is found for a shorter part."""
    caches = core.pool.cache_partial_block

    def cache_partial_block(self: Any, **named: Any) -> Any:
        unit, tokens = self.hash_block_size, named["num_tokens"]
        if named["kv_cache_group_id"] == 1 and tokens % 16 > unit and happens():
            named["num_tokens"] = tokens - unit
        return caches(self, **named)

    return core.pool, "cache_partial_block", cache_partial_block


def checkpoint_keeps_the_hash_of_its_place(core: Core, happens: Happens) -> Planted:
    """A state that a pass leaves inside its tokens is also found for the text up to the end of its place."""
    caches = core.pool.cache_partial_block

    def cache_partial_block(self: Any, *args: Any, replace_existing_hashes: bool = False, **named: Any) -> Any:
        known = named["block"].block_hash_num_tokens
        if replace_existing_hashes and known is not None and known > named["num_tokens"] and happens():
            replace_existing_hashes = False
        return caches(self, *args, replace_existing_hashes=replace_existing_hashes, **named)

    return core.pool, "cache_partial_block", cache_partial_block


# Blocks of several sizes.


def block_has_its_first_hash(core: Core, happens: Happens) -> Planted:
    """A larger block gets the first of the hashes in it, which does not cover all of its tokens."""
    caches = core.pool.cache_full_blocks

    def cache_full_blocks(
        self: Any,
        request: Any,
        blocks: Any,
        num_cached_blocks: int,
        num_full_blocks: int,
        block_size: int,
        *args: Any,
        **named: Any,
    ) -> None:
        before, each = request.block_hashes, block_size // self.hash_block_size
        if each > 2 and num_cached_blocks < num_full_blocks and happens():
            first = num_cached_blocks * each
            request.block_hashes = [*before[: first + each - 1], before[first], *before[first + each :]]
        try:
            caches(self, request, blocks, num_cached_blocks, num_full_blocks, block_size, *args, **named)
        finally:
            request.block_hashes = before

    return core.pool, "cache_full_blocks", cache_full_blocks


def window_slides_a_block_too_far(core: Core, happens: Happens) -> Planted:
    """A window with small blocks gives up a block that the next token still reads."""
    removes = core.single.remove_skipped_blocks

    def remove_skipped_blocks(self: Any, request_id: str, processed: int, *args: Any) -> None:
        slides = self.block_size == 8 and self.get_num_skipped_tokens(processed) > 0
        removes(self, request_id, processed + 8 if slides and happens() else processed, *args)

    return core.single, "remove_skipped_blocks", remove_skipped_blocks


def small_blocks_are_counted_as_large(core: Core, happens: Happens) -> Planted:
    """A group with small blocks gets one too few of them."""
    allocates = core.single.allocate_new_blocks

    def allocate_new_blocks(self: Any, request_id: str, num_tokens: int, *args: Any) -> Any:
        held = len(self.req_to_blocks[request_id])
        if self.block_size == 8 and -(-num_tokens // 8) > held + 1 and happens():
            num_tokens -= 8
        return allocates(self, request_id, num_tokens, *args)

    return core.single, "allocate_new_blocks", allocate_new_blocks


def group_lacks_a_block_of_the_hit(core: Core, happens: Happens) -> Planted:
    """A request gets a block less than its hit has, in the group with large blocks."""
    adds = core.single.add_local_computed_blocks

    def add_local_computed_blocks(self: Any, request_id: str, found: Any, *args: Any) -> None:
        adds(self, request_id, found[:-1] if self.block_size == 32 and found and happens() else found, *args)

    return core.single, "add_local_computed_blocks", add_local_computed_blocks


def group_keeps_more_than_the_hit(core: Core, happens: Happens) -> Planted:
    """A request gets a block more than its hit has, in the group with large blocks. Planted as a bug; but the block has
    the request's own text, which the request writes into it once more.
    """
    finds = core.manager.get_computed_blocks

    def get_computed_blocks(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        found, count, *rest = finds(self, request, *args, **kwargs)
        blocks, place = [list(group) for group in found.blocks], count // 32
        hashes = request.block_hashes
        if count and (place + 1) * 4 <= len(hashes) and (place + 1) * 32 < request.num_tokens:
            more = self.block_pool.get_cached_block(hashes[(place + 1) * 4 - 1], [0])
            if more and len(blocks[0]) == place and happens():
                blocks[0] += more
                return (type(found)(tuple(blocks)), count, *rest)
        return (found, count, *rest)

    return core.manager, "get_computed_blocks", get_computed_blocks


# Each with the load that it needs.
PLANTS: dict[Plant, dict[str, Any]] = {
    copy_is_no_holder: PARTS,
    copy_is_not_told: PARTS,
    copy_of_another_block: PARTS,
    copies_keep_a_block: PARTS,
    goes_on_in_what_was_found: PARTS,
    running_state_keeps_its_hash: PARTS,
    part_of_a_longer_text: PARTS,
    part_before_it_is_computed: {**WINDOWS, "requests": 32, "blocks": 1200, "outputs": 20},
    hit_in_a_part_of_another_text: PARTS,
    new_block_keeps_a_part: PARTS,
    state_of_a_shorter_text: PARTS,
    checkpoint_keeps_the_hash_of_its_place: CHECKPOINTS,
    block_has_its_first_hash: WINDOWS,
    window_slides_a_block_too_far: {**WINDOWS, "steps_in_flight": 1},  # else what is in flight may be given up
    small_blocks_are_counted_as_large: WINDOWS,
    group_lacks_a_block_of_the_hit: WINDOWS,
}
HARMLESS: dict[Plant, dict[str, Any]] = {group_keeps_more_than_the_hit: WINDOWS}

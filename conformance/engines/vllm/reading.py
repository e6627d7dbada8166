"""What a pool of vLLM shows: its free queue in both directions, its counts, and what its prefix cache knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from conformance.engines.vllm.release import VLLMRelease
from conformance.stems.block_pool.protocol import BlockPoolSnapshot, Name

Named = Callable[[bytes], Name | None]


def pool(release: VLLMRelease, pool: Any, named: Named) -> BlockPoolSnapshot:
    """The snapshot of a pool. ``named``: what a hash of the pool is the hash of."""
    queue = pool.free_block_queue
    found: dict[Name | None, tuple[int, ...]] = {}
    for key, value in release.found(pool).items():  # two hashes may be of one text, with other tokens behind it
        found[named(key)] = tuple(dict.fromkeys((*found.get(named(key), ()), *_under(value))))
    blocks = [block for block in pool.blocks if not block.is_null]
    hashed = ((block, release.named(pool, block)) for block in blocks)
    return BlockPoolSnapshot(
        free=list(_chain(queue.fake_free_list_head, "next_free_block", len(pool.blocks))),
        backward=list(_chain(queue.fake_free_list_tail, "prev_free_block", len(pool.blocks))),
        available=pool.get_num_free_blocks(),
        refs={block.block_id: block.ref_cnt for block in blocks},
        named={block.block_id: tuple(map(named, keys)) for block, keys in hashed if keys},
        found=found,
        null=pool.null_block.block_id,
        null_named=pool.null_block.block_hash is not None,
    )


def unheld(seen: BlockPoolSnapshot, held: Mapping[int, int]) -> BlockPoolSnapshot:
    """The snapshot as if copies to and from host memory held no block. ``held``: how many copies hold each block. What
    only copies hold is free then, and is handed out last.
    """
    if not held:
        return seen
    refs = {block: count - held.get(block, 0) for block, count in seen.refs.items()}
    more = [block for block, count in refs.items() if count == 0 and seen.refs[block]]
    return replace(
        seen,
        free=[*seen.free, *more],
        backward=[*reversed(more), *seen.backward],
        available=seen.available + len(more),
        refs=refs,
    )


def _chain(end: Any, link: str, most: int) -> Iterator[int]:
    """The blocks between the two ends of the free queue. A queue that runs in a circle is cut after ``most`` blocks and
    one more; one that is torn ends with -1.
    """
    block = getattr(end, link)
    for _ in range(most + 1):
        if block is None:
            yield -1
            return
        if block.block_id < 0:  # the other end
            return
        yield block.block_id
        block = getattr(block, link)


def _under(found: Any) -> tuple[int, ...]:
    """The blocks that the prefix cache has under one hash: one block, or a dict of them."""
    return tuple(found) if isinstance(found, dict) else (found.block_id,)

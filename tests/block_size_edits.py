"""Edits of vLLM where groups of layers have blocks of different sizes, each as a real bug would be made, and harmless
ones.

``main(RELEASE, [NAME, ...])`` prints for each edit, as JSON, the law that drawn runs of ``block_cache`` find broken, or
null. What is known of the release is repaired, or left out of the runs.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any

import host_memory_edits
from driven import SOAK
from host_memory_edits import EXAMPLES, KNOWN, Edit
from hypothesis import strategies as st

from conformance.engines import registry
from conformance.stems.block_cache import rules
from conformance.stems.block_cache.exclusions import BlockCacheExclusion
from conformance.stems.block_cache.protocol import sizes_of
from conformance.traces import cause_files

SINGLE, POOL = "vllm.v1.core.single_type_kv_cache_manager", "vllm.v1.core.block_pool"
COORDINATOR, UTILS = "vllm.v1.core.kv_cache_coordinator", "vllm.v1.core.kv_cache_utils"
REPAIRED = {"event_names_part_as_parent": BlockCacheExclusion.EVENTS_OF_PARTS}
BUGS = {
    # A block of several hashes has the first of them, which does not cover all of its tokens.
    "block_has_its_first_hash": Edit(
        UTILS,
        "BlockHashListWithBlockSize._get_value_at",
        "(idx + 1) * self.scale_factor - 1",
        "idx * self.scale_factor",
    ),
    # A group whose blocks are larger keeps more blocks than the hit has.
    "hit_is_cut_in_hashes": Edit(
        COORDINATOR,
        "HybridKVCacheCoordinator.find_longest_cache_hit",
        "cdiv(hit_length, group_block_size)",
        "cdiv(hit_length, self.hash_block_size)",
    ),
    # A group whose blocks are smaller gets as many as the largest blocks would be.
    "slots_in_the_largest_blocks": Edit(
        SINGLE,
        "SingleTypeKVCacheManager.allocate_new_blocks",
        "cdiv(num_tokens, self.block_size)",
        "cdiv(num_tokens, max(self.block_size, self.cache_hit_alignment_tokens or 0))",
    ),
    # A window counts what it gives up in hashes, and not in its blocks.
    "window_slides_in_hashes": Edit(
        SINGLE,
        "SingleTypeKVCacheManager.remove_skipped_blocks",
        "num_skipped_tokens // self.block_size",
        "num_skipped_tokens // self.block_pool.hash_block_size",
    ),
    # Likewise for what a hit leaves out before its window.
    "hit_skips_in_hashes": Edit(
        SINGLE,
        "SingleTypeKVCacheManager.add_local_computed_blocks",
        "num_skipped_tokens // self.block_size",
        "num_skipped_tokens // self.block_pool.hash_block_size",
    ),
    # Blocks are offered of whose text not all hashes are there yet.
    "hashes_are_counted_as_blocks": Edit(
        SINGLE,
        "SingleTypeKVCacheManager.cache_blocks",
        "len(request.block_hashes) * self.block_pool.hash_block_size",
        "len(request.block_hashes) * self.block_size",
    ),
    # A hit needs as many blocks before it as the window has of the largest ones.
    "window_of_a_hit_in_largest_blocks": Edit(
        SINGLE,
        "SlidingWindowManager._contiguous_blocks_for_hit",
        "cdiv(window_size - 1, block_size)",
        "cdiv(window_size - 1, 8)",
    ),
    # The event for a larger block names a hash of the text as its parent, and not that of the block before.
    "event_names_a_hash_as_parent": Edit(
        POOL,
        "BlockPool.cache_full_blocks",
        "block_hashes[num_cached_blocks - 1]",
        "request.block_hashes[num_cached_blocks - 1]",
    ),
    # It is counted too low how many blocks a request needs.
    "needs_in_the_largest_blocks": Edit(
        SINGLE,
        "SingleTypeKVCacheManager.get_num_blocks_to_allocate",
        "cdiv(num_tokens, self.block_size)",
        "cdiv(num_tokens, max(self.block_size, self.cache_hit_alignment_tokens or 0))",
    ),
}
HARMLESS = {
    # A hit ends inside a block of another group. Planted as a bug; but the request goes on in a copy of the block.
    "hit_ends_inside_a_block": Edit(
        SINGLE,
        "SlidingWindowManager.find_longest_cache_hit",
        "if (post_pop_blocks * block_size) % alignment_tokens != 0:",
        "if False:",
    ),
    # Fewer blocks are put into the prefix cache.
    "caches_every_second_boundary": Edit(
        COORDINATOR,
        "HybridKVCacheCoordinator._align_cacheable",
        "round_down(num_tokens, self.scheduler_block_size)",
        "round_down(num_tokens, 2 * self.scheduler_block_size)",
    ),
    # Each block of a window is put into the prefix cache, and not those alone before which a hit may end.
    "caches_all_of_a_window": Edit(
        SINGLE, "SlidingWindowManager.reachable_block_mask", "mask = [False] * (end_block - start_block)", "return None"
    ),
    # A hit in layers with full attention never ends inside a block.
    "no_part_of_a_larger_block": Edit(
        SINGLE, "FullAttentionManager._cache_partial_tail_block", "if boundary_tokens == 0", "if True"
    ),
}
SIZED = [at for at, layers in enumerate(rules.LAYERS) if len(set(sizes_of({"block_size": 4, "layers": layers}))) > 1]

DRAWN = {"layers": st.sampled_from(SIZED), "transfers": st.just(False), "caching": st.just(True)}


def drawn_of(make: Any, known: Collection[BlockCacheExclusion]) -> str | None:
    """The law that drawn runs of a release find broken. ``known``: what they avoid."""
    return host_memory_edits.broken(make, (5, 6), DRAWN, known, EXAMPLES if SOAK else 30)


def main(release: str, names: list[str]) -> None:
    """Prints what is found of each edit."""
    registry.load("vllm", release=release)
    for cause in REPAIRED:
        cause_files.load(cause).apply()
    known = {*KNOWN} - {*REPAIRED.values()}
    host_memory_edits.main(release, names, {**BUGS, **HARMLESS}, DRAWN, known)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

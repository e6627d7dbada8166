"""Edits of vLLM where its prefix cache finds parts of blocks, each as a real bug would be made, and harmless ones.

``main(RELEASE, [NAME, ...])`` prints for each edit, as JSON, the law that drawn runs of ``block_cache`` find broken, or
null. What is known of the release is repaired, or left out of the runs.
"""

from __future__ import annotations

import sys

import host_memory_edits
from host_memory_edits import KNOWN, Edit
from hypothesis import strategies as st

from conformance.engines import registry
from conformance.stems.block_cache import rules
from conformance.stems.block_cache.exclusions import BlockCacheExclusion
from conformance.traces import cause_files

SINGLE = "vllm.v1.core.single_type_kv_cache_manager"
REPAIRED = {
    "part_copied_before_it_is_computed": BlockCacheExclusion.PARTS_IN_ONE_STEP,
    "state_named_by_its_block": BlockCacheExclusion.CHECKPOINTS_AFTER_PARTS,
}


def _edit(method: str, old: str, new: str) -> Edit:
    return Edit(SINGLE, method, old, new)


BUGS = {
    # A copy is no holder of the block in which a request goes on, and gives it back all the same.
    "copies_are_given_back_at_once": _edit("SingleTypeKVCacheManager._apply_cow", "cow_block.ref_cnt += 1", "pass"),
    # Likewise for the block of a request that goes on to write into a block that the prefix cache has.
    "a_running_block_is_given_back": _edit("MambaManager.allocate_new_blocks", "source_block.ref_cnt += 1", "pass"),
    # The prefix cache keeps a state that is overwritten.
    "hash_stays_with_the_running_state": _edit(
        "MambaManager.allocate_new_blocks", "self.block_pool.move_block_hashes(source_block, cow_block)", "pass"
    ),
    # A request goes on in a copy that nobody makes.
    "no_copy_is_made": _edit(
        "SingleTypeKVCacheManager._apply_cow",
        "self._pending_cow_copies.append((source_block, cow_block))\n",
        "source_block.ref_cnt -= 1\n    cow_block.ref_cnt -= 1\n",
    ),
    # A request goes on in the block that was found, and writes into it.
    "goes_on_in_what_was_found": _edit(
        "SingleTypeKVCacheManager._apply_cow", "req_blocks[block_idx] = cow_block", "pass"
    ),
    # A request reads a state that the same step computes.
    "state_is_read_in_its_step": _edit(
        "MambaManager.get_num_blocks_to_allocate",
        "and new_computed_blocks[-1].block_hash in self.cached_blocks_this_step",
        "and False",
    ),
    # A state inside a pass keeps the hash of its place beside its own.
    "checkpoint_keeps_the_hash_of_its_place": _edit(
        "MambaManager._cache_partial_tail_block", "replace_existing_hashes=True", "replace_existing_hashes=False"
    ),
    # A state that is overwritten keeps its hash.
    "checkpoint_on_the_way_keeps_its_hash": _edit(
        "MambaManager._cache_partial_tail_block",
        "self.block_pool._maybe_evict_cached_block(checkpoint_block)",
        "pass",
    ),
    # A part of a block is found before it is computed.
    "part_is_found_too_early": _edit(
        "FullAttentionManager._cache_partial_tail_block",
        "if boundary_tokens == 0 or boundary_tokens > num_tokens:",
        "if boundary_tokens == 0:",
    ),
}
BUGS_OF_PLACES: dict[str, tuple[Edit, ...]] = {
    # A pass leaves a state where the kernels have none (each module has the function by its name).
    "checkpoint_between_those_of_kernels": tuple(
        Edit(module, "is_mamba_prefill_checkpoint_valid", "(checkpoint_position - query_start)", "0 * query_start")
        for module in (SINGLE, "vllm.v1.kv_cache_interface", "vllm.v1.core.sched.scheduler")
    ),
}
HARMLESS = {
    # The state inside a pass gets no block of its own, and is not kept.
    "no_block_for_a_checkpoint": _edit(
        "MambaManager.allocate_new_blocks",
        "checkpoint_block = int(request_id in self._checkpoints)",
        "checkpoint_block = 0",
    ),
    # No part of a prompt is put into the prefix cache.
    "keeps_no_part": _edit("FullAttentionManager._cache_partial_tail_block", "if boundary_tokens == 0", "if True"),
    # The state of a prompt's last part is not put into the prefix cache, unless a pass leaves it inside.
    "keeps_no_state_of_a_part": _edit(
        "MambaManager._cache_partial_tail_block",
        "if num_tokens <= 0 or num_tokens % hash_block_size != 0:",
        "if True:",
    ),
}


def main(release: str, names: list[str]) -> None:
    """Prints what is found of each edit."""
    registry.load("vllm", release=release)
    for cause in REPAIRED:
        cause_files.load(cause).apply()
    drawn = {
        "layers": st.sampled_from((3, 5, 6)),  # full attention beside states, without and with checkpoints
        "tuning": st.sampled_from([tuning for tuning in rules.TUNINGS if tuning and "match" in tuning]),
        "transfers": st.just(False),
        "caching": st.just(True),
    }
    known = {*KNOWN} - {*REPAIRED.values()}
    host_memory_edits.main(release, names, {**BUGS, **BUGS_OF_PLACES, **HARMLESS}, drawn, known)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

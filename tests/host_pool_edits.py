"""Edits of vLLM's simple connector to host memory, each as a real bug would be made, and harmless ones.

``main(RELEASE, [NAME, ...])`` prints for each edit, as JSON, the law that drawn runs of ``block_cache`` with a pool of
blocks in host memory find broken, or null. Only what is known of the release is left out of the runs.
"""

from __future__ import annotations

import sys

import host_memory_edits
from host_memory_edits import Edit

from conformance.stems.block_cache import rules

MANAGER = "vllm.v1.simple_kv_offload.manager"


def _edit(method: str, old: str, new: str) -> Edit:
    return Edit(MANAGER, f"SimpleCPUOffloadScheduler.{method}", old, new)


BUGS = {
    # Blocks in host memory are not kept while a load reads them, and are not given back after it.
    "no_pin_of_a_load": (
        _edit("update_state_after_alloc", "self.cpu_block_pool.touch(cpu_blocks_to_touch)", "pass"),
        _edit("_cleanup_load_request", "self.cpu_block_pool.free_blocks(", "list("),
    ),
    # Blocks of the device are given back when the copy out of them begins, and not when it has ended.
    "store_source_is_freed_early": (
        _edit(
            "build_connector_meta",
            "if store_gpu:\n",
            "if store_gpu:\n        pool = self._gpu_block_pool\n"
            "        pool.free_blocks([pool.blocks[b] for b in store_gpu])\n",
        ),
        _edit("_process_store_completion", "self._gpu_block_pool.free_blocks(", "list("),
    ),
    # A load keeps its blocks of the device for ever.
    "load_target_is_not_freed": (_edit("_cleanup_load_request", "self._gpu_block_pool.free_blocks(", "list("),),
    # A load begins with the first block of the request.
    "load_begins_too_early": (_edit("update_state_after_alloc", "num_computed_tokens // g_block_size", "0"),),
    # What was found for a request that is then aborted stays pinned (LMCache issue 3884).
    "pin_of_a_hit_leaks": (_edit("request_finished", "self._free_pending_cpu_hit(pending)", "pass"),),
    # A second look-up of one request does not give back what the first has pinned.
    "pin_of_a_second_hit_leaks": (_edit("get_num_new_matched_tokens", "self._free_pending_cpu_hit(stale)", "pass"),),
    # A copy that a reset has abandoned is never given back.
    "abandoned_copy_leaks": (_edit("_process_store_event", "self._release_transfer_refs(transfer)", "pass"),),
}
HARMLESS = {
    # A block whose text is on the host already is copied again.
    "copies_again": (
        _edit("_classify_store_candidate", "return _StoreAdmission.ALREADY_CACHED", "return _StoreAdmission.READY"),
    ),
    # Nothing is found.
    "finds_nothing": (_edit("get_num_new_matched_tokens", "if hit_length > 0:", "if False:"),),
}


def main(release: str, names: list[str]) -> None:
    """Prints what is found of each edit."""
    host_memory_edits.main(release, names, {**BUGS, **HARMLESS}, host_memory_edits.with_host(rules.HOST_POOLS))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

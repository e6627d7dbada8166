"""Bugs of host memory of many engines, drawn by lot, each made as an edit of vLLM's newest classes; and harmless edits.

The draw: ``random.Random(3).sample`` over the sorted references of the twenty bugs of host memory of 2026 that were
collected when the stem ``host_tier`` was written. The first ten that can be made in vLLM's connector and manager are
taken. Four before the tenth cannot: SGLang pull request 29204 is about windows, SGLang pull request 38452 about a tier
behind host memory, and vLLM issue 54914 needs several groups; the runs have none of these. vLLM issue 49118, an abort
that looks for a request which was never admitted, was written down and run: the newest release knows a request from the
moment it comes, so that the edit changed nothing, and the next of the draw took its place.

``python tests/host_memory_sample.py RELEASE NAME ...`` prints for each edit and seed, as JSON, the law that drawn runs
of ``block_cache`` with host memory find broken, and after how many seconds.
"""

from __future__ import annotations

import json
import sys
import time

from host_memory_edits import CONNECTOR, HARMLESS, MANAGER, SEEDS, Edit, broken, made

from conformance.engines import registry

POLICIES = "vllm.v1.kv_offload.cpu.policies"
LOST_IN_A_SWEEP = "chunk.ref_cnt == 0 and key not in protected"
SAMPLE = {
    # SGLang pull request 26728: nothing keeps the host slots of a load from being evicted while it runs.
    "evicted_during_load": Edit(
        MANAGER, "CPUOffloadingManager._prepare_load", "self._policy.mark_non_evictable(key)", "pass"
    ),
    # vLLM issue 52170: the blocks of a store are not those of its keys.
    "blocks_of_other_keys": Edit(
        CONNECTOR,
        "OffloadingConnectorScheduler._build_store_jobs",
        "src_block_ids, group_sizes=group_sizes, block_indices=block_indices",
        "src_block_ids[::-1], group_sizes=group_sizes, block_indices=block_indices",
    ),
    # LMCache pull request 4068: what was reserved and is not written yet is published.
    "published_when_reserved": Edit(
        MANAGER,
        "CPUOffloadingManager.prepare_store",
        "self._policy.insert(key, chunk, req_context)",
        "self._policy.insert(key, chunk, req_context); chunk.ref_cnt = 0",
    ),
    # TensorRT-LLM pull request 12834: a counter of another kind of slots is changed.
    "the_wrong_counter": Edit(
        MANAGER,
        "CPUOffloadingManager.complete_load",
        "self._num_evictable_cache_chunks += 1",
        "self._num_write_pending_chunks += 1",
    ),
    # SGLang pull request 27666: what a load has promised is given back again when its request has ended.
    "given_back_again_after_the_end": Edit(
        CONNECTOR,
        "OffloadingConnectorScheduler._update_connector_output",
        "self.manager.complete_load(job_status.keys, req_status.req_context)",
        "[self.manager.complete_load(job_status.keys, req_status.req_context)"
        " for _ in range(1 + req_status.req.is_finished())]",
    ),
    # SGLang pull request 28468: the slot of a copy under way is evicted in the sweep that makes room.
    "evicted_while_written": Edit(
        f"{POLICIES}.lru", "LRUCachePolicy.insert", "if chunk.ref_cnt == 0:", "if chunk.ref_cnt <= 0:"
    ),
    # LMCache pull request 3130: where several are evicted together, readers do not count.
    "readers_do_not_count_in_a_sweep": Edit(
        f"{POLICIES}.arc",
        "ARCCachePolicy.evict",
        LOST_IN_A_SWEEP,
        f"(n > 1 or {LOST_IN_A_SWEEP.replace(' and', ') and')}",
    ),
    # LMCache pull requests 2954 and 3004: one end of a load counts for two.
    "one_end_for_two_loads": Edit(
        MANAGER,
        "CPUOffloadingManager.complete_load",
        "chunk.ref_cnt -= 1",
        "chunk.ref_cnt = max(0, chunk.ref_cnt - 2)",
    ),
    # SGLang pull requests 31668 and 31296: an abort gives the slots back that a load in flight still reads.
    "abort_gives_back_what_a_load_reads": Edit(
        CONNECTOR,
        "OffloadingConnectorScheduler.request_finished",
        "    job_status = self._jobs[job_id]\n",
        "    job_status = self._jobs[job_id]\n"
        "        if not job_status.is_store:\n"
        "            self.manager.complete_load(job_status.keys, req_status.req_context)\n"
        "            job_status.keys = set()\n",
    ),
    # LMCache pull request 3770: what was promised under one key is given back under another, so one stays promised.
    "one_key_stays_promised": Edit(
        CONNECTOR,
        "OffloadingConnectorScheduler._update_connector_output",
        "self.manager.complete_load(job_status.keys, req_status.req_context)",
        "self.manager.complete_load([*job_status.keys][1:], req_status.req_context)",
    ),
}
MORE_HARMLESS = {
    # The slot that is free the longest is taken.
    "oldest_free_slot": Edit(
        MANAGER, "CPUOffloadingManager._allocate_chunks", "self._free_list.pop()", "self._free_list.pop(0)"
    ),
    # Nothing is evicted for a store.
    "refuses_when_full": Edit(
        MANAGER,
        "CPUOffloadingManager.prepare_store",
        "if num_chunks_to_evict > self._num_evictable_cache_chunks:",
        "if True:",
    ),
    # The order in which keys were used is another.
    "marks_in_another_order": Edit(f"{POLICIES}.lru", "LRUCachePolicy.touch", "reversed(list(keys))", "list(keys)"),
    # What was evicted is remembered longer.
    "remembers_what_came_back": Edit(f"{POLICIES}.arc", "ARCCachePolicy.insert", "self.b1.pop(key, None)", "pass"),
    # After a reset what is computed is not copied again.
    "copies_no_more_after_a_reset": Edit(
        CONNECTOR, "OffloadingConnectorScheduler._reset_cache", "group_state.next_stored_chunk_idx = 0", "pass"
    ),
    # A key counts as used twice when it is seen for the first time.
    "counts_from_two": Edit(
        MANAGER, "CPUOffloadingManager._record_accesses", "self.counts[key] = 1", "self.counts[key] = 2"
    ),
    # What a look-up waited for is not measured.
    "measures_nothing": Edit(
        CONNECTOR,
        "OffloadingConnectorScheduler.request_finished",
        "self._maybe_observe_lookup_async_delay(req_status)",
        "pass",
    ),
}
ALL = {**SAMPLE, **HARMLESS, **MORE_HARMLESS}


def main(release: str, names: list[str]) -> None:
    """Prints what is found of each edit with each seed."""
    make = registry.load("vllm", release=release).makers["block_cache"]
    found: dict[str, dict[int, tuple[str | None, float]]] = {}
    for name in names or ALL:
        with made(ALL[name]):
            for seed in SEEDS:
                begun = time.monotonic()
                law = broken(make, (seed,))
                found.setdefault(name, {})[seed] = (law, round(time.monotonic() - begun, 1))
                print(f"{name}, seed {seed}: {found[name][seed]}", file=sys.stderr, flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

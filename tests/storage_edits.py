"""Bugs of a storage behind host memory, as edits of SGLang's newest classes; and harmless edits.

The first two are bugs of other releases and engines; each of the others leaves out or moves one thing that keeps slots
of the host while a thread reads or writes them. ``python tests/storage_edits.py RELEASE NAME ...`` prints for each edit
and seed, as JSON, the law that drawn runs of ``host_server`` find broken, and after how many seconds.
"""

from __future__ import annotations

import sys

from drawn_edits import report
from hicache_edits import CACHE, CONTROLLER, HYBRID, SEEDS
from host_memory_edits import Edit

from conformance.engines.sglang.kinds import KINDS
from conformance.stems.launches import Launches

SAMPLE = {
    # SGLang pull request 31668: what a request that is aborted has fetched so far, and what is still on its way, is
    # given back at once.
    "aborted_fetch_gives_all_back": Edit(
        CACHE,
        "UnifiedRadixCache.release_aborted_request",
        "info.host_indices[:completed_tokens],",
        "info.host_indices,",
    ),
    # LMCache pull request 5032: pages that have not come are published with those that have.
    "failed_fetch_is_published": Edit(
        CACHE,
        "UnifiedRadixCache._handle_prefetch_result",
        "fetched_key = prefetch_key[:completed_tokens]",
        "completed_tokens = len(host_indices); fetched_key = prefetch_key[:completed_tokens]",
    ),
    # Nothing keeps slots on the host while they are saved.
    "evicted_while_saved": Edit(
        CACHE,
        "UnifiedRadixCache.write_backup_storage",
        "self.ongoing_backup[operation_id] = (\n        node_id,\n        "
        "self.inc_host_lock_ref(node_id).to_dec_params(),\n    )",
        "pass",
    ),
    # Of a text that the tree has by now, the slots are not given back.
    "known_pages_stay": Edit(
        CACHE,
        "UnifiedRadixCache._handle_prefetch_result",
        "self.cache_controller.mem_pool_host.free(\n            host_indices[: insert_result.prefix_len]\n        )",
        "pass",
    ),
    # What has not come is not given back.
    "missing_pages_stay": Edit(
        CACHE,
        "UnifiedRadixCache._drain_storage_control_queues_impl",
        "if operation.ack_releases_incomplete_host_indices:",
        "if False:",
    ),
    # A page that the storage does not have counts as one that has come.
    "counts_a_missing_page": Edit(
        CONTROLLER,
        "HiCacheController._generic_page_get",
        "if page_data[i] is None:",
        "if page_data[i] is None:\n            count += 1",
    ),
}
HARMLESS = {
    # Pages are saved one by one.
    "a_page_at_a_time": Edit(
        CONTROLLER,
        "HiCacheController._page_backup",
        "prefix_keys = operation.prefix_keys",
        "prefix_keys, STORAGE_BATCH_SIZE = operation.prefix_keys, 1",
    ),
    # Nothing is saved.
    "saves_nothing": Edit(CACHE, "UnifiedRadixCache.write_backup_storage", "if spec is None:", "if True:"),
    # What the storage has is fetched to its first half.
    "fetches_half": Edit(
        HYBRID,
        "HybridCacheController._storage_hit_query",
        "hash_value[:kv_hit_pages],\n        kv_hit_pages * self.page_size,",
        "hash_value[: kv_hit_pages // 2],\n        kv_hit_pages // 2 * self.page_size,",
    ),
    # A fetch is not waited for.
    "waits_for_no_fetch": Edit(
        CACHE, "UnifiedRadixCache._can_terminate_prefetch", 'self.prefetch_stop_policy == "best_effort"', "True"
    ),
}
ALL = {**SAMPLE, **HARMLESS}


def with_storage(launches: Launches) -> Launches:
    """The servers that have a storage behind their host memory."""
    options = [(name, choices[1:] if name == "storage" else choices) for name, choices in launches.options]
    return launches._replace(options=tuple(options))


if __name__ == "__main__":
    release, *names = sys.argv[1:]
    chosen = {name: ALL[name] for name in names or ALL}
    report("host_server", release, chosen, KINDS._replace(hosting=with_storage(KINDS.hosting)), SEEDS)

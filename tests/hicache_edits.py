"""Bugs of host memory of many engines, drawn by lot, as edits of SGLang's newest classes; and harmless edits.

The draw is that of ``host_memory_sample.py``, and the first ten that can be made in SGLang's unified tree with HiCache,
in its controller or in its host pool are taken. Six before the tenth could not when the draw was made: vLLM issue 49118
and SGLang pull request 31668 are about requests that are aborted while host memory waits for a storage, SGLang pull
request 38452 about such a storage, SGLang pull request 29204 about windows, and vLLM issue 54914 about several groups;
the runs had none of these then. Bugs of a storage are in ``storage_edits.py``. The edits are made in the Python core,
which each run has.

``python tests/hicache_edits.py RELEASE NAME ...`` prints for each edit and seed, as JSON, the law that drawn runs of
``host_server`` find broken, and after how many seconds.
"""

from __future__ import annotations

import sys

from drawn_edits import report
from host_memory_edits import Edit

from conformance.engines.sglang.kinds import KINDS
from conformance.stems.launches import Launches

CACHE = "sglang.srt.mem_cache.unified_radix_cache"
CORE = "sglang.srt.mem_cache.unified_cache.unified_tree_core"
FULL = "sglang.srt.mem_cache.unified_cache.components.full"
CONTROLLER, HYBRID = "sglang.srt.managers.cache_controller", "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller"
POOL = "sglang.srt.mem_cache.pool_host.base"
SEEDS = (1, 2, 3)
SAMPLE = {
    # SGLang pull request 26728: nothing keeps the host slots of a load from being evicted while it runs. In the newest
    # release the lock on the host, and beside it a mark of the load, keep them.
    "evicted_during_load": Edit(
        CORE,
        "UnifiedTreeCore._can_reclaim_full_host_duplicate",
        "or node.load_back_pending_id is not None\n    ):\n        return False\n    return cd.host_lock_ref == 0",
        "):\n        return False\n    return True",
    ),
    # vLLM issue 52170: the blocks of a store are not those of its keys.
    "blocks_of_other_keys": Edit(
        HYBRID,
        "HybridCacheController.write",
        "            host_indices,\n            device_indices,\n",
        "            host_indices,\n            device_indices.flip(0),\n",
    ),
    # LMCache pull request 4068: what was reserved and is not written yet is published.
    "published_when_reserved": Edit(
        CACHE,
        "UnifiedRadixCache.writing_check",
        "while finish_count > 0:\n        ack = cc.ack_write_queue.pop(0)\n        ack.finish_event.synchronize()",
        "while cc.ack_write_queue:\n        ack = cc.ack_write_queue.pop(0)",
    ),
    # TensorRT-LLM pull request 12834: a counter of another kind of slots is changed.
    "the_wrong_counter": Edit(
        FULL,
        "FullComponent.evict_component",
        "host_freed = len(cd.host_value)",
        "host_freed = len(cd.host_value)\n"
        "        self.tree_core.component_evictable_size_[self.component_type] -= host_freed",
    ),
    # SGLang pull request 27666: what a load has promised is given back again.
    "given_back_again_after_the_end": Edit(
        CACHE,
        "UnifiedRadixCache.loading_check",
        "self.dec_host_lock_ref(node, host_lock_params)",
        "self.dec_host_lock_ref(node, host_lock_params); self.dec_host_lock_ref(node, host_lock_params)",
    ),
    # SGLang pull request 28468: what a copy under way reads and writes is evicted.
    "evicted_while_written": Edit(
        CACHE, "UnifiedRadixCache._execute_and_commit_kv_backup", "if not write_back:", "if False:"
    ),
    # LMCache pull request 3130: what others still need is evicted with what nobody needs.
    "evicts_what_has_children": Edit(CORE, "UnifiedTreeCore._is_host_leaf", "if len(node.children) > 0:", "if False:"),
    # LMCache pull requests 2954 and 3004: a lock is given back twice.
    "one_end_for_two_locks": Edit(
        CACHE,
        "UnifiedRadixCache._finish_write_through_ack",
        "self.dec_lock_ref(lock_node_id, lock_params)",
        "self.dec_lock_ref(lock_node_id, lock_params); self.dec_lock_ref(lock_node_id, lock_params)",
    ),
    # LMCache pull request 3770: what was promised is not given back.
    "one_key_stays_promised": Edit(
        CACHE, "UnifiedRadixCache.loading_check", "self.dec_host_lock_ref(node, host_lock_params)", "pass"
    ),
    # vLLM issue 45704: a store does not wait for the forward pass that writes what it reads.
    "no_sync_of_a_store": Edit(
        CONTROLLER, "HiCacheController.start_writing", "if self.write_fence_stream is not None:", "if False:"
    ),
}
HARMLESS = {
    # Of copies that are done one is heard of in each turn.
    "hears_of_one": Edit(
        CACHE, "UnifiedRadixCache._count_ready_acks", "return ready_count", "return min(ready_count, 1)"
    ),
    # A prefix of a few tokens is loaded, too.
    "loads_short_prefixes": Edit(
        CACHE, "UnifiedRadixCache._load_back_transfers", "max(1, self.load_back_threshold)", "1"
    ),
    # Another leaf is evicted first. (As written first, the edit compared numbers with what no number compares with, so
    # that the server ended.)
    "evicts_in_another_order": Edit(
        FULL,
        "FullComponent._session_ref_eviction_strategy",
        "return ref > 0, ref, self.tree_core.eviction_strategy.get_priority(node)",
        "return False, 0, -node.id",
    ),
    # What is on the device, too, stays on the host.
    "keeps_duplicates": Edit(
        CORE,
        "UnifiedTreeCore._can_reclaim_full_host_duplicate",
        "return cd.host_lock_ref == 0",
        "return False",
    ),
    # A copy begins at once.
    "stores_at_once": Edit(CACHE, "UnifiedRadixCache._execute_kv_backup", "flush=False", "flush=True"),
    # The slots that were freed last are taken first.
    "newest_free_slots": Edit(
        POOL,
        "HostKVCache.alloc",
        "select_index = self.free_slots[:need_size]\n    self.free_slots = self.free_slots[need_size:]",
        "select_index = self.free_slots[len(self.free_slots) - need_size :]\n"
        "    self.free_slots = self.free_slots[: len(self.free_slots) - need_size]",
    ),
    # The free list is put together at each call.
    "merges_always": Edit(POOL, "HostKVCache.alloc", "if need_size > len(self.free_slots):", "if True:"),
    # Nothing is loaded.
    "loads_nothing": Edit(
        CACHE,
        "UnifiedRadixCache.init_load_back",
        "if self.load_back(best_match_node_id, mem_quota, req=req):",
        "if False:",
    ),
    # Nothing is evicted on the host to make room for a copy.
    "stores_where_room_is": Edit(
        CACHE, "UnifiedRadixCache._execute_kv_backup", "if self.evict_host(needed) < needed:", "if True:"
    ),
    # Each turn waits for every copy to the host.
    "waits_for_all": Edit(
        CACHE,
        "UnifiedRadixCache.check_hicache_events",
        "self.writing_check(finish_count=write_finish_count)",
        "self.writing_check(write_back=True)",
    ),
}
ALL = {**SAMPLE, **HARMLESS}


def in_python(launches: Launches) -> Launches:
    """The servers whose tree has the Python core."""
    options = [(name, choices[1:] if name == "core" else choices) for name, choices in launches.options]
    return launches._replace(options=tuple(options))


if __name__ == "__main__":
    the_release, *names = sys.argv[1:]
    chosen = {name: ALL[name] for name in names or ALL}
    report("host_server", the_release, chosen, KINDS._replace(hosting=in_python(KINDS.hosting)), SEEDS)

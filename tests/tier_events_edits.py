"""Edits of SGLang that make a server say in KV events what its device or its host memory does not have, and harmless
ones. Written down before their first run.

``python tests/tier_events_edits.py STEM RELEASE SEED NAME ...`` prints for each edit, as JSON, the law that drawn runs
of the stem find broken, and after how many seconds. The edits are made in the Python core of the tree, which each of
these runs has.
"""

from __future__ import annotations

import sys

from drawn_edits import report
from hicache_edits import CACHE, CORE, in_python
from host_memory_edits import Edit

from conformance.engines.sglang.kinds import KINDS

RECORDER, SCHEDULER = "sglang.srt.mem_cache.events", "sglang.srt.managers.scheduler"
PUBLISHER = "sglang.srt.managers.scheduler_components.kv_events_publisher"
BUGS = {
    # A page leaves host memory, and nothing is said.
    "host_eviction_is_not_said": Edit(
        CORE, "UnifiedTreeCore._evict_host_leaf", "self.kv_events.record_remove(node, medium=StorageMedium.CPU)", "pass"
    ),
    # A copy on the host is said to be on the device.
    "host_copy_is_said_of_the_device": Edit(
        CORE, "UnifiedTreeCore.finish_write_through", "medium=StorageMedium.CPU", "medium=StorageMedium.GPU"
    ),
    # What is loaded back is not said to be on the device again.
    "load_is_not_said": Edit(
        CORE,
        "UnifiedTreeCore.commit_load_back",
        "self.kv_events.record_store(self.node_by_id(nid), medium=StorageMedium.GPU)",
        "pass",
    ),
    # A page that leaves the device, and stays on the host, is said to leave the host.
    "demotion_is_said_of_the_host": Edit(
        CORE,
        "UnifiedTreeCore._demote",
        "self.kv_events.record_remove(node, medium=StorageMedium.GPU)",
        "self.kv_events.record_remove(node, medium=StorageMedium.CPU)",
    ),
    # Both memories are emptied, and nothing is said.
    "flush_is_not_said": Edit(
        CACHE, "UnifiedRadixCache._reset_full", "self.tree_core.kv_events.record_all_cleared()", "pass"
    ),
    # A copy on the host is said to be there when it is asked for, and once more when it has been made.
    "copy_is_said_when_it_begins": Edit(
        CACHE,
        "UnifiedRadixCache._track_write_through_node",
        "self.ongoing_write_through[node_id] = _OngoingWriteThrough(",
        "core = self.tree_core\n"
        "    for each in publish_node_ids:\n"
        "        core.kv_events.record_store(core.node_by_id(each), medium='CPU_PINNED')\n"
        "    self.ongoing_write_through[node_id] = _OngoingWriteThrough(",
    ),
    # A copy on the host that is given up, since the device has the page, too, is still said to be there.
    "duplicate_goes_silently": Edit(
        CORE,
        "UnifiedTreeCore._release_full_host_duplicate",
        "self.kv_events.record_remove(node, medium=StorageMedium.CPU)",
        "pass",
    ),
    # Pages that were fetched from a storage are not said to be on the host.
    "fetched_pages_are_not_said": Edit(
        CORE,
        "UnifiedTreeCore.insert_host",
        "self.kv_events.record_store(new_node, medium=StorageMedium.CPU)",
        "pass",
    ),
    # What is dropped from the host with a node of the device is said to leave the device.
    "dropped_from_the_wrong_memory": Edit(
        CORE,
        "UnifiedTreeCore._release_all_component_layers",
        "self.kv_events.record_remove(node, medium=medium)",
        "self.kv_events.record_remove(node, medium=StorageMedium.GPU)",
    ),
    # A server without requests keeps its events for itself.
    "idle_server_says_nothing": Edit(
        SCHEDULER, "Scheduler.on_idle", "self.kv_events_publisher.publish_kv_events()", "pass"
    ),
    # Every batch of one event is lost.
    "small_batches_are_lost": Edit(
        PUBLISHER,
        "SchedulerKvEventsPublisher.publish_kv_events",
        "self.kv_event_publisher.publish(batch)",
        "len(events) > 1 and self.kv_event_publisher.publish(batch)",
    ),
}
HARMLESS = {
    # Each page is said in an event of its own.
    "one_event_a_page": Edit(RECORDER, "KVCacheEventRecorder.enqueue", "if self._queue:", "if False:"),
    # That all was cleared is said twice.
    "cleared_twice": Edit(
        CACHE,
        "UnifiedRadixCache._reset_full",
        "self.tree_core.kv_events.record_all_cleared()",
        "self.tree_core.kv_events.record_all_cleared()\n    self.tree_core.kv_events.record_all_cleared()",
    ),
}


if __name__ == "__main__":
    stem, release, seed, *names = sys.argv[1:]
    every = {**BUGS, **HARMLESS}
    kinds = KINDS._replace(hosting=in_python(KINDS.hosting))
    report(stem, release, {name: every[name] for name in names or every}, kinds, [int(seed)])

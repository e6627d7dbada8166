"""Edits of what vLLM publishes of host memory, each as a real bug would be made, and harmless ones.

``main(RELEASE, NAME)`` prints for an edit, as JSON, the law that drawn runs of ``block_cache`` with host memory and
KV events find broken, or null. Only what is known of the release is left out of the runs.
"""

from __future__ import annotations

import json
from typing import Any

import host_memory_edits
from host_memory_edits import CONNECTOR, Edit, made, with_host
from host_workers_edits import law_of

from conformance.engines import registry
from conformance.stems.block_cache import rules

EVENTS = "vllm.distributed.kv_transfer.kv_connector.v1.offloading.events"
MANAGER = "vllm.v1.kv_offload.cpu.manager"
SIMPLE = "vllm.v1.simple_kv_offload.manager"


def _manager(method: str, old: str, new: str) -> Edit:
    return Edit(MANAGER, f"CPUOffloadingManager.{method}", old, new)


def _tracker(method: str, old: str, new: str) -> Edit:
    return Edit(EVENTS, f"OffloadingEventsTracker.{method}", old, new)


def _simple(method: str, old: str, new: str) -> Edit:
    return Edit(SIMPLE, f"SimpleCPUOffloadScheduler.{method}", old, new)


BUGS = {
    # A key is said to be stored when its copy begins, and again when it ends.
    "said_when_the_copy_begins": _manager(
        "prepare_store",
        "# build store specs",
        "if self.events is not None:\n"
        "        self.events.append(OffloadingEvent(keys=keys_to_store, medium=self.medium, removed=False))\n"
        "    # build store specs",
    ),
    # What leaves host memory to make room is not said.
    "eviction_is_not_said": _manager("prepare_store", "if to_evict and self.events is not None:", "if False:"),
    # Where several keys leave at once, only the first is said.
    "only_the_first_eviction_is_said": _manager("prepare_store", "keys=to_evict,", "keys=to_evict[:1],"),
    # What was stored is not said.
    "store_is_not_said": _manager("complete_store", "if stored_keys and self.events is not None:", "if False:"),
    # What is said between two steps is kept for ever, and said again.
    "events_are_said_again": _manager("take_events", "events, self.events = self.events, []", "events = self.events"),
    # A key is said to be stored on the device.
    "stored_on_the_device": _tracker("_placeholder_stored", "medium=_MEDIUM_TO_EVENT_STR[medium]", "medium='GPU'"),
    # What leaves host memory is said to leave the device.
    "removed_from_the_device": _tracker(
        "_take_removed_event", "medium=_MEDIUM_TO_EVENT_STR[event.medium]", "medium='GPU'"
    ),
    # What leaves is said of the first group of layers alone.
    "removed_from_the_first_group": _tracker(
        "_take_removed_event", "group_idx = get_offload_group_idx(key)", "group_idx = 0"
    ),
    # The connector has nothing to say.
    "connector_says_nothing": Edit(
        CONNECTOR, "OffloadingConnectorScheduler.take_events", "yield from", "yield from () and"
    ),
    # The same of blocks in host memory.
    "stored_block_is_not_said": _simple("_process_store_completion", "if self.enable_kv_cache_events:", "if False:"),
    "stored_block_is_on_the_device": _simple(
        "_process_store_completion", "medium=self.kv_event_medium", "medium='GPU'"
    ),
    "removed_block_was_on_the_device": _simple(
        "take_events", "event.medium = self.kv_event_medium", "event.medium = 'GPU'"
    ),
    "stored_block_is_of_the_first_group": _simple("_process_store_completion", "group_idx=group_idx,", "group_idx=0,"),
    # A block is said to follow another one than it does.
    "block_is_its_own_parent": _simple(
        "_process_store_completion",
        "parent_block_hash=parent_block_hash,",
        "parent_block_hash=maybe_convert_block_hash(get_block_hash(block_hash)),",
    ),
}
HARMLESS = {
    # Events of several keys come one by one.
    "evictions_are_said_apart": _manager(
        "prepare_store",
        "if to_evict and self.events is not None:",
        "for key in to_evict if self.events is not None else ():\n"
        "        self.events.append(OffloadingEvent(keys=[key], medium=self.medium, removed=True))\n"
        "    if False:",
    ),
    # An event is said without the names of adapters.
    "names_no_adapter": _simple(
        "_process_store_completion", "lora_name=meta.lora_name if meta else None,", "lora_name=None,"
    ),
}
ALL = {**BUGS, **HARMLESS}

PROMPTS = [[100 * n + token for token in range(1, 10)] for n in range(1, 5)]
CONFIG = {"layers": [{"kind": "full"}, {"kind": "full"}], "events": True, "workers": 1}


def prompts_push_each_other_out(lock: Any) -> None:
    """Prompts are copied to host memory, which has room for less than two of them, and the first is asked for again."""
    for request, prompt in enumerate([*PROMPTS, PROMPTS[0]], start=1):
        lock.do(op="add", request=request, tokens=prompt, outputs=1)
        for _ in range(3):
            lock.do(op="schedule")
            for job in lock.run.exchange.storing():
                lock.do(op="stored", job=job)
            lock.do(op="complete")


def law_with(make: Any, pool: bool) -> str | None:
    """The law that the scene finds broken; ``None``: none. ``pool``: host memory is a pool of blocks."""
    host = {**(rules.HOST_POOLS if pool else rules.HOSTS)[0], "slots": 6}
    return law_of(make, prompts_push_each_other_out, {**CONFIG, "host": host})


def scenes(release: str) -> None:
    """Prints as JSON the law that the scene finds broken: by edit, and for the release itself."""
    make = registry.load("vllm", release=release).makers["block_cache"]
    found = {f"release, {kind}": law_with(make, kind == "pool") for kind in ("slots", "pool")}
    for name, edit in ALL.items():
        with made(edit):
            found[name] = law_with(make, edit.module == SIMPLE)
    print(json.dumps(found))


def main(release: str, name: str) -> None:
    """Prints what is found of an edit, in runs with the kind of host memory that it is of."""
    hosts = rules.HOST_POOLS if ALL[name].module == SIMPLE else rules.HOSTS
    host_memory_edits.main(release, [name], ALL, with_host(hosts))

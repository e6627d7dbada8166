"""Bugs of a decode server of SGLang's newest release, as edits of its classes; and harmless edits.

``python tests/decode_server_edits.py RELEASE NAME ...`` prints for each edit and seed, as JSON, the law that drawn runs
of ``server`` on decode servers find broken, and after how many seconds. What is known of the release is left out.

The edits of ``WAITS`` and ``DOES_NOT_WAIT`` are tried on a kept trace (``tests/test_decode_streams.py``).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from drawn_edits import report
from host_memory_edits import Edit

from conformance.engines.sglang.kinds import KINDS
from conformance.engines.sglang.launches import AT_ONCE, DECODE_SERVER, RECEIVING
from conformance.stems.launches import LaunchChoice, Launches

DECODE, COMMON = "sglang.srt.disaggregation.decode", "sglang.srt.disaggregation.common.conn"
BATCH, SCHEDULER = "sglang.srt.managers.schedule_batch", "sglang.srt.managers.scheduler"
RELEASED = "release_kv_cache(decode_req.req, self.tree_cache, checkpoint=False)"
LOCKED = "req.lock = self.tree_cache.lock(result.last_device_node)"
SEEDS = (1, 2)


def _receiving(method: str, old: str, new: str) -> Edit:
    return Edit(DECODE, f"DecodeTransferQueue.{method}", old, new)


def _arriving(method: str, old: str, new: str) -> Edit:
    return Edit(DECODE, f"DecodePreallocQueue.{method}", old, new)


BUGS = {
    # The row of a request is free while a prefill server that was told to stop still writes into it.
    "free_while_it_is_written": _receiving("pop_transferred", "if hold:", "if False:"),
    # As up to 0.5.20: a prefill server that says that it failed is not told to stop, so nothing is waited for.
    "failed_is_not_told_to_stop": _receiving(
        "pop_transferred", "if deferrable and not decode_req.kv_receiver.abort_notified:", "if False:"
    ),
    # One answer is enough, also where it is none.
    "counts_no_answers": Edit(COMMON, "CommonKVManager.is_abort_release_safe", "len(acks) >= required_acks", "True"),
    # A row that was put off is forgotten.
    "forgets_what_was_put_off": _receiving("_do_release", "self._release_request(decode_req)", "pass"),
    # What a failed transfer was to bring goes to the tree.
    "failed_prompt_is_cached": _receiving("_release_request", RELEASED, RELEASED.replace("False", "True")),
    # A match for which there is no room keeps its lock.
    "refused_match_keeps_its_lock": _arriving(
        "pop_preallocated",
        "self.tree_cache.unlock(decode_req.req.lock)\n                decode_req.req.lock = None\n            break",
        "decode_req.req.lock = None\n            break",
    ),
    # A match is locked twice, and unlocked once.
    "match_is_locked_twice": _arriving(
        "_match_prefix_and_lock", LOCKED, f"self.tree_cache.lock(result.last_device_node); {LOCKED}"
    ),
    # A match is not locked.
    "match_is_not_locked": _arriving(
        "_match_prefix_and_lock",
        LOCKED,
        "req.lock = self.tree_cache.lock(self.tree_cache.root_node_handle(req.extra_key))",
    ),
    # The prompt is in the tree before it has come.
    "cached_before_it_has_come": _arriving(
        "_pre_alloc",
        "self.tree_cache.maybe_hand_to_session(req)",
        "self.tree_cache.maybe_hand_to_session(req)\n"
        "    if prefix_len == 0 and not req.output_ids:\n"
        "        self.tree_cache.checkpoint(req, up_to=fill_len)",
    ),
    # The prefill server is to write over the cached prefix, too.
    "writes_over_the_prefix": _arriving(
        "pop_preallocated", "][total_prefix_len:origin_input_len]", "][:origin_input_len]"
    ),
    # A retracted request goes on with what stands in its new slots.
    "nothing_is_restored": Edit(BATCH, "Req.load_kv_cache", "token_to_kv_pool_allocator.load_cpu_copy(", "print("),
    # What it had comes back in another order.
    "restored_in_another_order": Edit(
        BATCH,
        "Req.load_kv_cache",
        "self.kv.retraction_backup.cpu_tensors,\n        token_indices,",
        "self.kv.retraction_backup.cpu_tensors,\n        token_indices.flip(0),",
    ),
    # What is kept free for answers counts twice as room.
    "reserved_slots_are_room": _arriving(
        "_allocatable_token_budgets", "available_size - max(", "available_size + max("
    ),
    # A request that was taken back while it waited for a batch keeps its row.
    "taken_back_keeps_its_row": Edit(
        SCHEDULER,
        "Scheduler.abort_request",
        "release_kv_cache(req, self.tree_cache, checkpoint=True)",
        "pass",
    ),
}
HARMLESS = {
    # A page more is evicted than is needed.
    "evicts_more": _arriving(
        "_pre_alloc",
        "EvictParams(num_tokens=num_to_evict)",
        "EvictParams(num_tokens=num_to_evict + self.token_to_kv_pool_allocator.page_size)",
    ),
    # A row that was put off waits longer for a prefill server that does not answer.
    "waits_longer": _receiving("_defer_release", "start_time + self.deferred_kv_release_timeout", "start_time + 60"),
    # A match is locked once more for a moment.
    "locks_once_more": _arriving(
        "_match_prefix_and_lock",
        LOCKED,
        f"more = self.tree_cache.lock(result.last_device_node)\n    {LOCKED}\n    self.tree_cache.unlock(more)",
    ),
    # One request fewer is admitted at a time.
    "admits_one": _arriving(
        "pop_preallocated", "if i in indices_to_remove:", "if preallocated_reqs or i in indices_to_remove:"
    ),
}
# Of decode servers with windows.
WINDOW_LOCK = "self.tree_cache.release_swa(decode_req.req.lock)"
BUGS_OF_WINDOWS = {
    # The prefill server is told of a page less than the window has.
    "window_is_sent_short": _arriving(
        "pop_preallocated",
        "seq_len - window_size)\n            window",
        "seq_len - window_size + page_size)\n            window",
    ),
    # The prefill server is told of pages in front of those that it sends.
    "window_is_sent_before_its_place": _arriving(
        "pop_preallocated",
        "window_kv_indices_full = self.req_to_token_pool.req_to_token[\n"
        "                decode_req.req.kv.req_pool_idx, window_start:seq_len\n            ]",
        "window_kv_indices_full = self.req_to_token_pool.req_to_token[\n"
        "                decode_req.req.kv.req_pool_idx, max(0, window_start - page_size) : seq_len\n"
        "            ][: seq_len - window_start]",
    ),
    # A tail of one page, however long the window is.
    "tail_is_one_page": _arriving("_swa_tail_len", "seq_len - 1 - max(window_size, page_size)", "seq_len - page_size"),
    # The slots behind a cached prefix do not begin where the tail does.
    "prefix_reaches_into_the_tail": _arriving(
        "_match_prefix_and_lock", "fill_len - self._swa_tail_len(fill_len)", "fill_len"
    ),
    # Nobody notes that the row has no SWA slots before its tail.
    "tail_has_no_beginning": Edit(
        DECODE, "alloc_for_decode_prealloc", "req.kv.set_evicted_seqlen(ComponentType.SWA, swa_evicted_seqlen)", "pass"
    ),
    # With the lock on the window goes the one on the prefix.
    "whole_lock_goes_with_the_window": _arriving(
        "pop_preallocated", WINDOW_LOCK, "self.tree_cache.unlock(decode_req.req.lock)"
    ),
    # Pages of the tree that can be evicted count as room, and stay.
    "no_room_is_made_for_the_tail": _arriving(
        "_reclaim_swa_tail_capacity", "allocator.reclaim_for_prealloc(", "(lambda *_: None)("
    ),
    # The SWA pages are paired with the first full pages of the row.
    "tail_is_paired_with_the_beginning": Edit(
        "sglang.srt.mem_cache.allocator.swa",
        "SWATokenToKVPoolAllocator.alloc_extend_swa_tail",
        "alloc_full_indices[-swa_tail_len:], alloc_swa_indices",
        "alloc_full_indices[:swa_tail_len], alloc_swa_indices",
    ),
    # A request that gave its row up goes on without its window.
    "window_is_not_restored": Edit(
        "sglang.srt.mem_cache.swa_memory_pool",
        "SWAKVPool.load_cpu_copy",
        "self.swa_kv_pool.load_cpu_copy(swa_kv_cpu, swa_indices)",
        "pass",
    ),
}
HARMLESS_OF_WINDOWS = {
    # The lock on the window of a matched prefix stays as long as the one on the prefix.
    "window_stays_locked": _arriving("pop_preallocated", WINDOW_LOCK, "pass"),
    # A page less of the tree is reused than could be.
    "matches_a_page_less": _arriving(
        "_match_prefix_and_lock",
        "fill_len - self._swa_tail_len(fill_len)",
        "max(0, fill_len - self._swa_tail_len(fill_len) - self.token_to_kv_pool_allocator.page_size)",
    ),
}
OF_WINDOWS = {**BUGS_OF_WINDOWS, **HARMLESS_OF_WINDOWS}
ALL = {**BUGS, **HARMLESS}
PAGES = "page_indices = self._transfer_page_indices(decode_req, kv_indices, page_size)"
ON_DEVICE = "__import__('torch').get_device_module(self.scheduler.device)"
ORDERS = "self.scheduler.schedule_stream.wait_stream(self.scheduler.forward_stream)"


def _before(wait: str) -> Edit:
    """The scheduler does this before it tells the slots to the prefill server, and before it reads them."""
    return _arriving("_send_kv_metadata", PAGES, f"{wait}; {PAGES}")


def _between(wait: str) -> Edit:
    """It does this when it has read the slots, before it tells them."""
    return _arriving("_send_kv_metadata", PAGES, f"{PAGES}; {wait}")


# The step in flight has ended when the prefill server hears where to write: nothing is wrong.
WAITS = {
    "for_the_forward_stream": _between("self.scheduler.forward_stream.synchronize()"),
    "for_an_event_behind_the_pass": _between(
        f"done = {ON_DEVICE}.Event(); done.record(self.scheduler.forward_stream); done.synchronize()"
    ),
    "for_an_event_until_it_is_reached": _between(
        f"done = {ON_DEVICE}.Event(); done.record(self.scheduler.forward_stream)\n"
        "    while not done.query():\n        pass"
    ),
    "for_the_device": _between(f"{ON_DEVICE}.synchronize()"),
    # The results of the step are copied behind it.
    "for_the_copy_of_its_results": _between("self.scheduler.copy_stream.synchronize()"),
    "for_its_result": _between(
        "[one.copy_done.synchronize() for _, one in self.scheduler.result_queue if one.copy_done is not None]"
    ),
    # The stream of the scheduler waits for the step, and then the process waits for that stream.
    "for_a_stream_that_waits": _between(f"{ORDERS}; self.scheduler.schedule_stream.synchronize()"),
    # To read the slots is to wait for the stream on which they are read.
    "for_the_slots_that_it_reads": _before(ORDERS),
}
# A request goes on with what was copied, in slots that a step in flight may still write: one of two waits is left out.
RESTORES = {
    "streams_are_not_ordered": _arriving("resume_retracted_reqs", "if self.scheduler.enable_overlap:", "if False:"),
    "the_copy_waits_for_nothing": Edit(
        "sglang.srt.mem_cache.memory_pool",
        "MHATokenToKVPool.load_cpu_copy",
        "current_platform.synchronize()",
        "current_platform = __import__('unittest.mock').mock.Mock()",
    ),
}
RESULTS = "sglang.srt.managers.scheduler_components.batch_result_processor"
DECODED, EITHER = "SchedulerBatchResultProcessor.process_batch_result_decode", "req.finished() or req.is_retracted\n"
# Bugs of servers whose steps overlap. Such a server is drawn where ``transfer_under_pass`` is repaired.
OVERLAPPED = {
    # A request that gave its row up gets the token of the step that was in flight.
    "retracted_gets_a_token": (Edit(RESULTS, DECODED, EITHER, "req.finished()\n"),),
    # A request that has ended ends again with the step that was in flight.
    "ends_again": (Edit(RESULTS, DECODED, EITHER, "req.is_retracted\n"),),
    "restored_under_a_pass": (*RESTORES.values(),),
}
# The step may still write: as in the release, the law is broken.
DOES_NOT_WAIT = {
    # The streams of the device are in order, and the prefill server is no stream.
    "orders_streams_alone": _between(ORDERS),
    # The stream of the scheduler waits for what the step reads, not for what it writes.
    "waits_for_its_own_stream": _between("self.scheduler.schedule_stream.synchronize()"),
    "waits_for_an_event_of_its_own_stream": _between(f"done = {ON_DEVICE}.Event(); done.record(); done.synchronize()"),
    "waits_for_an_event_that_was_never_recorded": _between(f"{ON_DEVICE}.Event().synchronize()"),
    "asks_once_whether_an_event_is_reached": _between(
        f"done = {ON_DEVICE}.Event(); done.record(self.scheduler.forward_stream); done.query()"
    ),
    "waits_when_it_has_told": _arriving(
        "_send_kv_metadata",
        "self._num_published_destinations += 1",
        "self.scheduler.forward_stream.synchronize(); self._num_published_destinations += 1",
    ),
    "waits_while_it_tells": Edit(
        COMMON,
        "CommonKVReceiver._send_bootstrap_message",
        "sock.send_multipart(message)",
        "sock.send_multipart(message); __import__('torch').cpu.synchronize()",
    ),
}


def decoding(launches: Launches, models: Sequence[LaunchChoice] = RECEIVING[:1]) -> Launches:
    """The decode servers of these models that give rows back when nobody writes into them any more."""
    options = [
        (name, tuple(one for one in choices if name != DECODE_SERVER or one.name != AT_ONCE))
        for name, choices in launches.options
    ]
    return launches._replace(models=tuple(models), options=tuple(options))


if __name__ == "__main__":
    the_release, *names = sys.argv[1:]
    for edits, models in ((ALL, RECEIVING[:1]), (OF_WINDOWS, RECEIVING[1:])):
        chosen = {name: edit for name, edit in edits.items() if name in names or not names}
        report("server", the_release, chosen, KINDS._replace(launches=decoding(KINDS.launches, models)), SEEDS)

"""Bugs of a prefill server of SGLang's newest release, as edits of its classes; and harmless edits.

``python tests/prefill_server_edits.py RELEASE NAME ...`` prints for each edit and seed, as JSON, the law that drawn
runs of ``server`` on prefill servers find broken, and after how many seconds. What is known of the release is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from drawn_edits import report
from host_memory_edits import Edit

from conformance.engines.sglang.kinds import KINDS
from conformance.engines.sglang.launches import SENDING
from conformance.stems.launches import LaunchChoice, Launches

PREFILL, SCHEDULER = "sglang.srt.disaggregation.prefill", "sglang.srt.managers.scheduler"
COMMON, MOONCAKE = "sglang.srt.disaggregation.common.conn", "sglang.srt.disaggregation.mooncake.conn"
SEEDS = (1, 2)


def _edit(method: str, old: str, new: str) -> Edit:
    return Edit(PREFILL, f"SchedulerDisaggregationPrefillMixin.{method}", old, new)


RELEASES = "release_kv_cache(req, self.tree_cache, checkpoint=True)"
BUGS = {
    # The row is free when the last part is handed over, not when it has been read.
    "free_when_it_is_handed_over": _edit(
        "process_disagg_prefill_inflight_queue",
        "if poll in [KVPoll.WaitingForInput, KVPoll.Transferring]:",
        "if poll in [KVPoll.WaitingForInput, KVPoll.Transferring] and req.kv.holds_kv:\n"
        f"            {RELEASES}\n            undone_reqs.append(req)\n"
        "        elif poll in [KVPoll.WaitingForInput, KVPoll.Transferring]:",
    ),
    # A part is handed over before the step that computes it is launched.
    "sent_before_its_pass": _edit(
        "maybe_send_cached_prefix_chunk", "else req.prefix_len - req.host_hit_length", "else req.extend_end"
    ),
    # A part begins a page after the end of the last one.
    "part_begins_a_page_late": _edit(
        "_send_kv_chunk",
        "req.start_send_idx = end_idx",
        "req.start_send_idx = end_idx if last_chunk else end_idx + page_size",
    ),
    # What the decode server has already is sent in the place of what it has not.
    "rest_is_sent_from_the_beginning": Edit(
        PREFILL, "PrefillBootstrapQueue.finalize_bootstrap", "req.start_send_idx = decode_prefix_len", "pass"
    ),
    # A request that is taken back while it is sent is free, and its sender goes on.
    "taken_back_is_sent_on": Edit(
        SCHEDULER,
        "Scheduler.abort_request",
        'logger.debug(f"Abort inflight queue request. {req.rid=}")\n'
        '                if hasattr(req.disagg_kv_sender, "abort"):',
        "if req.kv.holds_kv:\n                    release_kv_cache(req, self.tree_cache, checkpoint=False)\n"
        "                if False:",
    ),
    # A transfer that has failed keeps its row.
    "failed_keeps_its_row": _edit("handle_inflight_transfer_failure", RELEASES, "pass"),
    # A transfer that has failed before it began keeps its buffer for the first token.
    "failed_keeps_its_buffer": _edit(
        "handle_bootstrap_failure",
        "maybe_release_metadata_buffer(req, self.req_to_metadata_buffer_idx_allocator)",
        "pass",
    ),
    # A request that is taken back keeps its buffer for the first token.
    "taken_back_keeps_its_buffer": _edit(
        "_retire_aborted_prefill_result",
        "maybe_release_metadata_buffer(req, self.req_to_metadata_buffer_idx_allocator)",
        "pass",
    ),
    # The buffer for the first token is free when the last part is handed over.
    "buffer_is_free_too_early": _edit(
        "_send_kv_chunk",
        "self.disagg_prefill_pending_chunk_rids.discard(req.rid)",
        "maybe_release_metadata_buffer(req, self.req_to_metadata_buffer_idx_allocator)",
    ),
    # The last part is read in the middle of a page from where the part before it ended.
    "part_ends_inside_a_page": _edit("_send_kv_chunk", "end_idx = end_idx - end_idx % page_size", "pass"),
    # Success although a part could not be sent.
    "failure_is_not_heard": Edit(
        MOONCAKE,
        "MooncakeKVManager.transfer_worker",
        "if ret != 0:\n                        with",
        "if False:\n                        with",
    ),
    # A request that makes room for others goes on where it was.
    "requeued_goes_on_sending": _edit("optimistic_release_and_requeue", "req.start_send_idx = 0", "pass"),
    # The prompt goes to the tree, and the row keeps the slots that the tree had already.
    "slots_are_read_before_the_tree_takes_them": _edit(
        "process_batch_result_disagg_prefill",
        "self.checkpoint_disagg_prefill(req)\n            self.disagg_prefill_inflight_queue.append(req)",
        "self.disagg_prefill_inflight_queue.append(req)\n"
        "            if not req.pending_bootstrap:\n"
        "                self.send_kv_chunk(req, last_chunk=True)\n"
        "            self.checkpoint_disagg_prefill(req)\n"
        "            if not req.pending_bootstrap:\n"
        "                continue",
    ),
    # Of models with windows and with states. The window that is sent begins a page late.
    "window_begins_late": _edit(
        "_send_kv_chunk",
        "window_start = (window_start // page_size) * page_size",
        "window_start = (window_start // page_size) * page_size + page_size",
    ),
    # The window that is sent ends a token early.
    "window_ends_early": _edit(
        "_send_kv_chunk",
        "req.kv.req_pool_idx, window_start:seq_len\n            ]\n            window_kv_indices_swa",
        "req.kv.req_pool_idx, window_start - 1:seq_len - 1\n            ]\n            window_kv_indices_swa",
    ),
    # The slots of the full pool are taken for those of the SWA pool.
    "window_in_full_slots": _edit(
        "_send_kv_chunk",
        "self.token_to_kv_pool_allocator.translate_swa_indices_for_transfer(",
        "(",
    ),
    # The SWA slots of the window are free when the last part is handed over.
    "window_is_free_when_it_is_handed_over": _edit(
        "_send_kv_chunk",
        "self.disagg_prefill_pending_chunk_rids.discard(req.rid)",
        "self.disagg_prefill_pending_chunk_rids.discard(req.rid)\n"
        "        if hasattr(self.token_to_kv_pool_allocator, 'free_swa'):\n"
        "            row = self.req_to_token_pool.req_to_token[req.kv.req_pool_idx]\n"
        "            self.token_to_kv_pool_allocator.free_swa(row[req.kv.cache_protected_len:end_idx])",
    ),
    # The state of another row is sent.
    "state_of_another_row": _edit(
        "_send_kv_chunk",
        "req.kv.req_pool_idx\n                    ]\n                )\n                .cpu()",
        "req.kv.req_pool_idx - 1\n                    ]\n                )\n                .cpu()",
    ),
    # The state is free when the last part is handed over.
    "state_is_free_when_it_is_handed_over": _edit(
        "_send_kv_chunk",
        "self.disagg_prefill_pending_chunk_rids.discard(req.rid)",
        "self.disagg_prefill_pending_chunk_rids.discard(req.rid)\n"
        "        if req.kv.holds_mamba:\n"
        "            self.req_to_token_pool.free_mamba_cache(req)",
    ),
}
HARMLESS = {
    # Where steps overlap, a part is handed over while the step that computes it is in flight. In 0.5.23 nothing comes
    # of it, nor of the next edit: the worker waits for a copy of the slots that it reads, on a stream behind the step.
    "sent_before_it_is_computed": _edit(
        "process_prefill_chunk", "elif self.enable_overlap:", "elif self.enable_overlap and req.start_send_idx < 0:"
    ),
    # The wait for the step before is left out where a cached prefix is sent early.
    "early_prefix_does_not_wait": _edit(
        "maybe_send_cached_prefix_chunk", "req.disagg_kv_sender._early_send_wait_event = ev", "pass"
    ),
    # No cached prefix is sent before the rest is computed.
    "no_early_prefix": _edit(
        "maybe_send_cached_prefix_chunk", "if req.pending_bootstrap or not allow_send:", "if True:"
    ),
    # The window begins with a whole page, said otherwise.
    "window_begins_with_a_page": _edit(
        "_send_kv_chunk",
        "window_start = (window_start // page_size) * page_size",
        "window_start -= window_start % page_size",
    ),
    # All of a prompt is sent with its last part.
    "sent_at_once": _edit(
        "_send_kv_chunk",
        "if end_idx < start_idx:",
        "if not last_chunk or end_idx < start_idx:",
    ),
    # A request that has ended waits for another turn.
    "ends_a_turn_later": _edit(
        "process_disagg_prefill_inflight_queue",
        "elif poll == KVPoll.Success:",
        "elif poll == KVPoll.Success and not vars(req).setdefault('waited', False):\n"
        "            req.waited = True\n            undone_reqs.append(req)\n"
        "        elif poll == KVPoll.Success:",
    ),
}
ALL = {**BUGS, **HARMLESS}


def sending(launches: Launches, models: Sequence[LaunchChoice] = SENDING) -> Launches:
    """The prefill servers of these models."""
    return launches._replace(models=tuple(models))


if __name__ == "__main__":
    the_release, *names = sys.argv[1:]
    chosen = {name: edit for name, edit in ALL.items() if name in names or not names}
    report("server", the_release, chosen, KINDS._replace(launches=sending(KINDS.launches)), SEEDS)

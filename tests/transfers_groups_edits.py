"""Edits of what vLLM does with transfers between servers of models with windows, states and several groups of layers:
each as a real bug would be made, and harmless ones. Written down and committed before their first run.

``python tests/transfers_groups_edits.py RELEASE NAME ...`` prints for each edit, as JSON, the law that drawn runs of
``block_cache`` with such transfers find broken, or null. Only what is known of the release is left out of the runs.
"""

from __future__ import annotations

import sys

import host_memory_edits
from host_memory_edits import KNOWN, Edit
from hypothesis import strategies as st

from conformance.stems.block_cache.exclusions import BlockCacheExclusion as Exclusion

SCHEDULER, MANAGER = "vllm.v1.core.sched.scheduler", "vllm.v1.core.kv_cache_manager"
SINGLE = "vllm.v1.core.single_type_kv_cache_manager"
NIXL = "vllm.distributed.kv_transfer.kv_connector.v1.nixl"


def _scheduler(method: str, old: str, new: str) -> Edit:
    return Edit(SCHEDULER, f"Scheduler.{method}", old, new)


def _base(method: str, old: str, new: str) -> Edit:
    return Edit(f"{NIXL}.base_scheduler", f"NixlBaseConnectorScheduler.{method}", old, new)


def _pairing(old: str, new: str) -> Edit:
    return Edit(f"{NIXL}.base_worker", "NixlBaseConnectorWorker._apply_prefix_caching", old, new)


BUGS = {
    # A block of the window is left out of what another server reads, and of what is loaded.
    "window_block_is_not_sent": _base("get_exchange_clipped_blocks", "blocks[-n_sw:]", "blocks[-(n_sw - 2):]"),
    # The blocks of a request are given back while another server reads them.
    "freed_while_read": _scheduler("_free_request", "delay_free_blocks |= connector_delay_free_blocks", "pass"),
    # Blocks have left the window too early when a request ends.
    "window_moves_too_far_at_the_end": _scheduler(
        "_connector_finished", "request.num_computed_tokens - request.num_in_flight_tokens", "request.num_tokens + 4"
    ),
    # Blocks have their hashes before the transfer has written them.
    "cached_before_it_came": _scheduler("schedule", "delay_cache_blocks=load_kv_async", "delay_cache_blocks=False"),
    # Who answers asks for the state after the whole prompt, and gets the one before its last token.
    "state_of_another_length": _base("_get_remote_prefill_token_count", "if backoff and", "if False and"),
    # Who computes the prompt computes its last token, too.
    "prompt_is_not_made_shorter": _base("_truncate_request_for_prefill", "backoff\n", "False\n"),
    # The last of the blocks for the states of drafts is taken for the one with the state.
    "state_of_a_draft": Edit(f"{NIXL}.base_scheduler", "clip_ssm_state_blocks", "blocks[:-num_scratch]", "blocks"),
    # A transfer that has failed counts as done.
    "failed_load_counts": _scheduler("_handle_failed_recving", "request.num_computed_tokens = 0", "pass"),
    # The blocks of a transfer that has failed are not given back.
    "failed_load_keeps_blocks": _scheduler(
        "_update_waiting_for_remote_kv", "self.kv_cache_manager.free(request)", "pass"
    ),
    # A request that is aborted gives up its blocks under the transfer that writes them.
    "aborted_load_is_freed": _scheduler(
        "finish_requests", "_free_request(request, delay_free_blocks=delay_free_blocks)", "_free_request(request)"
    ),
    # The list of blocks has one with no computed token (vLLM 0.20.2 to 0.24.0).
    "list_has_blocks_of_lookahead": Edit(
        MANAGER, "KVCacheManager.get_block_ids_for_computed_tokens", "ids[:num_valid_blocks]", "ids"
    ),
    # A load gets slots for drafts, so that the lists of the two servers do not fit.
    "load_gets_lookahead": _scheduler(
        "schedule", "0 if limit_lookahead_tokens else self.num_lookahead_tokens", "self.num_lookahead_tokens"
    ),
    # Where attention layers have more cached than states, the request goes on without a state.
    "goes_on_without_a_state": _scheduler(
        "schedule", "if hit_diverged and num_external_computed_tokens == 0:", "if False:"
    ),
    # Blocks do not wait for the steps in flight that use them, so that a load gets them (vLLM pull request 45357).
    "blocks_do_not_wait": _scheduler("__init__", "self.defer_block_free = True", "pass"),
    # A group of layers skips one block too many of what is loaded.
    "load_skips_too_much": Edit(
        SINGLE,
        "SlidingWindowManager.get_num_skipped_tokens",
        "num_computed_tokens - self.sliding_window + 1",
        "num_computed_tokens - self.sliding_window + 5",
    ),
    # The workers pair the lists of two servers from the front, as if the reader's prefix cache had nothing.
    "lists_are_paired_from_the_front": _pairing(
        "prefill_group[-num_decode_blocks:]", "prefill_group[:num_decode_blocks]"
    ),
    # They do so where the model has states, as they do where the reader's list is longer.
    "lists_beside_states_are_paired_from_the_front": _pairing(
        "decode_physical_per_logical == prefill_physical_per_logical", "False"
    ),
    # The list of the server that reads has a block more than the other one: its workers stop with an assertion.
    "reader_has_a_block_too_many": Edit(
        f"{NIXL}.pull_scheduler",
        "NixlPullConnectorScheduler.update_state_after_alloc",
        "self.get_exchange_clipped_blocks(\n",
        "self.get_exchange_clipped_blocks(\n[[*each, 1] for each in unhashed_local_block_ids] or\n",
    ),
}
HARMLESS = {
    # One block more before the window is named to the other server.
    "window_list_is_longer": _base("get_exchange_clipped_blocks", "blocks[-n_sw:]", "blocks[-n_sw - 1:]"),
    # Nothing is loaded.
    "loads_nothing": Edit(
        f"{NIXL}.pull_scheduler",
        "NixlPullConnectorScheduler.get_num_new_matched_tokens",
        'params.get("do_remote_prefill"):',
        "False:",
    ),
    # What has left the window when a request ends is given back with the rest.
    "window_stays_at_the_end": _scheduler(
        "_connector_finished", "request.num_computed_tokens - request.num_in_flight_tokens", "0"
    ),
}
OF_SERVERS = {"transfers": st.just(True), "host": st.none(), "layers": st.sampled_from((1, 2, 3, 4, 5))}
LEFT_OUT = (*KNOWN, Exclusion.WINDOW_BEFORE_LOADS, Exclusion.BOTH_WAYS)


def main(release: str, names: list[str]) -> None:
    """Prints what is found of each edit."""
    host_memory_edits.main(release, names, {**BUGS, **HARMLESS}, OF_SERVERS, LEFT_OUT)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

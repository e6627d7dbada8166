"""What drawn runs of ``block_cache`` avoid, so that they find other bugs than those that are known."""

from __future__ import annotations

from enum import StrEnum

from conformance.stems.block_cache.economy import STATES
from conformance.stems.exclusions import LookedPast


class BlockCacheExclusion(StrEnum):
    """What runs of ``block_cache`` avoid."""

    PRIORITY = "block_cache.priority"  # requests with priorities, where there is a prefix cache
    TWO_STEPS = "block_cache.two_steps"  # two or more steps in flight
    DRAFTS_IN_FLIGHT = "block_cache.drafts_in_flight"  # drafts where two or more steps are in flight
    ABORTED_LOADS = "block_cache.aborted_loads"  # requests that are aborted while a transfer writes into their blocks
    TRANSFERS_IN_FLIGHT = "block_cache.transfers_in_flight"  # transfers where two or more steps are in flight
    RESET_IN_FLIGHT = "block_cache.reset_in_flight"  # resets during a step, with transfers
    STALLED_LOADS = "block_cache.stalled_loads"  # transfers that are offered again, not if failed requests end
    EVENTS_OF_WINDOWS = "block_cache.events_of_windows"  # KV events with drafts in a model with windows, and of windows
    # that are no longer than a block
    EVENTS_OF_PARTS = "block_cache.events_of_parts"  # KV events where the prefix cache finds parts of blocks
    # With KV events and host memory: resets of the device alone; resets of host memory that the device refuses, since
    # requests have blocks; and resets of host memory that is a pool of blocks.
    EVENTS_OF_DEVICE_RESETS = "block_cache.events_of_device_resets"
    EVENTS_OF_REFUSED_RESETS = "block_cache.events_of_refused_resets"
    EVENTS_OF_POOL_RESETS = "block_cache.events_of_pool_resets"
    EVENTS_OF_HOST_POOLS = "block_cache.events_of_host_pools"  # KV events where host memory is a pool of blocks
    # KV events where blocks of windows are copied to a pool of blocks as soon as they are computed.
    EVENTS_OF_POOLED_WINDOWS = "block_cache.events_of_pooled_windows"
    # KV events that describe slots of host memory, where host memory may be full.
    EVENTS_OF_FULL_HOSTS = "block_cache.events_of_full_hosts"
    PARTS_IN_ONE_STEP = "block_cache.parts_in_one_step"  # two requests in a step where it finds parts of blocks
    MOVED_HASHES = "block_cache.moved_hashes"  # two or more steps in flight where it finds parts of blocks
    CHECKPOINTS_AFTER_PARTS = "block_cache.checkpoints_after_parts"  # passes that leave a state inside, where it does
    LOADED_PARTS = "block_cache.loaded_parts"  # transfers of states where it does
    WINDOW_BEFORE_LOADS = "block_cache.window_before_loads"  # loads of whole prompts whose last token begins a window
    CUT_PROMPTS = "block_cache.cut_prompts"  # whole blocks computed for another server, in a model with cached states
    FAILED_LOADS = "block_cache.failed_loads"  # transfers that fail, where an engine's own connector decides
    BOTH_WAYS = "block_cache.both_ways"  # transfers that also go back from who answers
    # Answers that other servers read, of a model with states, and that end with a pass of which drafts are accepted.
    STATES_AFTER_DRAFTS = "block_cache.states_after_drafts"
    # Answers that other servers read, and that end while a step with them is in flight.
    ANSWERS_IN_FLIGHT = "block_cache.answers_in_flight"
    # Answers that other servers read, and that end before the last draft that is accepted.
    ANSWERS_CUT_OFF = "block_cache.answers_cut_off"
    # Drafts in a model with states, in two or more steps in flight, where other servers read answers.
    TABLES_AHEAD = "block_cache.tables_ahead"
    LISTS_WITH_LOOKAHEAD = "block_cache.lists_with_lookahead"  # drafts with KV cache where other layers have transfers
    CROWDED_LOADS = "block_cache.crowded_loads"  # transfers where the blocks are not enough for all requests together
    HOST_RESET_AGAIN = "block_cache.host_reset_again"  # two resets of host memory without a step between them
    HOST_RESET_UNDER_LOAD = "block_cache.host_reset_under_load"  # resets of host memory while a request loads from it
    HOST_RESET_OF_WINDOWS = "block_cache.host_reset_of_windows"  # resets of host memory while a window has moved on
    IDLE_COPIES = "block_cache.idle_copies"  # servers that stay without requests while lazy copies go on
    RESET_OF_STORES = "block_cache.reset_of_stores"  # resets that preempt, while copies to a pool of blocks go on
    # Host memory, other than a pool of blocks, beside KV cache from other servers.
    HOST_BESIDE_SERVERS = "block_cache.host_beside_servers"
    HOST_RELOAD = "block_cache.host_reload"  # resets that preempt requests, where there is host memory
    HOST_ANSWERS = "block_cache.host_answers"  # blocks of answers in host memory
    LARGE_STATES = "block_cache.large_states"  # blocks of states that are larger than the smallest blocks
    STATES_WITH_DRAFTS = "block_cache.states_with_drafts"  # drafts in a model with states
    PADDED_DRAFTS = "block_cache.padded_drafts"  # drafts in a model with states, where hits or loads end inside a block
    STATES_WITH_TRANSFERS = "block_cache.states_with_transfers"  # transfers in a model with states
    STATES_WITHIN_STEP = "block_cache.states_within_step"  # loads of states that end before their step computes
    # Limits on what is copied to host memory, where it keeps states inside blocks.
    LIMITS_OF_TAILS = "block_cache.limits_of_tails"
    STATES_IN_ONE_STEP = "block_cache.states_in_one_step"  # two requests in a step of a model whose states are cached
    EAGLE_OF_SIZES = "block_cache.eagle_of_sizes"  # an EAGLE head where a window's blocks are smaller than a hit's unit
    IDLE_STATES = "block_cache.idle_states"  # states that a request keeps and that no pass uses
    SALTS = "block_cache.salts"  # requests with a cache salt


EXCLUSIONS = BlockCacheExclusion
# A known difference that no rule can avoid: a run with the exclusion does not end at the finding on the law.
LOOKED_PAST = {BlockCacheExclusion.IDLE_STATES: LookedPast(STATES, where_latent=True)}

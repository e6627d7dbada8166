"""What of a release's allocator classes stays the release's own where ours stand in for them."""

from __future__ import annotations

# Methods that stay the release's own: what the scheduler plans and asks before it allocates.
HOOKS = frozenset(
    {
        "check_decode_capacity",
        "create_prefill_budget",
        "evict_to_free_tokens",
        "get_extend_allocation_demand",
        "mamba_full_cache_donor",
        "max_new_tokens_for_memory",
        "prealloc_ceiling_fits",
        "prealloc_fits",
        "prealloc_fits_assumes_reclaim",
        "reclaim_for_prealloc",
        "request_slot_reserve",
        "set_hicache_transfer_done_event",
        "swa_capacity_and_available",
        "verify_byte_accounting",
    }
)

"""The theorems for which this project exists, in the words of its users, and the proved laws that say each exactly."""

from __future__ import annotations

from typing import NamedTuple


class Headline(NamedTuple):
    """A theorem in one sentence, and the laws that say it exactly, each with its stem."""

    name: str
    sentence: str
    laws: tuple[tuple[str, str], ...]


HEADLINES = (
    Headline(
        "cursor_within_committed",
        "The SWA cursor never exceeds the committed length.",
        (("session_trim", "cursor_committed_allocated"),),
    ),
    Headline(
        "inc_and_dec_pair_up",
        "inc and dec pair up: each lock count of each tree node is the number of lock handles that hold the node, the "
        "reference count of each shared block is the number of block tables that hold it, and with no request and no "
        "session every count is zero.",
        (
            ("block_pool", "count_is_holders"),
            ("block_cache", "idle_holds_nothing"),
            *(("lock_ref", law) for law in ("full_pairs", "swa_pairs", "mamba_pairs")),
            ("cache", "every_count_is_zero"),
        ),
    ),
    Headline(
        "freed_exactly_once",
        "Every slot is freed exactly once: each page of both pools and each mamba slot that is handed out is given "
        "back once before it is handed out again, and each row that holds a shared block gives the block up once. Rows "
        "of `cache` give pages back by `free`, `free_swa` and `free_full`, which name their slots; what a caller reads "
        "off its row to free it is what the row owns. A slot of host memory is free or of one key.",
        (
            ("host_tier", "keys_and_slots"),
            ("host_tier", "every_slot_comes_back"),
            *((stem, "freed_exactly_once") for stem in ("allocator", "swa_mapping", "mamba_slots")),
            ("swa_mapping", "frees_what_is_named"),
            ("swa_mapping", "frees_the_swa_pages_of_what_is_named"),
            ("block_pool", "count_is_holders"),
            ("cache", "frees_what_it_owns"),
            *(("cache", law) for law in ("quiescent", "states_are_quiescent")),
        ),
    ),
    Headline(
        "no_use_after_free",
        "No use after free: every page that a running request reads is held, its own and its shared prefix, every "
        "token in its window maps into a held SWA page, and its mamba states are its own until it leaves. A shared "
        "block is free exactly where nobody holds it, no block that a transfer in flight reads or writes is free, and "
        "no token in a window is read from the null block. What a transfer into a row of `cache` writes belongs to "
        "this row until the transfer has ended. The slot of a copy to or from host memory is of no other "
        "key until the copy has ended, and a key that was promised to a load stays.",
        (
            *(("host_tier", law) for law in ("a_copy_is_of_its_key", "promised_is_there", "loads_are_promised")),
            *(("block_pool", law) for law in ("held_is_counted", "counted_is_held")),
            *(("block_cache", law) for law in ("new_token_has_a_slot", "what_a_transfer_uses_is_not_free")),
            *(
                ("cache", law)
                for law in ("reads_held_pages", "reads_held_window", "reads_own_window", "reads_own_states")
            ),
            *(
                ("cache", law)
                for law in ("running_keeps_its_states", "a_transfer_holds_its_pages", "a_transfer_holds_its_window")
            ),
        ),
    ),
    Headline(
        "isolation",
        "What a request reads is its own: every slot that a running request reads up to its committed length, in its "
        "own pages, its shared prefix and its window, was computed for the request's own text up to this token, and "
        "its mamba state is the one after all its committed tokens, also where it was copied while a pass of a request "
        "that has ended was in flight. A row computes nothing, and gives nothing to the tree, before what another "
        "server computes for it has come, and no pass in flight writes what a transfer writes. A shared block holds "
        "the text of each request that reads it, and nobody writes it. A key that is found in host memory has a slot "
        "with the key's own text, which is what a load reads. Asked "
        "of the engine: a match answers with pages of the request's own text, an "
        "insert that gives pages to a node compares texts rightly, and equal block hashes mean equal texts.",
        (
            *(("block_pool", law) for law in ("filled_holds_own_text", "hash_names_content", "shared_is_not_written")),
            *(("cache", law) for law in ("reads_own_text", "window_reads_own_text", "reads_state_of_own_text")),
            *(("cache", law) for law in ("request_gets_the_nodes_state", "work_in_flight_goes_on")),
            *(("cache", law) for law in ("what_a_transfer_writes_is_its_own", "tree_gets_what_has_come")),
            ("cache", "prefix_is_the_trees"),
            *(("host_tier", law) for law in ("found_holds_its_text", "a_load_reads_the_keys_text")),
            ("host_tier", "a_found_key_is_not_written"),
        ),
    ),
    Headline(
        "nothing_is_stuck",
        "Nothing is stuck: what the tree counts as evictable can be evicted; a call fits exactly where a lawful answer "
        "exists, of `admit_tail` if the match and the tail that it is called with are lawful, and of "
        "`continue_prefill` this is not proved; and from every state there are finitely many granted calls that end "
        "all requests, sessions and transfers and give back every page, every mamba slot, every block and every slot "
        "of host memory; then a request that was preempted or retracted is admitted again and gets all its slots, "
        "where it fits into the pools at all. Of models with mamba states that is not said in `cache`, nor of requests "
        "that wait behind others by priority. That an engine makes these calls is not said.",
        (
            *(("lock_ref", f"{what}_can_be_evicted") for what in ("a_leaf", "an_swa_part", "a_state")),
            ("lock_ref", "evictions_end"),
            ("cache", "a_lawful_answer_fits"),
            ("cache", "a_fitting_call_has_a_lawful_answer"),
            *((stem, "comes_to_rest") for stem in ("cache", "block_cache", "host_tier")),
            *((stem, "comes_back_and_is_served") for stem in ("cache", "block_cache")),
            ("block_cache", "every_block_comes_back"),
            *(("cache", law) for law in ("quiescent", "states_are_quiescent")),
        ),
    ),
)

"""Edits of SGLang 0.5.23 that waste time or memory and break no law of ownership, each as a real bug would be made; an
edit of which no rule speaks; and harmless ones. Written down before their first run.

``python tests/server_economy_edits.py FOLDER NAME`` makes one in a copy of the release, which
``slotproof check sglang server --source FOLDER --base 0.5.23`` then judges.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple


class Place(NamedTuple):
    """In a file of the release one text, which stands there once, is replaced."""

    file: str
    old: str
    new: str


BATCH, COMMON, POLICY = "managers/schedule_batch.py", "mem_cache/common.py", "managers/schedule_policy.py"
RESULTS, SCHEDULER = "managers/scheduler_components/batch_result_processor.py", "managers/scheduler.py"
LIMIT = "key_limit: Optional[int] = self._compute_max_prefix_len(input_len)"
Edit = tuple[Place, ...]
BUGS: dict[str, Edit] = {
    # The last page of a hit is computed again.
    "hit_without_its_last_page": (
        Place(
            BATCH,
            LIMIT,
            f"{LIMIT}\n        key_limit = max(0, key_limit - (tree_cache.page_size if tree_cache else 0))",
        ),
    ),
    # A request that was retracted begins anew.
    "retracted_request_finds_nothing": (
        Place(BATCH, LIMIT, f"{LIMIT}\n        key_limit = 0 if self.retraction_count else key_limit"),
    ),
    # A short hit counts as none.
    "short_hit_is_given_up": (
        Place(
            COMMON,
            "    if envs.SGLANG_RADIX_FORCE_MISS.get():",
            "    if envs.SGLANG_RADIX_FORCE_MISS.get() or match_result.device_prefix_len < 4:",
        ),
    ),
    # A hit needs a token more before it than the window reads.
    "window_of_a_hit_is_wider": (
        Place(
            "mem_cache/cache_init_params.py",
            "return max(self.sliding_window_size, self.draft_swa_window)",
            "return max(self.sliding_window_size, self.draft_swa_window) + 1",
        ),
    ),
    # What retracted requests had is free after the last one has been retracted, so that all but one are.
    "retracted_memory_comes_late": (
        Place(
            BATCH,
            "        reqs_to_abort: List[Req] = []\n        first_iter = True\n",
            "        reqs_to_abort: List[Req] = []\n        first_iter = True\n"
            "        self.token_to_kv_pool_allocator.free_group_begin()\n",
        ),
        Place(
            BATCH,
            "        self.filter_batch(keep_indices=sorted_indices)\n\n        # Reqs in batch are filtered",
            "        self.token_to_kv_pool_allocator.free_group_end()\n"
            "        self.filter_batch(keep_indices=sorted_indices)\n\n        # Reqs in batch are filtered",
        ),
    ),
    # A request that is matched and not admitted keeps its copy of a state.
    "waiting_request_keeps_its_copy": (
        Place(SCHEDULER, 'if req.kv.holds_mamba and not getattr(req, "session", None):', "if False:"),
    ),
    # The track of an older state stays after a tracking boundary.
    "second_track_stays": (
        Place(
            RESULTS,
            "        pool = batch.req_to_token_pool\n        if not req.kv.mamba_ping_pong_empty[other_idx]:",
            "        pool = batch.req_to_token_pool\n        if False:",
        ),
    ),
    # The second track is taken a token before the boundary.
    "second_track_comes_early": (
        Place(
            BATCH,
            "if self.seq_lens_cpu[i].item() % mamba_track_interval != 0:",
            "if self.seq_lens_cpu[i].item() % mamba_track_interval not in (0, mamba_track_interval - 1):",
        ),
    ),
    # A batch that is mixed with a prefill keeps the second tracks, which it does not write.
    "mixed_batch_keeps_second_tracks": (Place(BATCH, "running_batch.mamba_lazy_undo_prealloc_at_boundary()", "pass"),),
}
# Waste of which no rule speaks: what is computed, and never put into the tree, cannot be found there.
UNCOVERED: dict[str, Edit] = {
    "a_request_that_ends_leaves_nothing": (
        Place(COMMON, "    checkpoint = checkpoint and not req.skip_radix_cache_insert", "    checkpoint = False"),
    ),
}
HARMLESS: dict[str, Edit] = {
    # The request with the longest answer is retracted first.
    "retracts_the_longest_answer": (
        Place(
            BATCH,
            "return (len(req.output_ids), -len(req.origin_input_ids))",
            "return (-len(req.output_ids), len(req.origin_input_ids))",
        ),
    ),
    # A retraction evicts all that nobody holds.
    "retraction_evicts_all": (
        Place(BATCH, "num_tokens = remaing_req_count * envs.SGLANG_RETRACT_DECODE_STEPS.get()", "num_tokens = 1 << 20"),
    ),
    # Prefixes of requests that wait grow old.
    "waiting_prefixes_grow_old": (Place(COMMON, "    tree_cache.touch_prefix(", "    0 and tree_cache.touch_prefix("),),
}
ALL = {**BUGS, **UNCOVERED, **HARMLESS}


def made(edit: Edit, folder: Path) -> None:
    """Makes the edit in a copy of the release, whose package is in the folder."""
    for place in edit:
        file = folder / "sglang" / "srt" / place.file
        text = file.read_text("utf-8")
        assert text.count(place.old) == 1, f"{place.file} has {text.count(place.old)} times {place.old!r}"
        file.write_text(text.replace(place.old, place.new), encoding="utf-8")


if __name__ == "__main__":
    made(ALL[sys.argv[2]], Path(sys.argv[1]))

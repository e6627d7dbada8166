"""Runs each script of a finding twice on one release: as the release is, and with the bug repaired in this process.

``python script_repairs.py RELEASE`` prints a JSON object: for each script what it tells in both runs. A script that
showed its finding also where the bug is repaired would be no check. The repairs are as short as can be: they show where
each bug is, and are no patches for SGLang.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from conformance.engines.sglang import alone
from conformance.engines.sglang.releases import download
from conformance.engines.sglang.releases.release import load

Repair = Callable[[], AbstractContextManager[Any]]


def wrapped(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Any:
    """The method ``name`` of a class is ``make(method)`` while this lasts."""
    return patch.object(owner, name, make(getattr(owner, name)))


def full_pages_go_back() -> Any:
    """``alloc_decode`` takes nothing where it refuses."""
    from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator

    def repaired(decode: Callable[..., Any]) -> Any:
        def alloc_decode(self: Any, *lengths: Any) -> Any:
            before = self.full_attn_allocator.free_pages
            slots = decode(self, *lengths)
            if slots is None:
                self.full_attn_allocator.free_pages = before
            return slots

        return alloc_decode

    return wrapped(SWATokenToKVPoolAllocator, "alloc_decode", repaired)


def tail_starts_at_a_page() -> Any:
    """The start of an SWA tail is rounded down to a whole page."""
    from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator

    def repaired(alloc: Callable[..., Any]) -> Any:
        def alloc_extend_swa_tail(self: Any, *where: Any) -> Any:
            *others, tail = where
            return alloc(self, *others, tail + (int(others[3][0]) - tail) % self.page_size)

        return alloc_extend_swa_tail

    return wrapped(SWATokenToKVPoolAllocator, "alloc_extend_swa_tail", repaired)


def clear_ends_the_group() -> Any:
    """``clear`` of the pool of mamba states forgets the slots that are set aside."""
    from sglang.srt.mem_cache.allocator.mamba import MambaSlotAllocator

    def repaired(clear: Callable[..., Any]) -> Any:
        def cleared(self: Any) -> None:
            self._alloc_iter = None
            clear(self)

        return cleared

    return wrapped(MambaSlotAllocator, "clear", repaired)


def begin_ends_the_group() -> Any:
    """A second group of mamba states ends the first one."""
    from sglang.srt.mem_cache.allocator.mamba import MambaSlotAllocator

    def repaired(begin: Callable[..., Any]) -> Any:
        def alloc_group_begin(self: Any, count: int) -> None:
            self.alloc_group_end()
            begin(self, count)

        return alloc_group_begin

    return wrapped(MambaSlotAllocator, "alloc_group_begin", repaired)


def refusal_takes_nothing() -> Any:
    """Rows with mamba states are as before after an ``alloc`` that raises."""
    from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool

    def repaired(alloc: Callable[..., Any]) -> Any:
        def allocated(self: Any, requests: Any) -> Any:
            before = self.mamba_allocator.free_slots
            try:
                return alloc(self, requests)
            except AssertionError:
                self.mamba_allocator.free_slots = before
                raise

        return allocated

    return wrapped(HybridReqToTokenPool, "alloc", repaired)


def only_an_end_ends() -> Any:
    """A turn that is retracted, or is aborted while it waits, has not finished."""
    from sglang.srt.session.session_controller import Session

    def repaired(finish: Callable[..., Any]) -> Any:
        def finish_req(self: Any, request: Any) -> None:
            if request.finished():
                finish(self, request)

        return finish_req

    return wrapped(Session, "finish_req", repaired)


def turned_away_ends_nothing() -> Any:
    """The match of a request that was turned away does not tell the session that its turn was aborted."""
    from sglang.srt.session.streaming_session import StreamingSession

    def repaired(find: Callable[..., Any]) -> Any:
        def find_active_slot(self: Any, request: Any) -> Any:
            return None if request is None or request.to_finish is not None else find(self, request)

        return find_active_slot

    return wrapped(StreamingSession, "find_active_slot", repaired)


def turned_away_keeps_its_row() -> Any:
    """The session takes no row of a request that was turned away."""
    from sglang.srt.session.streaming_session import StreamingSession

    def repaired(take: Callable[..., Any]) -> Any:
        return lambda self, request: None if request.to_finish is not None else take(self, request)

    return wrapped(StreamingSession, "take", repaired)


def empty_prefix_gives_the_row_back() -> Any:
    """Where no token of a session's row can be used, the row is given back, and the turn is matched as a new one."""
    from sglang.srt.session.streaming_session import StreamingSession

    def repaired(match: Callable[..., Any]) -> Any:
        def try_match_prefix(self: Any, params: Any) -> Any:
            slot = self.find_active_slot(params.req)
            if slot is not None and not min(slot.kv.kv_committed_len, len(params.key)):
                self.release_session(params.req.session.session_id)
            return match(self, params)

        return try_match_prefix

    return wrapped(StreamingSession, "try_match_prefix", repaired)


def only_computed_is_committed() -> Any:
    """The session keeps the length that was computed, also where the row has slots for more."""
    from sglang.srt.session.streaming_session import StreamingSession

    def repaired(save: Callable[..., Any]) -> Any:
        def try_cache_finished_req(self: Any, request: Any) -> Any:
            kv = request.kv
            computed = kv.kv_committed_len
            saved = save(self, request)
            kv.kv_committed_len = min(computed, kv.kv_committed_len)
            return saved

        return try_cache_finished_req

    return wrapped(StreamingSession, "try_cache_finished_req", repaired)


def freed_slots_stay_out_of_the_tree() -> Any:
    """A request of a model without a floor gives the tree no token behind the first slot that left its window."""
    from sglang.srt.mem_cache.radix_cache import RadixCache

    def repaired(insert: Callable[..., Any]) -> Any:
        def checkpoint(self: Any, request: Any, *, up_to: int) -> Any:
            left = request.kv.max_evicted_seqlen > request.kv.cache_protected_len
            floor = request.kv.swa_evict_floor or request.kv.cache_protected_len
            return insert(self, request, up_to=min(up_to, floor) if left else up_to)

        return checkpoint

    return wrapped(RadixCache, "checkpoint", repaired)


def waiting_turn_gives_its_copy_back() -> Any:
    """After a pass of the scheduler no request that waits without a row has a mamba state."""
    from sglang.srt.managers.scheduler import Scheduler

    def repaired(schedule: Callable[..., Any]) -> Any:
        def get_new_batch(self: Any, *batches: Any) -> Any:
            new = schedule(self, *batches)
            for request in self.waiting_queue:
                if request.kv.holds_mamba and not request.kv.holds_kv:
                    self.req_to_token_pool.mamba_allocator.free(request.kv.mamba_pool_idx.unsqueeze(-1))
                    request.kv.mamba_pool_idx = None
            return new

        return get_new_batch

    return wrapped(Scheduler, "_get_new_batch_prefill_raw", repaired)


def checkpoint_gives_the_lock_back() -> Any:
    """A checkpoint that raises leaves the tree lock with the session's slot."""
    from sglang.srt.session.streaming_session import StreamingSession

    def repaired(checkpoint: Callable[..., Any]) -> Any:
        def try_checkpoint(self: Any, request: Any, **more: Any) -> Any:
            try:
                return checkpoint(self, request, **more)
            except AssertionError:
                self._lock_to_slot(request, self.borrowed_slot(request))
                raise

        return try_checkpoint

    return wrapped(StreamingSession, "try_checkpoint", repaired)


REPAIRS: dict[str, Repair] = {
    "aborted_retry_stays_in_text": only_an_end_ends,
    "cancelled_retry_blocks_close": only_an_end_ends,
    "cancelled_turn_stays_in_text": only_an_end_ends,
    "clear_in_state_group_unified": clear_ends_the_group,
    "decode_keeps_full_pages": full_pages_go_back,
    "decode_on_empty_swa_list": full_pages_go_back,
    "draft_tail_stays": only_computed_is_committed,
    "empty_append_to_one_token": empty_prefix_gives_the_row_back,
    "freed_window_goes_to_tree": freed_slots_stay_out_of_the_tree,
    "nested_state_group_forgets_unified": begin_ends_the_group,
    "one_token_retract": empty_prefix_gives_the_row_back,
    "refused_checkpoint_loses_lock": checkpoint_gives_the_lock_back,
    "retract_lets_second_turn_in": only_an_end_ends,
    "second_retract_detaches": only_an_end_ends,
    "short_admit_is_half_done_unified": refusal_takes_nothing,
    "tail_inside_page": tail_starts_at_a_page,
    "turned_away_lends_its_row": turned_away_keeps_its_row,
    "turned_away_lets_close_in": turned_away_ends_nothing,
    "turned_away_opens_session": turned_away_ends_nothing,
    "waiting_turn_keeps_copy": waiting_turn_gives_its_copy_back,
}


def both(release: str, name: str, repair: Repair) -> list[tuple[int, str]]:
    """What the script tells of the release as it is, and of the repaired one."""
    script = alone.SCRIPTS / f"{name}.py"
    told = alone.run(release, script)
    with repair():
        return [told, alone.run(release, script)]


def main(release: str) -> None:
    """Prints what each script tells in both runs."""
    load(download.release(release), release)
    print(json.dumps({name: both(release, name, repair) for name, repair in REPAIRS.items()}))


if __name__ == "__main__":
    main(sys.argv[1])

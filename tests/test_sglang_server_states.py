"""SGLang's real scheduler on a model with recurrent layers: what it does with mamba states is followed by the law."""

from __future__ import annotations

import pytest
from test_sglang_server import NORMAL, SESSIONS, asks, sent, turn

from conformance.driver.protocol import Json
from conformance.traces import trace_files

SMALL = ["--page-size", "1", "--max-total-tokens", "24", "--context-length", "18", "--max-running-requests", "3"]
FLAGS = [*SMALL, "--attention-backend", "triton", "--max-mamba-cache-size", "9", NORMAL]
# More requests than there are rows and states for, which share beginnings: states are copied, donated and evicted.
CROWD = [
    *(asks(0, 5, 6), asks(1, 6, 3, fork=3), turn(3), asks(2, 7, 5), asks(3, 4, 6, fork=0), turn(2)),
    *(asks(4, 7, 2, fork=5), {"op": "abort", "request": 1}, asks(5, 8, 4), turn(9)),
    *(asks(6, 6, 5, fork=3), asks(7, 7, 4), asks(8, 9, 4, fork=0), turn(60), {"op": "flush"}, turn(2)),
]
# A session of two turns, another request beside it, and its end.
TURNS = [
    *({"op": "open", "session": 1}, turn(), asks(0, 2, 2, session=1), turn(9)),
    *(asks(1, 4, 2, fork=2), asks(2, 1, 2, session=1), turn(9), {"op": "close", "session": 1}, turn(9)),
]
TRACKED = ["--mamba-radix-cache-strategy", "extra_buffer", "--mamba-track-interval", "4"]
LAZY = ["--mamba-radix-cache-strategy", "extra_buffer_lazy", "--mamba-track-interval", "4"]
STATES = {"state_group_begin", "state_group_end", "state_match", "state_admit", "state_copy", "state_donate"}


def config(*more: str, sessions: int = 0) -> Json:
    return {"model": "recurrent", "flags": [*FLAGS, *more, *([SESSIONS] if sessions else [])], "sessions": sessions}


def tracking(*more: str, sessions: int = 0) -> Json:
    """A server whose requests track their states, with steps that overlap."""
    found = config(*more, "--max-mamba-cache-size", "15", sessions=sessions)
    return found | {"flags": [flag for flag in found["flags"] if flag != NORMAL]}


@pytest.mark.engine
def test_states_of_a_server_are_followed_by_the_law() -> None:
    chunks = ("--chunked-prefill-size", "4", "--enable-mixed-chunk")
    for said in sent((config(), CROWD), (config(*chunks), CROWD)):
        assert not {"law", "error", "refused"} & said.keys(), said
        assert said["left"] == 0
        assert said["batches"] > 10
        assert said["done"].keys() >= STATES
        assert {"state_evict", "evict_leaf_and_state"} & said["done"].keys()


@pytest.mark.engine
def test_states_of_sessions_are_followed_by_the_law() -> None:
    (said,) = sent((config(sessions=1), TURNS))
    assert not {"law", "error", "refused"} & said.keys(), said
    assert {"state_save", "state_restore", "state_close", "close"} <= said["done"].keys()


@pytest.mark.engine
def test_overlap_without_track_buffers_is_refused() -> None:
    overlapped = config("--mamba-radix-cache-strategy", "no_buffer")
    overlapped["flags"].remove(NORMAL)
    (said,) = sent((overlapped, CROWD))
    assert "no_buffer do not support overlap schedule" in said["refused"]


@pytest.mark.engine
def test_a_request_may_decode_without_a_lock_on_its_state() -> None:
    """The tree may then evict a cached state of which the request has a copy of its own."""
    unlocked = {"environment": {"OPT_MAMBA_SKIP_DECODE_LOCK": "1"}}
    for said in sent((tracking(*TRACKED) | unlocked, CROWD), (config() | unlocked, CROWD)):
        assert not {"law", "error", "refused"} & said.keys(), said
        assert said["done"]["release_state"] > 0


@pytest.mark.engine
def test_tracked_states_are_followed_by_the_law() -> None:
    one = config(*TRACKED, "--max-mamba-cache-size", "15")
    single, doubled, lazy, session = sent(
        (one, CROWD), (tracking(*TRACKED), CROWD), (tracking(*LAZY), CROWD), (tracking(*TRACKED, sessions=1), TURNS)
    )
    for said in (single, doubled, lazy, session):
        assert not {"law", "error", "refused"} & said.keys(), said
    for said in (single, doubled, lazy):
        assert said["done"].keys() >= {"state_match", "state_swap", "state_donate"}
    assert "state_track" in doubled["done"]
    assert {"state_second", "state_give_second"} <= lazy["done"].keys()
    assert {"state_save", "state_restore", "state_close"} <= session["done"].keys()


KEEPS_STATE = """
    states = __import__("importlib").import_module("sglang.srt.mem_cache.allocator.mamba").MambaSlotAllocator
    states.free = lambda self, index: None
"""
COPIES_NOTHING = """
    rows = __import__("importlib").import_module("sglang.srt.mem_cache.memory_pool").HybridReqToTokenPool
    rows.copy_mamba_state = lambda self, sources, targets: None
"""
CLEARS_NOTHING = """
    __import__("importlib").import_module("sglang.srt.mem_cache.memory_pool").MambaPool.clear_slots = lambda *_: None
"""
FREES_APART = """
    scheduler = __import__("importlib").import_module("sglang.srt.managers.scheduler").Scheduler
    real = scheduler.get_next_batch_to_run
    def get_next_batch_to_run(self, *args, real=real, **kwargs):
        self.req_to_token_pool.mamba_allocator.alloc(1)
        return real(self, *args, **kwargs)
    scheduler.get_next_batch_to_run = get_next_batch_to_run
"""


@pytest.mark.engine
@pytest.mark.parametrize(
    ("plant", "law"),
    [
        (KEEPS_STATE, "states.no_leak"),
        (COPIES_NOTHING, "reads_own_content"),
        (CLEARS_NOTHING, "pass_computes_own_tokens"),
    ],
    ids=["keeps", "copies", "clears"],
)
def test_a_server_that_is_wrong_about_its_states_is_found(plant: str, law: str) -> None:
    (said,) = sent((config(), CROWD), plant=plant)
    assert said.get("law") == law, said


DONATES_THE_OTHER_TRACK = """
    rows = __import__("importlib").import_module("sglang.srt.mem_cache.memory_pool").HybridReqToTokenPool
    rows.get_mamba_ping_pong_keep_idx = lambda self, req: 1 - req.kv.mamba_last_track_idx
"""
FREES_SECOND_TRACK_TWICE = """
    name = "sglang.srt.managers.scheduler_components.batch_result_processor"
    results = __import__("importlib").import_module(name).SchedulerBatchResultProcessor
    def frees(self, req, batch, track_idx):
        slot = req.kv.mamba_ping_pong_track_buffer[1 - track_idx]
        batch.req_to_token_pool.mamba_allocator.free(slot.unsqueeze(0))
    results.mamba_lazy_post_decode_at_boundary = frees
"""


@pytest.mark.engine
@pytest.mark.parametrize(
    ("plant", "flags"), [(DONATES_THE_OTHER_TRACK, TRACKED), (FREES_SECOND_TRACK_TWICE, LAZY)], ids=["donates", "frees"]
)
def test_a_server_that_is_wrong_about_tracked_states_is_found(plant: str, flags: list[str]) -> None:
    (said,) = sent((tracking(*flags), CROWD), plant=plant)
    assert "law" in said, said


COPIES_AT_ONCE = """
    name = "sglang.srt.mem_cache.unified_cache.components.mamba"
    component = __import__("importlib").import_module(name).MambaComponent
    real = component.finalize_match_result_in_cache
    def finalize_match_result_in_cache(self, params, result):
        result = real(self, params, result)
        source = params.req.kv.mamba_cow_src_index if params.cow_mamba else None
        if source is not None:
            pool = self.cache.req_to_token_pool.mamba_pool
            pool.copy_from(source, params.req.kv.mamba_pool_idx.view(1))
            params.req.kv.mamba_cow_src_index = None
        return result
    component.finalize_match_result_in_cache = finalize_match_result_in_cache
"""
# One row, and state slots for little more. An answer ends by its stop token while the next step is in flight, and the
# request that waits has a prompt that the tree knows.
STOPS = [
    *(asks(0, 9, 2, fork=0), turn(12), {**asks(1, 3, 9, fork=2), "stop": 5}, turn(2), asks(2, 10, 4, fork=0), turn(12)),
    *({**asks(3, 3, 9, fork=3), "stop": 5}, turn(2), asks(4, 10, 4, fork=0), turn(12)),
]


@pytest.mark.engine
def test_a_server_that_copies_a_state_beside_a_pass_in_flight_is_found() -> None:
    """Its lawful neighbours put the copy off, or do not overlap their steps."""
    usual = tracking(*TRACKED)
    few = ("--max-mamba-cache-size", "6", "--max-running-requests", "1")
    overlapped = {**usual, "flags": [*usual["flags"], *few]}
    apart = {**overlapped, "flags": [*overlapped["flags"], NORMAL]}
    found, neighbour = sent((overlapped, STOPS), (apart, STOPS), plant=COPIES_AT_ONCE)
    assert found.get("law") == "state_match", found
    assert "no pass in flight uses a slot of a copy that is made at once" in found["detail"]
    for lawful in (neighbour, *sent((overlapped, STOPS))):
        assert not {"law", "error", "refused"} & lawful.keys(), lawful
        assert lawful["done"]["state_match"] >= 2


@pytest.mark.engine
def test_a_prompt_in_chunks_may_be_computed_beside_requests_that_decode() -> None:
    """Neighbours of two kept traces: there a node gets a state that is not the one at the end of its key."""
    longer = trace_files.load("mixed_chunk_caches_longer_state").trace
    unwritten = trace_files.load("mixed_batch_caches_unwritten_state").trace
    flags = longer.config["flags"]
    shares = {**longer.steps[-2], "tokens": [*range(1, 11), 7778]}  # with pages of one token a state is after 10
    for said in sent(
        ({**longer.config, "flags": [*flags, "--page-size", "1"]}, [*longer.steps[:-2], shares, longer.steps[-1]]),
        ({**longer.config, "flags": [flag for flag in flags if flag != "--enable-mixed-chunk"]}, longer.steps),
        (unwritten.config, unwritten.steps),  # this release writes what a mixed batch tracks
    ):
        assert not {"law", "error", "refused"} & said.keys(), said
        assert "state_match" in said["done"], "the last request begins with a copy of a state"


@pytest.mark.engine
def test_a_state_slot_that_is_taken_apart_from_all_watched_calls_is_no_verdict() -> None:
    (said,) = sent((config(), CROWD), plant=FREES_APART)
    assert "MambaSlotAllocator.alloc was called where the law follows no call" in said["error"]

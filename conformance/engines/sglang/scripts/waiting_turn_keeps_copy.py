"""A turn of a streaming session that is matched and finds no room keeps its copy of a mamba state while it waits.

The scheduler sends it when KV slots are short: it takes such a copy back from requests of no session alone.
"""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # only where there is no GPU

from array import array
from types import SimpleNamespace
from unittest.mock import MagicMock

import torch
from sglang.srt.managers.io_struct import OpenSessionReqInput, SessionParams, TokenizedGenerateReqInput
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.managers.schedule_policy import PrefillAdder
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.common import release_kv_cache
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_context
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.session.session_controller import SessionController

PAGE, SLOTS, STATES = 1, 16, 4  # tokens of a page; KV slots and slots of mamba states of the server
get_context().override_server_args(
    page_size=PAGE,
    attention_backend="torch_native",
    mamba_radix_cache_strategy="no_buffer",
    _mamba_cache_chunk_size=PAGE,
).install()
state = SimpleNamespace(  # of one layer, as small as it can be
    shape=SimpleNamespace(conv=[(1, 1)], temporal=(1, 1, 1)),
    dtype=SimpleNamespace(conv=torch.float32, temporal=torch.float32),
)
rows = HybridReqToTokenPool(
    size=4,
    max_context_len=SLOTS,
    device="cpu",
    enable_memory_saver=False,
    mamba_size=STATES,
    mamba_spec_state_size=1,
    cache_params=state,
    mamba_layer_ids=[0],
    enable_mamba_extra_buffer=False,
)
allocator = TokenToKVPoolAllocator(SLOTS, torch.bfloat16, "cpu", None, False)
parts = (ComponentType.FULL, ComponentType.MAMBA)
cache = UnifiedRadixCache(CacheInitParams(False, rows, allocator, PAGE, tree_components=parts))
sessions = SessionController(cache)
sessions.open(OpenSessionReqInput(session_id="chat", capacity_of_str_len=0, streaming=True))


def answer_of(longest: int) -> SamplingParams:
    sampling = SamplingParams(max_new_tokens=longest)
    sampling.normalize(None)
    return sampling


def turn(name: str, new_tokens: list[int], longest: int) -> Req:
    """What the session makes of a client's message: its text and the new tokens are the input."""
    unused = "input_text input_embeds mm_inputs token_type_ids return_logprob logprob_start_len top_logprobs_num"
    message = TokenizedGenerateReqInput(
        **dict.fromkeys((unused + " token_ids_logprob stream").split()),
        rid=name,
        input_ids=array("q", new_tokens),
        sampling_params=answer_of(longest),
        session_params=SessionParams(),
    )
    return sessions.get("chat").create_req(message, None, 1000)


def schedule(request: Req) -> None:
    """One pass of the scheduler over its waiting queue, which has this request alone."""
    absent = ("chunked_req", "chunked_prefill_size", "dllm_config", "min_free_slots_delayer")
    off = ("enable_lora", "enable_hicache_storage", "enable_lmcache", "is_mixed_chunk")
    scheduler = MagicMock(
        **dict.fromkeys(absent),
        **dict.fromkeys(off, False),
        waiting_queue=[request],
        tree_cache=cache,
        req_to_token_pool=rows,
        token_to_kv_pool_allocator=allocator,
        page_size=PAGE,
        max_prefill_tokens=SLOTS,
        max_prefill_bs=0,
        max_running_requests=4,
        get_num_allocatable_reqs=lambda *_, **__: 4,
        get_prefill_adder_class=lambda: PrefillAdder,
    )
    Scheduler._get_new_batch_prefill_raw(scheduler, None, ScheduleBatch(reqs=[]))


before_it = Req("before it", None, array("q", [1, 2, 3]), answer_of(1))
schedule(before_it)
before_it.output_ids.append(50)
before_it.update_finish_state()  # its longest answer is reached: its text and its state go to the tree
release_kv_cache(before_it, cache, checkpoint=True)

# Two requests whose text begins as the one before them, and whose answers have no room: one of no session, and a turn.
free = [rows.mamba_allocator.available_size()]
for waiting in (Req("plain", None, array("q", [1, 2, 3, 4]), answer_of(SLOTS)), turn("first", [1, 2, 3, 4], SLOTS)):
    schedule(waiting)
    if waiting.kv.holds_kv:
        raise RuntimeError("the scheduler found room, so nothing is shown")
    free.append(rows.mamba_allocator.available_size())
assert free[2] == free[1], (
    f"a turn that waits keeps {free[1] - free[2]} of {STATES} state slots, which running requests then lack; "
    f"a request of no session keeps {free[0] - free[1]}"
)

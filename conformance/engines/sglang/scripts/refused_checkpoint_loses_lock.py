"""A session's chunk that finds no slot for its mamba state raises, and the tree lock of the session is lost.

Scheduler.stash_chunked_request sends it where requests, sessions and locked nodes have all state slots.
"""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # only where there is no GPU

from array import array
from types import SimpleNamespace

import torch
from sglang.srt.managers.io_struct import OpenSessionReqInput, SessionParams, TokenizedGenerateReqInput
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.common import checkpoint_kv_cache
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_context
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.session.session_controller import SessionController
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

PAGE, SLOTS, STATES = 1, 16, 3  # tokens of a page; KV slots and slots of mamba states of the server
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


def turn(name: str, new_tokens: list[int]) -> Req:
    """What the session makes of a client's message: its text and the new tokens are the input."""
    unused = "input_text input_embeds mm_inputs token_type_ids return_logprob logprob_start_len top_logprobs_num"
    message = TokenizedGenerateReqInput(
        **dict.fromkeys((unused + " token_ids_logprob stream").split()),
        rid=name,
        input_ids=array("q", new_tokens),
        sampling_params=answer_of(8),
        session_params=SessionParams(),
    )
    return sessions.get("chat").create_req(message, None, 1000)


def prefill(request: Req, upto: int) -> None:
    """The request gets slots for its input up to so many tokens, and they are computed."""
    request.extend_end = upto
    model = SimpleNamespace(is_encoder_decoder=False, vocab_size=1000)
    batch = ScheduleBatch.init_new([request], rows, allocator, cache, model, False, SpeculativeAlgorithm.NONE)
    batch.prepare_for_extend()


first = turn("first", [1, 2, 3, 4])
first.init_next_round_input(cache)
first.lock = cache.lock(first.last_node)
prefill(first, upto=2)
checkpoint_kv_cache(first, cache)  # the first chunk: the tree has its text and a copy of its state, which are locked

other = Req("other", None, array("q", [7, 8]), answer_of(8))
other.init_next_round_input(cache)
other.lock = cache.lock(other.last_node)
prefill(other, upto=2)  # it has the last state slot

first.init_next_round_input()
prefill(first, upto=4)
try:
    checkpoint_kv_cache(first, cache)  # the second chunk: there is no slot for the copy of its state
except AssertionError as error:
    refused = str(error)
else:
    raise RuntimeError("the checkpoint found a slot, so nothing is shown")
assert cache.session.slots["chat"].lock is not None, (
    f"after '{refused}' the slot of the session has no tree lock any more, so that nobody gives it back: "
    "the node of its text is never evicted"
)

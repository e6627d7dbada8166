"""A turn of a session decodes past the end of its answer: the window of the next turn lacks SWA slots.

The overlap schedule and speculative decoding both decode past the end of an answer.
"""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # only where there is no GPU

from array import array
from types import SimpleNamespace

import torch
from sglang.srt.environ import envs
from sglang.srt.managers.io_struct import OpenSessionReqInput, SessionParams, TokenizedGenerateReqInput
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.common import checkpoint_kv_cache, release_kv_cache
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_context
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.session.session_controller import SessionController
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

PAGE, SLOTS, WINDOW = 1, 16, 2  # tokens of a page; KV slots of each pool; tokens that a layer with a window reads
get_context().override_server_args(page_size=PAGE, attention_backend="torch_native").install()
rows = ReqToTokenPool(size=4, max_context_len=SLOTS, device="cpu", enable_memory_saver=False)
pool = object.__new__(SWAKVPool)  # the allocator reads the mapping alone, so the pool needs no buffers
pool.full_kv_pool = pool.swa_kv_pool = pool.full_to_swa_index_mapping = None
allocator = SWATokenToKVPoolAllocator(SLOTS, SLOTS, PAGE, torch.bfloat16, "cpu", pool, False)
parts = (ComponentType.FULL, ComponentType.SWA)
cache = UnifiedRadixCache(
    CacheInitParams(False, rows, allocator, PAGE, sliding_window_size=WINDOW, tree_components=parts)
)
sessions = SessionController(cache)
sessions.open(OpenSessionReqInput(session_id="chat", capacity_of_str_len=0, streaming=True))


def turn(name: str, new_tokens: list[int], longest: int = 8) -> Req:
    """What the session makes of a client's message: its text and the new tokens are the input."""
    sampling = SamplingParams(max_new_tokens=longest)
    sampling.normalize(None)
    unused = "input_text input_embeds mm_inputs token_type_ids return_logprob logprob_start_len top_logprobs_num"
    message = TokenizedGenerateReqInput(
        **dict.fromkeys((unused + " token_ids_logprob stream").split()),
        rid=name,
        input_ids=array("q", new_tokens),
        sampling_params=sampling,
        session_params=SessionParams(),
    )
    return sessions.get("chat").create_req(message, None, 1000)


def batch_of(request: Req) -> ScheduleBatch:
    model = SimpleNamespace(is_encoder_decoder=False, vocab_size=1000)
    return ScheduleBatch.init_new([request], rows, allocator, cache, model, False, SpeculativeAlgorithm.NONE)


def admit(request: Req, sampled: int) -> ScheduleBatch:
    """Matches and prefills a request as the scheduler does. Its answer goes on with the token ``sampled``."""
    request.init_next_round_input(cache)
    request.extend_end = len(request.origin_input_ids) + len(request.output_ids)
    request.lock = cache.lock(request.last_node)
    batch = batch_of(request)
    batch.prepare_for_extend()
    request.output_ids.append(sampled)
    checkpoint_kv_cache(request, cache)
    return batch


first = turn("first", [1], longest=4)
batch = admit(first, sampled=50)
with envs.SGLANG_SWA_EVICTION_INTERVAL.override(1):  # the window moves in each step, not in some of them
    for sampled in range(51, 57):  # the answer ends with 53; three tokens are past its end
        batch.prepare_for_decode()
        first.output_ids.append(sampled)
first.update_finish_state()  # its longest answer is reached
release_kv_cache(first, cache, checkpoint=True)

second = turn("second", [4])
second.init_next_round_input(cache)
start = max(0, second.prefix_len - WINDOW)  # the next token reads so many tokens before it
window = rows.req_to_token[second.kv.req_pool_idx, start : second.prefix_len].long()
lost = (allocator.translate_loc_from_full_to_swa(window) == 0).sum().item()
assert not lost, (
    f"{lost} of {len(window)} tokens in the window of the next turn have no SWA slot: attention reads padding"
)

"""A turn that is turned away lends its row to the session: the session's first turn runs on it, too.

A client sends it that does not wait for its answer: the first turn is in the queue when the second one comes.
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
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_context, get_parallel
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.session.session_controller import SessionController
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

PAGE, SLOTS = 1, 16  # tokens of a page; KV slots of the server
get_context().override_server_args(page_size=PAGE, attention_backend="torch_native").install()
rows = ReqToTokenPool(size=4, max_context_len=SLOTS, device="cpu", enable_memory_saver=False)
allocator = TokenToKVPoolAllocator(SLOTS, torch.bfloat16, "cpu", None, False)
cache = UnifiedRadixCache(CacheInitParams(False, rows, allocator, PAGE, tree_components=(ComponentType.FULL,)))
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


def admit(request: Req) -> None:
    """Matches and prefills a request as the scheduler does."""
    request.init_next_round_input(cache)
    if hasattr(request, "set_extend_range"):  # in 0.5.21, where nothing is wrong
        request.set_extend_range(0, len(request.origin_input_ids))
    request.extend_end = len(request.origin_input_ids)
    batch_of(request).prepare_for_extend()


first = turn("first", [1, 2, 3])  # it waits
with get_parallel().override(tp_rank=0):  # a launcher sets it; it decides who writes log messages
    second = turn("second", [4])
if second.to_finish is None:
    raise RuntimeError("the session took both turns, so nothing is shown")
admit(second)  # a request that is turned away runs one token, and then answers with an error
admit(first)
row, text = first.kv.req_pool_idx, len(first.origin_input_ids)
assert row != second.kv.req_pool_idx, (
    f"two running requests share row {row}, and the first turn of {text} tokens begins with the KV of the other one"
)

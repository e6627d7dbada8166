"""A turn of one token that is retracted before its answer begins, and admitted again, stops the server.

ScheduleBatch.retract_decode sends it with the overlap schedule, for the first turn of a streaming session.
"""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # only where there is no GPU

from array import array
from types import SimpleNamespace

import torch
from sglang.srt.managers.io_struct import OpenSessionReqInput, SessionParams, TokenizedGenerateReqInput
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_context
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.session.session_controller import SessionController
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

PAGE, SLOTS = 2, 16  # tokens of a page; KV slots of the server
get_context().override_server_args(page_size=PAGE, attention_backend="torch_native").install()
rows = ReqToTokenPool(size=4, max_context_len=SLOTS, device="cpu", enable_memory_saver=False)
allocator = PagedTokenToKVPoolAllocator(SLOTS, PAGE, torch.bfloat16, "cpu", None, False)
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
    """Matches and prefills a request as the scheduler does. The result of the prefill is not processed yet."""
    request.init_next_round_input(cache)
    request.extend_end = len(request.origin_input_ids) + len(request.output_ids)
    request.lock = cache.lock(request.last_node)
    batch_of(request).prepare_for_extend()


first = turn("first", [1])
admit(first)  # with the overlap schedule the first token of its answer is not known yet
batch_of(first).release_req(0, 0)  # the retract: the turn gives its memory up, and waits again
refused = ""
try:
    admit(first)
except AssertionError as error:
    refused = str(error)
assert not refused, f"the admission of the retracted turn stops the server by the assertion '{refused}'"

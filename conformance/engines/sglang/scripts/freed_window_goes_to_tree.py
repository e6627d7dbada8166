"""A model whose layers all have a sliding window, and which is not prefill-aware: freed KV slots go to the prefix tree.

Every request sends it that ends after it has decoded past its window, as of a Beam model with sliding layers alone.
"""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # only where there is no GPU
os.environ.setdefault("SGLANG_SWA_EVICTION_INTERVAL", "1")  # the window moves in each step, so that the run is short

from array import array
from types import SimpleNamespace

import torch
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.mem_cache.allocation import alloc_for_decode
from sglang.srt.mem_cache.allocator.swa import PureSWATokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.common import checkpoint_kv_cache, release_kv_cache
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.pure_swa_radix_cache import PureSWARadixCache
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.runtime_context import get_context
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

SLOTS, WINDOW, ANSWER = 16, 2, 8  # KV slots of the server; tokens of the window and of the answer
get_context().override_server_args(page_size=1, attention_backend="torch_native").install()
pool = object.__new__(SWAKVPool)  # the allocator reads the mapping alone, so the pool needs no buffers
pool.full_kv_pool = pool.swa_kv_pool = pool.full_to_swa_index_mapping = None
allocator = PureSWATokenToKVPoolAllocator(SLOTS, 1, torch.bfloat16, "cpu", pool, False)
rows = ReqToTokenPool(size=4, max_context_len=SLOTS, device="cpu", enable_memory_saver=False)
cache = PureSWARadixCache(CacheInitParams(False, rows, allocator, 1, sliding_window_size=WINDOW))

sampling = SamplingParams(max_new_tokens=ANSWER)
sampling.normalize(None)
request = Req("first", "", array("q", [1, 2]), sampling, vocab_size=1000)


def batch() -> ScheduleBatch:
    model = SimpleNamespace(is_encoder_decoder=False, vocab_size=1000)
    return ScheduleBatch.init_new([request], rows, allocator, cache, model, False, SpeculativeAlgorithm.NONE)


request.init_next_round_input(cache)
request.extend_end = 2
request.lock = cache.lock(request.last_node)
batch().prepare_for_extend()
request.output_ids.append(50)
checkpoint_kv_cache(request, cache)
for token in range(51, 50 + ANSWER):
    step, kv = batch(), request.kv
    step.forward_mode = ForwardMode.DECODE
    step.seq_lens = step.seq_lens_cpu = torch.tensor([kv.kv_committed_len])
    step.req_pool_indices = step.req_pool_indices_cpu = torch.tensor([kv.req_pool_idx])
    step.forward_iter = request.decode_batch_idx
    alloc_for_decode(step, 1)  # first the slots that left the window are freed (ScheduleBatch.maybe_evict_swa)
    request.decode_batch_idx += 1
    kv.kv_committed_len = kv.kv_allocated_len = kv.kv_committed_len + 1
    request.output_ids.append(token)
request.update_finish_state()  # its longest answer is reached
release_kv_cache(request, cache, checkpoint=True)

free = set(allocator.swa_attn_allocator.free_pages.tolist())
shared = sorted(free & set(cache.all_values_flatten().tolist()))
assert not shared, f"these KV slots are free and in the tree, which hands them to each prompt that matches: {shared}"

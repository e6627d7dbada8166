"""The prefix cache finds the null block, whose KV data belong to no text.

Two steps are in flight, and both have drafts. A block leaves the sliding window before it is offered to the prefix
cache. BlockPool.cache_full_blocks gives the hash of the text to the null block that stands in its place.
"""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

BLOCK, BLOCKS = 2, 40  # tokens of a block; blocks, beside the null block
DRAFTS, WINDOW = 2, 2  # drafts of a step; tokens that a token reads, the last of which is itself
PARTS = ("scheduler", "cache", "model", "parallel", "observability", "speculative", "ec_manager")


class Values(SimpleNamespace):
    """The configuration, and each part of it. What is not said is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self if name.removesuffix("_config") in PARTS else None


config = Values(
    max_num_seqs=1,
    max_num_batched_tokens=16,
    max_model_len=20,
    policy="fcfs",
    long_prefill_token_threshold=0,
    enable_chunked_prefill=True,
    num_gpu_blocks=BLOCKS + 1,
    enable_prefix_caching=True,
    decode_context_parallel_size=1,
    prefill_context_parallel_size=1,
    pipeline_parallel_size=1,
    num_speculative_tokens=DRAFTS,
    use_eagle=lambda: True,
    max_concurrent_batches=2,
    async_scheduling=True,
)
kv_cache_utils.init_none_hash(sha256)
full = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
sliding = SlidingWindowSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32, sliding_window=WINDOW)
scheduler = AsyncScheduler(
    vllm_config=config,
    kv_cache_config=KVCacheConfig(
        BLOCKS + 1, [], [KVCacheGroupSpec(["full"], full), KVCacheGroupSpec(["sliding"], sliding)]
    ),
    structured_output_manager=Values(should_advance=lambda *_, **__: False),
    mm_registry=Values(supports_multimodal_inputs=lambda *_: False),
    block_size=BLOCK,
    log_stats=False,
)

sampling = Values(max_tokens=7, min_tokens=0, ignore_eos=True, stop_token_ids=[])
hasher = kv_cache_utils.get_request_block_hasher(BLOCK, sha256)
scheduler.add_request(Request("1", [1], sampling, None, None, arrival_time=0.0, block_hasher=hasher))
prefill, _ = scheduler.schedule(), scheduler.schedule()
scheduler.update_from_output(prefill, ModelRunnerOutput(["1"], {"1": 0}, [[9]], None, {}, []))
scheduler.schedule()
pool = scheduler.kv_cache_manager.block_pool
assert pool.null_block.block_hash is None, "the null block has the hash of a text"

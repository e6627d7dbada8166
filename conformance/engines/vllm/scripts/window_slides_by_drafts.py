"""With asynchronous scheduling and drafts a sliding window gives up a block that is still read if drafts are refused.

Scheduler.schedule counts the drafts of a step in flight as accepted, and moves the window on by them.
"""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

BLOCK, BLOCKS = 4, 7  # tokens of a block; blocks, beside the null block
DRAFTS, WINDOW = 2, 3  # drafts of a step; tokens that a token reads, the last of which is itself
PARTS = ("scheduler", "cache", "model", "parallel", "observability", "speculative", "ec_manager")


class Values(SimpleNamespace):
    """The configuration, and each part of it. What is not said is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self if name.removesuffix("_config") in PARTS else None


config = Values(
    max_num_seqs=2,
    max_num_batched_tokens=8,
    max_model_len=20,
    policy="fcfs",
    long_prefill_token_threshold=0,
    enable_chunked_prefill=True,
    scheduler_reserve_full_isl=True,
    watermark=0.0,
    num_gpu_blocks=BLOCKS + 1,
    enable_prefix_caching=True,
    decode_context_parallel_size=1,
    prefill_context_parallel_size=1,
    pipeline_parallel_size=1,
    get_encoder_cache_manager_obj=lambda *_: None,
    num_speculative_tokens=DRAFTS,
    num_lookahead_tokens=DRAFTS,
    max_in_flight_tokens=16,
    use_eagle=lambda: True,
    uses_draft_model=lambda: False,
    use_dflash=lambda: False,
    use_dspark=lambda: False,
    max_concurrent_batches=2,
    async_scheduling=True,
)
register_all_kvcache_specs(config)
kv_cache_utils.init_none_hash(sha256)
full = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
sliding = SlidingWindowSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32, sliding_window=WINDOW)
groups = [KVCacheGroupSpec(["full"], full, is_eagle_group=True), KVCacheGroupSpec(["sliding"], sliding)]
scheduler = AsyncScheduler(
    vllm_config=config,
    kv_cache_config=KVCacheConfig(BLOCKS + 1, [], groups),
    structured_output_manager=Values(should_advance=lambda *_, **__: False),
    mm_registry=Values(supports_multimodal_inputs=lambda *_: False),
    block_size=BLOCK,
    hash_block_size=BLOCK,
    log_stats=False,
)


def complete(output: Any) -> None:
    """A step is done: each of its requests has sampled a token, and all its drafts were refused."""
    names = list(output.num_scheduled_tokens)
    indices = {name: n for n, name in enumerate(names)}
    scheduler.update_from_output(output, ModelRunnerOutput(names, indices, [[9] for _ in names]))


def add(name: str, length: int) -> Request:
    sampling = Values(max_tokens=5, min_tokens=0, ignore_eos=True, stop_token_ids=[])
    hasher = kv_cache_utils.get_request_block_hasher(BLOCK, sha256)
    request = Request(name, list(range(length)), sampling, None, arrival_time=0.0, block_hasher=hasher)
    scheduler.add_request(request)
    return request


first = add("first", length=3)
output = scheduler.schedule()
held = output.scheduled_new_reqs[0].block_ids[1]  # its blocks of the layers with the window
complete(output)
with_drafts = scheduler.schedule()
add("second", length=2)
given = {block for new in scheduler.schedule().scheduled_new_reqs for group in new.block_ids for block in group}
complete(with_drafts)
read = first.num_tokens - WINDOW  # the first token that the newest one reads
block = held[read // BLOCK]
assert block not in given, f"the newest token reads token {read} in block {block}, which another request has got"

"""A KV event for a part of a block names a parent that no event has told.

With --prefix-match-unit below the size of a block the prefix cache has the last prefix of a prompt that the unit
divides. The BlockStored event for it has one unit of tokens, and the hash of the text before them, which was never
stored, as its parent.
"""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec
from vllm.v1.request import Request

BLOCK, BLOCKS, MATCH = 4, 20, 1  # tokens of a block; blocks, beside the null block; --prefix-match-unit
PARTS = ("scheduler", "cache", "model", "parallel", "observability", "ec_manager", "aux_output")


class Values(SimpleNamespace):
    """The configuration, and each part of it. What is not said is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self if name.removesuffix("_config") in PARTS else None


config = Values(
    max_num_seqs=2,
    max_num_batched_tokens=32,
    max_model_len=20,
    policy="fcfs",
    long_prefill_token_threshold=0,
    enable_chunked_prefill=True,
    scheduler_reserve_full_isl=True,
    watermark=0.0,
    prefill_schedule_interval=1,
    num_gpu_blocks=BLOCKS + 1,
    enable_prefix_caching=True,
    block_size=BLOCK,
    mamba_cache_mode="align",
    decode_context_parallel_size=1,
    prefill_context_parallel_size=1,
    data_parallel_size=1,
    pipeline_parallel_size=1,
    get_encoder_cache_manager_obj=lambda *_: None,
    num_speculative_tokens=0,
    num_lookahead_tokens=0,
    num_prefill_lookahead_tokens=0,
    num_hash_lookahead_tokens=0,
    max_in_flight_tokens=32,
    max_concurrent_batches=1,
    enabled=False,
)
register_all_kvcache_specs(config)
kv_cache_utils.init_none_hash(sha256)
full = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
mamba = MambaSpec(block_size=BLOCK, shapes=((1,),), dtypes=(torch.float32,), mamba_cache_mode="align")
groups = [KVCacheGroupSpec(["full"], full), KVCacheGroupSpec(["mamba"], mamba)]
scheduler = Scheduler(
    vllm_config=config,
    kv_cache_config=KVCacheConfig(BLOCKS + 1, [], groups),
    structured_output_manager=Values(accept_tokens=lambda *_: True, should_advance=lambda *_: False),
    mm_registry=Values(supports_multimodal_inputs=lambda *_: False),
    block_size=BLOCK,
    hash_block_size=MATCH,
    log_stats=False,
)


def add(name: str, prompt: list[int]) -> None:
    sampling = Values(max_tokens=1, min_tokens=0, ignore_eos=True, stop_token_ids=[])
    hasher = kv_cache_utils.get_request_block_hasher(MATCH, sha256)
    scheduler.add_request(Request(name, prompt, sampling, None, arrival_time=0.0, block_hasher=hasher))


scheduler.kv_cache_manager.block_pool.enable_kv_cache_events = True
add("request", [1, 2, 3])
scheduler.schedule()
stored: set[int] = set()
for event in scheduler.kv_cache_manager.take_events():
    told = {event.parent_block_hash} if event.group_idx == 0 else set()  # the layers with full attention
    assert told <= {None, *stored}, f"the parent of a stored block was never stored; its tokens are {event.token_ids}"
    stored |= set(event.block_hashes)

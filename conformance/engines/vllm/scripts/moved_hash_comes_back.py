"""The prefix cache has a mamba state that a later step has overwritten, under the hash of the shorter text.

With asynchronous scheduling a step is made before the token of the step before is known. Its hash of the prompt moves
to a copy of the running block; in the same call the running block gets the hash again.
"""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec
from vllm.v1.outputs import ModelRunnerOutput
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
    max_concurrent_batches=2,
    enabled=False,
)
register_all_kvcache_specs(config)
kv_cache_utils.init_none_hash(sha256)
full = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
mamba = MambaSpec(block_size=BLOCK, shapes=((1,),), dtypes=(torch.float32,), mamba_cache_mode="align")
groups = [KVCacheGroupSpec(["full"], full), KVCacheGroupSpec(["mamba"], mamba)]
scheduler = AsyncScheduler(
    vllm_config=config,
    kv_cache_config=KVCacheConfig(BLOCKS + 1, [], groups),
    structured_output_manager=Values(accept_tokens=lambda *_: True, should_advance=lambda *_: False),
    mm_registry=Values(supports_multimodal_inputs=lambda *_: False),
    block_size=BLOCK,
    hash_block_size=MATCH,
    log_stats=False,
)
flying: list[Any] = []  # of each step the names of its requests and how many tokens they have computed then
output_of: list[Any] = []  # of each step


def add(name: str, prompt: list[int], outputs: int) -> None:
    sampling = Values(max_tokens=outputs, min_tokens=0, ignore_eos=True, stop_token_ids=[])
    hasher = kv_cache_utils.get_request_block_hasher(MATCH, sha256)
    scheduler.add_request(Request(name, prompt, sampling, None, arrival_time=0.0, block_hasher=hasher))


def complete() -> None:
    """The oldest step is done: a request samples a token once its prompt is computed."""
    names, done = flying.pop(0)
    sampled = [[9] if done[name] >= 5 else [] for name in names]
    indices = {name: n for n, name in enumerate(names)}
    scheduler.update_from_output(output_of.pop(0), ModelRunnerOutput(names, indices, sampled))


def schedule() -> None:
    output = scheduler.schedule()
    names = list(output.num_scheduled_tokens)
    flying.append((names, {name: scheduler.requests[name].num_computed_tokens for name in names}))
    output_of.append(output)


add("request", [1, 2, 3, 4, 5], 3)
schedule()
complete()
schedule()
schedule()  # computes the sixth token, and writes the state after it into the running block
pool, groups_of_blocks = scheduler.kv_cache_manager.block_pool, scheduler.kv_cache_manager.get_block_ids("request")
running = pool.blocks[groups_of_blocks[1][-1]]
assert running.block_hash is None, "the block of the running state has the hash of the prompt, and holds a later state"

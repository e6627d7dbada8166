"""With a KV connector the prefix cache cannot be reset while a step is in flight: the reset fails half way.

Scheduler.reset_prefix_cache preempts each request, keeps its blocks until the step is done, and finds that they are in
use. So the prefix cache keeps the KV of the old weights.
"""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched import scheduler as scheduling
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

BLOCK, BLOCKS = 4, 3  # tokens of a block; blocks of the server, beside the null block
PARTS = ("scheduler", "cache", "model", "parallel", "observability", "ec_manager", "aux_output", "kv_transfer")


class Values(SimpleNamespace):
    """The configuration, and each part of it. What is not said is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self if name.removesuffix("_config") in PARTS else None


class Connector:
    """The scheduler's half of a KV connector. No other server has what is asked for."""

    requires_kv_delivery = supports_divergent_local_hybrid_hits = False

    def get_num_new_matched_tokens(self, *_: Any) -> tuple[int, bool]:
        return 0, False

    def __getattr__(self, _: str) -> Any:
        return lambda *_: None  # no other call does anything


config = Values(
    max_num_seqs=2,
    max_num_batched_tokens=8,
    max_model_len=10,
    policy="fcfs",
    long_prefill_token_threshold=0,
    enable_chunked_prefill=True,
    scheduler_reserve_full_isl=True,
    watermark=0.0,
    prefill_schedule_interval=1,
    num_gpu_blocks=BLOCKS + 1,
    enable_prefix_caching=True,
    mamba_cache_mode="none",
    decode_context_parallel_size=1,
    pipeline_parallel_size=1,
    is_kv_consumer=True,
    get_encoder_cache_manager_obj=lambda *_: None,
    num_speculative_tokens=0,
    num_lookahead_tokens=0,
    num_prefill_lookahead_tokens=0,
    num_hash_lookahead_tokens=0,
    max_in_flight_tokens=16,
    max_concurrent_batches=2,  # asynchronous scheduling
)
scheduling.KVConnectorFactory = Values(create_connector=lambda **_: Connector())
register_all_kvcache_specs(config)
kv_cache_utils.init_none_hash(sha256)
spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
scheduler = AsyncScheduler(
    vllm_config=config,
    kv_cache_config=KVCacheConfig(BLOCKS + 1, [], [KVCacheGroupSpec(["layer"], spec)]),
    structured_output_manager=Values(accept_tokens=lambda *_: True, should_advance=lambda *_: False),
    mm_registry=Values(supports_multimodal_inputs=lambda *_: False),
    block_size=BLOCK,
    hash_block_size=BLOCK,
    log_stats=False,
)


sampling = Values(max_tokens=2, min_tokens=0, ignore_eos=True, stop_token_ids=[])
hasher = kv_cache_utils.get_request_block_hasher(BLOCK, sha256)
scheduler.add_request(Request("request", list(range(8)), sampling, None, arrival_time=0.0, block_hasher=hasher))
output = scheduler.schedule()
failed = "it did not fail"
try:
    scheduler.reset_prefix_cache(reset_running_requests=True)
except RuntimeError as error:
    failed = str(error)
scheduler.update_from_output(output, ModelRunnerOutput(["request"], {"request": 0}, [[9]]))
kept = len(scheduler.kv_cache_manager.block_pool.cached_block_hash_to_block)
assert not kept, f"after the reset the prefix cache has {kept} blocks of the old weights, and no transfer ran: {failed}"

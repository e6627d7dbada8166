"""Resetting the prefix cache fails where a step is in flight, after every request was preempted.

With a KV connector the blocks of a preempted request are kept until its step is done. reset_prefix_cache counts them as
used, and raises RuntimeError, though no request waits for a transfer.
"""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1 import SupportsHMA
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched import scheduler as scheduler_module
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

BLOCK, BLOCKS, PROMPT, OUTPUTS = 4, 2, 1, 2  # tokens of a block; blocks beside the null block; tokens of the request


class Values(SimpleNamespace):
    """A part of the configuration. What is not said is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class Connector(SupportsHMA):  # type: ignore[misc]
    """The connector of a server that loads asynchronously. Here nothing is to be loaded."""

    requires_kv_delivery = False

    def __init__(self) -> None:
        pass

    def get_num_new_matched_tokens(self, *_: Any) -> tuple[int, bool]:
        """No other server has anything of the request."""
        return 0, False

    def __getattribute__(self, name: str) -> Any:
        """Of all other calls of a connector this server needs none."""
        here = name.startswith("__") or name in Connector.__dict__
        return object.__getattribute__(self, name) if here else lambda *_, **__: None


scheduler_module.KVConnectorFactory = Values(create_connector=lambda *_, **__: Connector())
config = Values(
    scheduler_config=Values(
        max_num_seqs=1,
        max_num_batched_tokens=8,
        max_num_encoder_input_tokens=0,
        encoder_cache_size=0,
        policy="fcfs",
        long_prefill_token_threshold=0,
        enable_chunked_prefill=True,
        watermark=0.0,
        prefill_schedule_interval=1,
        scheduler_reserve_full_isl=True,
        async_scheduling=True,
    ),
    cache_config=Values(
        num_gpu_blocks=BLOCKS + 1, block_size=BLOCK, enable_prefix_caching=False, mamba_cache_mode="none"
    ),
    kv_transfer_config=Values(kv_load_failure_policy="recompute", is_kv_consumer=True, is_kv_transfer_instance=True),
    model_config=Values(max_model_len=16, runner_type="generate"),
    parallel_config=Values(
        data_parallel_index=0,
        decode_context_parallel_size=1,
        prefill_context_parallel_size=1,
        pipeline_parallel_size=1,
        cp_kv_cache_interleave_size=1,
    ),
    observability_config=Values(per_request_spec_decode_metrics="none"),
    ec_manager_config=Values(get_encoder_cache_manager_obj=lambda *_: None),
    aux_output_config=Values(enabled=False),
    num_speculative_tokens=0,
    num_lookahead_tokens=0,
    num_prefill_lookahead_tokens=0,
    num_hash_lookahead_tokens=0,
    max_in_flight_tokens=8,
    max_concurrent_batches=2,
)
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
sampling = Values(max_tokens=OUTPUTS, min_tokens=0, ignore_eos=True, stop_token_ids=[])
hasher = kv_cache_utils.get_request_block_hasher(BLOCK, sha256)
scheduler.add_request(Request("1", list(range(PROMPT)), sampling, None, 0.0, block_hasher=hasher))
scheduler.schedule()  # the step is in flight
failed = ""
try:
    scheduler.reset_prefix_cache(reset_running_requests=True)
except RuntimeError as error:
    failed = str(error)
assert not failed, f"the prefix cache keeps KV cache of the old weights, and every request was preempted: {failed}"

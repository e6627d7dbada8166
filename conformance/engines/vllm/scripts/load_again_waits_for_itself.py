"""A request whose KV transfer has failed waits for ever, and the server stands still with every block free.

The scheduler keeps blocks in reserve for prompts that are under way. It counts the request itself among them when the
connector offers the transfer again, and then finds too few free blocks for the request.
"""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1 import SupportsHMA
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched import scheduler as scheduler_module
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request

BLOCK, BLOCKS, PROMPT, OUTPUTS = 4, 3, 8, 1  # tokens of a block; blocks beside the null block; tokens of the request
loading: list[int] = []  # blocks into which a transfer has begun


class Values(SimpleNamespace):
    """A part of the configuration. What is not said is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class Connector(SupportsHMA):  # type: ignore[misc]
    """The connector of a server that loads asynchronously: another server has the whole prompt."""

    requires_kv_delivery = False

    def __init__(self) -> None:
        pass

    def get_num_new_matched_tokens(self, _: Any, computed: int) -> tuple[int, bool]:
        """The rest of the prompt comes, and comes again after a transfer that has failed."""
        return PROMPT - computed, True

    def update_state_after_alloc(self, _: Any, blocks: Any, *__: Any) -> None:
        """A transfer into these blocks begins."""
        loading.extend(blocks.get_block_ids()[0])

    def get_loaded_kv_cache_group_ids(self, *_: Any) -> tuple[int, ...]:
        """Blocks need not be cleared before a transfer."""
        return ()

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
        async_scheduling=False,
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
    max_concurrent_batches=1,
)
register_all_kvcache_specs(config)
kv_cache_utils.init_none_hash(sha256)
spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
scheduler = scheduler_module.Scheduler(
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
step = scheduler.schedule()
lost, loading[:] = set(loading), []
nothing_came = KVConnectorOutput(finished_sending=set(), finished_recving={"1"}, invalid_block_ids=lost)
done = ModelRunnerOutput([], {}, [], None, {}, [], kv_connector_output=nothing_came)
scheduler.update_from_output(step, done)
for _ in range(5):
    step = scheduler.schedule()
    if step.num_scheduled_tokens or loading:
        break
    scheduler.update_from_output(step, ModelRunnerOutput([], {}, [], None, {}, []))
free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
going = bool(loading or step.num_scheduled_tokens)
assert going, f"the request is neither computed nor loaded in 5 steps, and {free} of {BLOCKS} blocks are free"

"""A request whose KV transfer failed never runs again, and nobody behind it, though every block is free.

The connector offers the transfer again. The scheduler still counts the request among the prompts that are under way:
it keeps blocks in reserve for the request, and finds then that too few are left for it.
"""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.v1.core.sched import scheduler as scheduling
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request

BLOCK, BLOCKS = 4, 3  # tokens of a block; blocks of the server, beside the null block
PARTS = ("scheduler", "cache", "model", "parallel", "observability", "ec_manager", "aux_output", "kv_transfer")
begun: dict[str, set[int]] = {}  # by request: the blocks that a transfer fills


class Values(SimpleNamespace):
    """The configuration, and each part of it. What is not said is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self if name.removesuffix("_config") in PARTS else None


class Connector:
    """The scheduler's half of a KV connector that loads asynchronously: another server has each prompt."""

    requires_kv_delivery = supports_divergent_local_hybrid_hits = False

    def get_num_new_matched_tokens(self, request: Request, computed: int) -> tuple[int, bool]:
        return request.num_tokens - computed, True

    def update_state_after_alloc(self, request: Request, blocks: Any, tokens: int) -> None:
        if tokens:
            begun[request.request_id] = set(blocks.get_block_ids()[0])

    def get_loaded_kv_cache_group_ids(self, _: Request) -> tuple[int, ...]:
        return ()

    def request_finished(self, *_: Any) -> tuple[bool, None]:
        return False, None

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
    mamba_cache_mode="none",
    decode_context_parallel_size=1,
    pipeline_parallel_size=1,
    kv_load_failure_policy="recompute",
    get_encoder_cache_manager_obj=lambda *_: None,
    num_speculative_tokens=0,
    num_lookahead_tokens=0,
    num_prefill_lookahead_tokens=0,
    num_hash_lookahead_tokens=0,
    max_in_flight_tokens=8,
    max_concurrent_batches=1,
)
scheduling.KVConnectorFactory = Values(create_connector=lambda **_: Connector())
register_all_kvcache_specs(config)
spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
scheduler = scheduling.Scheduler(
    vllm_config=config,
    kv_cache_config=KVCacheConfig(BLOCKS + 1, [], [KVCacheGroupSpec(["layer"], spec)]),
    structured_output_manager=Values(accept_tokens=lambda *_: True, should_advance=lambda *_: False),
    mm_registry=Values(supports_multimodal_inputs=lambda *_: False),
    block_size=BLOCK,
    hash_block_size=BLOCK,
    log_stats=False,
)


def step(came: bool) -> None:
    """The scheduler makes a step, and workers compute it. The transfers that are under way end; ``came``: with KV."""
    output = scheduler.schedule()
    lost = set() if came else set().union(*begun.values())
    ended = KVConnectorOutput(finished_recving=set(begun), invalid_block_ids=lost)
    begun.clear()
    names = list(output.num_scheduled_tokens)
    indices = {name: n for n, name in enumerate(names)}
    result = ModelRunnerOutput(names, indices, [[9] for _ in names], kv_connector_output=ended)
    scheduler.update_from_output(output, result)


sampling = Values(max_tokens=1, min_tokens=0, ignore_eos=True, stop_token_ids=[])
scheduler.add_request(Request("request", list(range(8)), sampling, None, arrival_time=0.0))
step(came=False)
for _ in range(9):
    step(came=True)
free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
assert not scheduler.requests, f"{free} of {BLOCKS} blocks are free, and the request waits for ever"

"""With a KV connector two requests wait for each other for ever, and no step computes anything any more.

A preempted request stands first in the queue and finds too few free blocks. A request whose KV was loaded stands behind
it with the other blocks, and gives up none: Scheduler.schedule leaves its loop at the first one that finds no room.
"""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.v1.core.sched import scheduler as scheduling
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request

BLOCK, BLOCKS = 4, 4  # tokens of a block; blocks of the server, beside the null block
PARTS = ("scheduler", "cache", "model", "parallel", "observability", "ec_manager", "aux_output", "kv_transfer")
begun: set[str] = set()  # the requests into whose blocks a transfer is under way


class Values(SimpleNamespace):
    """The configuration, and each part of it. What is not said is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self if name.removesuffix("_config") in PARTS else None


class Connector:
    """The scheduler's half of a KV connector that loads asynchronously: another server has the prompt of ``loaded``."""

    requires_kv_delivery = supports_divergent_local_hybrid_hits = False

    def get_num_new_matched_tokens(self, request: Request, computed: int) -> tuple[int, bool]:
        more = request.num_prompt_tokens - computed if request.request_id == "loaded" else 0
        return more, more > 0

    def update_state_after_alloc(self, request: Request, _: Any, tokens: int) -> None:
        if tokens:
            begun.add(request.request_id)

    def get_loaded_kv_cache_group_ids(self, _: Request) -> tuple[int, ...]:
        return ()

    def request_finished(self, *_: Any) -> tuple[bool, None]:
        return False, None

    def __getattr__(self, _: str) -> Any:
        return lambda *_: None  # no other call does anything


config = Values(
    max_num_seqs=2,
    max_num_batched_tokens=16,
    max_model_len=10,
    policy="priority",
    long_prefill_token_threshold=0,
    enable_chunked_prefill=True,
    scheduler_reserve_full_isl=True,
    watermark=0.0,
    num_gpu_blocks=BLOCKS + 1,
    decode_context_parallel_size=1,
    pipeline_parallel_size=1,
    get_encoder_cache_manager_obj=lambda *_: None,
    num_speculative_tokens=0,
    num_lookahead_tokens=0,
    num_prefill_lookahead_tokens=0,
    max_in_flight_tokens=16,
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


def step() -> None:
    """The scheduler makes a step, and workers compute it. The transfers that are under way end."""
    output = scheduler.schedule()
    names = list(output.num_scheduled_tokens)
    indices = {name: n for n, name in enumerate(names)}
    ended = KVConnectorOutput(finished_recving=set(begun))
    begun.clear()
    result = ModelRunnerOutput(names, indices, [[9] for _ in names], kv_connector_output=ended)
    scheduler.update_from_output(output, result)


sampling = Values(max_tokens=2, min_tokens=0, ignore_eos=True, stop_token_ids=[])
for at, name in enumerate(("computed", "loaded")):
    scheduler.add_request(Request(name, list(range(8)), sampling, None, arrival_time=float(at)))
for _ in range(20):
    step()
waiting = " and ".join(scheduler.requests)
free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
assert not waiting, f"no step computes anything any more: {waiting} wait, with {free} of {BLOCKS} blocks free"

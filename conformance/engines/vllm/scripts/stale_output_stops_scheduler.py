"""With asynchronous scheduling the engine stops by an assertion: a token of a preempted request is counted twice.

A request is preempted while a step of it is in flight, and starts again in the next step. The token of the first step
is counted as if the new step had sampled it.
"""

from collections import deque
from types import SimpleNamespace
from typing import Any

import torch
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

BLOCK, BLOCKS = 2, 4  # tokens of a block; blocks of the server, beside the null block
PARTS = ("scheduler", "cache", "model", "parallel", "observability", "ec_manager")


class Values(SimpleNamespace):
    """The configuration, and each part of it. What is not said is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self if name.removesuffix("_config") in PARTS else None


config = Values(
    max_num_seqs=2,
    max_num_batched_tokens=4,
    max_model_len=10,
    policy="fcfs",
    long_prefill_token_threshold=0,
    enable_chunked_prefill=True,
    scheduler_reserve_full_isl=True,
    watermark=0.0,
    num_gpu_blocks=BLOCKS + 1,
    decode_context_parallel_size=1,
    prefill_context_parallel_size=1,
    pipeline_parallel_size=1,
    get_encoder_cache_manager_obj=lambda *_: None,
    num_speculative_tokens=0,
    num_lookahead_tokens=0,
    max_in_flight_tokens=8,
    max_concurrent_batches=2,
    async_scheduling=True,
)
register_all_kvcache_specs(config)
spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
scheduler = AsyncScheduler(
    vllm_config=config,
    kv_cache_config=KVCacheConfig(BLOCKS + 1, [], [KVCacheGroupSpec(["layer"], spec)]),
    structured_output_manager=Values(should_advance=lambda *_, **__: False),
    mm_registry=Values(supports_multimodal_inputs=lambda *_: False),
    block_size=BLOCK,
    hash_block_size=BLOCK,
    log_stats=False,
)


flying: deque[SchedulerOutput] = deque()  # the steps in flight


def add(name: str, length: int, outputs: int) -> None:
    sampling = Values(max_tokens=outputs, min_tokens=0, ignore_eos=True, stop_token_ids=[])
    scheduler.add_request(Request(name, list(range(length)), sampling, None, arrival_time=float(name)))


def schedule() -> None:
    flying.append(scheduler.schedule())


def complete() -> None:
    """The oldest step in flight is done: each of its requests has sampled a token."""
    output = flying.popleft()
    names = list(output.num_scheduled_tokens)
    indices = {name: n for n, name in enumerate(names)}
    scheduler.update_from_output(output, ModelRunnerOutput(names, indices, [[9] for _ in names]))


add("1", length=4, outputs=2)
add("2", length=2, outputs=2)
schedule()
complete()
schedule()
schedule()
add("3", length=1, outputs=1)
schedule()
wrong: dict[str, int] = {}
try:
    while flying:
        complete()
except AssertionError:
    waits = {name: request.num_output_placeholders for name, request in scheduler.requests.items()}
    wrong = {name: count for name, count in waits.items() if count < 0}
    if not wrong:
        raise
assert not wrong, f"an assertion stops the engine, since it waits for fewer than no tokens of a request: {wrong}"

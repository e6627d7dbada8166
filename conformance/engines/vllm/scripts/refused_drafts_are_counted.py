"""With asynchronous scheduling and drafts the KV of a preempted request is computed twice.

The request is preempted while a step of it is in flight, and starts again in the next step. The drafts of the first
step that were refused are taken off the computed tokens of the new start, which never counted them.
"""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

BLOCK, BLOCKS, DRAFTS = 4, 2, 2  # tokens of a block; blocks, beside the null block; drafts of a step
PARTS = ("scheduler", "cache", "model", "parallel", "observability", "speculative", "ec_manager")


class Values(SimpleNamespace):
    """The configuration, and each part of it. What is not said is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self if name.removesuffix("_config") in PARTS else None


config = Values(
    max_num_seqs=1,
    max_num_batched_tokens=8,
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
spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
scheduler = AsyncScheduler(
    vllm_config=config,
    kv_cache_config=KVCacheConfig(BLOCKS + 1, [], [KVCacheGroupSpec(["layer"], spec, is_eagle_group=True)]),
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


sampling = Values(max_tokens=5, min_tokens=0, ignore_eos=True, stop_token_ids=[])
request = Request("request", list(range(3)), sampling, None, arrival_time=0.0)
scheduler.add_request(request)
first, with_drafts = scheduler.schedule(), scheduler.schedule()
complete(first)
scheduler.schedule()  # finds no free block for the request, and preempts it
again = scheduler.schedule()
complete(with_drafts)
computed, counted = again.num_scheduled_tokens.get("request", 0), request.num_computed_tokens
assert counted == computed, f"the request has KV of {computed} tokens and counts {counted}: it computes the rest twice"

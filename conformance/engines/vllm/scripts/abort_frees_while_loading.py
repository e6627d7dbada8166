"""With a KV connector the transfer of an aborted request goes on, and writes over KV of another request.

Scheduler.finish_requests gives back the blocks of a request that waits for its transfer, while it is under way.
"""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.v1.core.sched import scheduler as scheduling
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request, RequestStatus

BLOCK, BLOCKS = 4, 1  # tokens of a block; blocks of the server, beside the null block
PARTS = ("scheduler", "cache", "model", "parallel", "observability", "kv_transfer")
filled: set[int] = set()  # the blocks into which transfers are under way


class Values(SimpleNamespace):
    """The configuration, and each part of it. What is not said is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self if name.removesuffix("_config") in PARTS else None


class Connector:
    """The scheduler's half of a KV connector that loads asynchronously: another server has the prompt of ``loaded``."""

    def get_num_new_matched_tokens(self, request: Request, computed: int) -> tuple[int, bool]:
        more = request.num_prompt_tokens - computed if request.request_id == "loaded" else 0
        return more, more > 0

    def update_state_after_alloc(self, _: Request, blocks: Any, tokens: int) -> None:
        if tokens:
            filled.update(blocks.get_block_ids()[0])

    def request_finished(self, *_: Any) -> tuple[bool, None]:
        return False, None

    def __getattr__(self, _: str) -> Any:
        return lambda *_: None  # no other call does anything


config = Values(
    max_num_seqs=1,
    max_num_batched_tokens=8,
    max_model_len=10,
    policy="fcfs",
    long_prefill_token_threshold=0,
    enable_chunked_prefill=True,
    scheduler_reserve_full_isl=True,
    num_gpu_blocks=BLOCKS + 1,
    decode_context_parallel_size=1,
    prefill_context_parallel_size=1,
    pipeline_parallel_size=1,
    num_speculative_tokens=0,
    max_in_flight_tokens=16,
)
scheduling.KVConnectorFactory = Values(create_connector=lambda **_: Connector())
spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
scheduler = scheduling.Scheduler(
    vllm_config=config,
    kv_cache_config=KVCacheConfig(BLOCKS + 1, [], [KVCacheGroupSpec(["layer"], spec)]),
    structured_output_manager=Values(accept_tokens=lambda *_: True, should_advance=lambda *_: False),
    mm_registry=Values(supports_multimodal_inputs=lambda *_: False),
    block_size=BLOCK,
    log_stats=False,
)
sampling = Values(max_tokens=1, min_tokens=0, ignore_eos=True, stop_token_ids=[])
scheduler.add_request(Request("loaded", list(range(4)), sampling, None, eos_token_id=None, arrival_time=0.0))
scheduler.schedule()
scheduler.finish_requests("loaded", RequestStatus.FINISHED_ABORTED)
scheduler.add_request(Request("computed", list(range(4)), sampling, None, eos_token_id=None, arrival_time=1.0))
given = {block for request in scheduler.schedule().scheduled_new_reqs for block in request.block_ids[0]}
both = sorted(given & filled)
assert not both, f"a request computes its KV in blocks {both}, into which the transfer of an aborted one still writes"

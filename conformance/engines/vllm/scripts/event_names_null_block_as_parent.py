"""A server that publishes KV events stops when drafts bring a request far beyond the end of a block with a window.

All layers of the model have a window: beside others the release would make them full attention. The block gets its
hash, and the event that tells of it names the block before it as the parent. That one has left the window, the null
block stands in its place, and an assertion about the parent's hash fails.
"""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request

BLOCK, BLOCKS, DRAFTS, WINDOW = (
    4,
    8,
    2,
    6,
)  # tokens of a block; blocks, beside the null block; drafts of a step; the window
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
    max_model_len=20,
    policy="fcfs",
    long_prefill_token_threshold=0,
    enable_chunked_prefill=True,
    scheduler_reserve_full_isl=True,
    watermark=0.0,
    num_gpu_blocks=BLOCKS + 1,
    enable_prefix_caching=True,
    decode_context_parallel_size=1,
    prefill_context_parallel_size=1,
    pipeline_parallel_size=1,
    get_encoder_cache_manager_obj=lambda *_: None,
    num_speculative_tokens=DRAFTS,
    num_lookahead_tokens=DRAFTS,
    max_in_flight_tokens=8,
    use_eagle=lambda: False,
    uses_draft_model=lambda: False,
    use_dflash=lambda: False,
    use_dspark=lambda: False,
    kv_events_config=SimpleNamespace(enable_kv_cache_events=True, publisher="null", data_parallel_rank=0),
)
kv_cache_utils.init_none_hash(sha256)
sliding = SlidingWindowSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32, sliding_window=WINDOW)
groups = [KVCacheGroupSpec(["sliding"], sliding)]
scheduler = Scheduler(
    vllm_config=config,
    kv_cache_config=KVCacheConfig(BLOCKS + 1, [], groups),
    structured_output_manager=Values(should_advance=lambda *_, **__: False),
    mm_registry=Values(supports_multimodal_inputs=lambda *_: False),
    block_size=BLOCK,
    log_stats=False,
)


def step(*sampled: int) -> None:
    """A step of the request, in which it samples these tokens: the drafts that were accepted, and one more."""
    output = scheduler.schedule()
    scheduler.update_from_output(output, ModelRunnerOutput(["1"], {"1": 0}, [list(sampled)], None, {}, []))
    scheduler.update_draft_token_ids(DraftTokenIds(["1"], [[7] * DRAFTS]))


sampling = Values(max_tokens=8, min_tokens=0, ignore_eos=True, stop_token_ids=[])
hasher = kv_cache_utils.get_request_block_hasher(BLOCK, sha256)
scheduler.add_request(Request("1", list(range(6)), sampling, None, None, arrival_time=0.0, block_hasher=hasher))
step(9)
step(7, 7, 9)
stopped = False
try:
    step(9)
except AssertionError:
    stopped = True
assert not stopped, "the scheduler stops: the parent of a block is the null block, which has no hash"

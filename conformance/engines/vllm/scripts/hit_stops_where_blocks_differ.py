"""With an EAGLE head the engine core stops at the first hit, where the blocks of a window are smaller than others.

The head needs half as much memory for a token as a layer of the model, so that vLLM gives it blocks of twice the
tokens (get_kv_cache_groups). SlidingWindowManager.find_longest_cache_hit asserts that all blocks have one size.
"""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils, single_type_kv_cache_manager
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, SlidingWindowSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

BLOCK, BLOCKS = 4, 12  # tokens of a block of the model; blocks, beside the null block
PARTS = ("scheduler", "cache", "model", "parallel", "observability", "ec_manager", "speculative")


class Values(SimpleNamespace):
    """The configuration, and each part of it. What is not said is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self if name.removesuffix("_config") in PARTS else None


config = Values(
    max_num_seqs=1,
    max_num_batched_tokens=32,
    max_model_len=32,
    policy="fcfs",
    long_prefill_token_threshold=0,
    enable_chunked_prefill=True,
    scheduler_reserve_full_isl=True,
    watermark=0.0,
    num_gpu_blocks=BLOCKS + 1,
    enable_prefix_caching=True,
    block_size=BLOCK,
    mamba_cache_mode="none",
    decode_context_parallel_size=1,
    prefill_context_parallel_size=1,
    pipeline_parallel_size=1,
    get_encoder_cache_manager_obj=lambda *_: None,
    num_speculative_tokens=1,
    num_lookahead_tokens=1,
    use_eagle=lambda: True,
    **{name: lambda: False for name in ("uses_draft_model", "use_dflash", "use_dspark")},
    max_in_flight_tokens=32,
    max_concurrent_batches=1,
)
getattr(single_type_kv_cache_manager, "register_all_kvcache_specs", lambda _: None)(config)
kv_cache_utils.init_none_hash(sha256)
layer: dict[str, Any] = {"block_size": BLOCK, "head_size": 1, "dtype": torch.float32}
layers = {
    "model": SlidingWindowSpec(**layer, num_kv_heads=2, sliding_window=6),
    "head": FullAttentionSpec(**layer, num_kv_heads=1),
}
groups = KVCacheConfig(BLOCKS + 1, [], kv_cache_utils.get_kv_cache_groups(config, layers))
sizes = {group.layer_names[0]: group.kv_cache_spec.block_size for group in groups.kv_cache_groups}
given = {"block_size": BLOCK}
if "hash_block_size" in Scheduler.__init__.__annotations__:
    given["block_size"], given["hash_block_size"] = kv_cache_utils.resolve_kv_cache_block_sizes(groups, config)
scheduler = Scheduler(
    vllm_config=config,
    kv_cache_config=groups,
    structured_output_manager=Values(should_advance=lambda *_, **__: False),
    mm_registry=Values(supports_multimodal_inputs=lambda *_: False),
    log_stats=False,
    **given,
)


def add(name: str) -> None:
    """A request with the same prompt comes."""
    sampling = Values(max_tokens=1, min_tokens=0, ignore_eos=True, stop_token_ids=[])
    hasher = kv_cache_utils.get_request_block_hasher(BLOCK, sha256)
    more = {"eos_token_id": None} if "eos_token_id" in Request.__init__.__annotations__ else {}
    prompt = list(range(17))
    scheduler.add_request(Request(name, prompt, sampling, None, arrival_time=0.0, block_hasher=hasher, **more))


add("first")
output = scheduler.schedule()
scheduler.update_from_output(output, ModelRunnerOutput(["first"], {"first": 0}, [[9]], None, {}, []))
add("second")
stopped = None
try:
    scheduler.schedule()
except AssertionError as error:
    stopped = error
assert stopped is None, f"the engine core stops, since blocks have {sizes} tokens: {stopped}"

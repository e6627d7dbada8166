"""A request of a model with mamba layers keeps a state of each chunk of its prompt until it ends.

With asynchronous scheduling a state can be freed when the step that reads it is done, one step after the next state was
allocated. MambaManager.remove_skipped_blocks walks back through the states of the request and stops at the first null
block. Where a chunk has more than one block, there is a null block before each state.
"""

from collections import deque
from types import SimpleNamespace
from typing import Any

import torch
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

BLOCK, BLOCKS, CHUNK, CHUNKS = 4, 40, 8, 6  # tokens of a block and of a step; blocks, beside the null block
PARTS = ("scheduler", "cache", "model", "parallel", "observability", "ec_manager", "aux_output")


class Values(SimpleNamespace):
    """The configuration, and each part of it. What is not said is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self if name.removesuffix("_config") in PARTS else None


config = Values(
    **{"max_num_seqs": 1, "max_num_batched_tokens": CHUNK, "max_model_len": 64, "max_in_flight_tokens": 2 * CHUNK},
    **{"policy": "fcfs", "long_prefill_token_threshold": 0, "enable_chunked_prefill": True, "watermark": 0.0},
    **{"num_gpu_blocks": BLOCKS + 1, "enable_prefix_caching": True, "block_size": BLOCK, "mamba_cache_mode": "align"},
    **{f"{what}_parallel_size": 1 for what in ("decode_context", "prefill_context", "pipeline", "tensor")},
    **{f"num_{what}_tokens": 0 for what in ("speculative", "lookahead", "prefill_lookahead", "hash_lookahead")},
    **{"max_concurrent_batches": 2, "data_parallel_index": 0, "scheduler_reserve_full_isl": True},
    **{"async_scheduling": True, "prefill_schedule_interval": 1},
    get_encoder_cache_manager_obj=lambda *_: None,
)
register_all_kvcache_specs(config)
kv_cache_utils.init_none_hash(sha256)
full = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
mamba = MambaSpec(
    block_size=BLOCK,
    **{"shapes": ((1,),), "dtypes": (torch.float32,), "num_speculative_blocks": 0, "mamba_cache_mode": "align"},
)
groups = [KVCacheGroupSpec(["full"], full), KVCacheGroupSpec(["mamba"], mamba)]
scheduler = AsyncScheduler(
    **{"vllm_config": config, "kv_cache_config": KVCacheConfig(BLOCKS + 1, [], groups), "log_stats": False},
    **{"block_size": BLOCK, "hash_block_size": BLOCK},
    structured_output_manager=Values(accept_tokens=lambda *_: True, should_advance=lambda *_, **__: False),
    mm_registry=Values(supports_multimodal_inputs=lambda *_: False),
)
sampling = Values(max_tokens=2, min_tokens=0, ignore_eos=True, stop_token_ids=[])
hasher = kv_cache_utils.get_request_block_hasher(BLOCK, sha256)
request = Request("request", [*range(CHUNK * CHUNKS)], sampling, None, arrival_time=0.0, block_hasher=hasher)
scheduler.add_request(request)
flying = deque([scheduler.schedule()])
for _ in range(1, CHUNKS):
    flying.append(scheduler.schedule())  # while the step before it is computed
    output = flying.popleft()
    scheduler.update_from_output(output, ModelRunnerOutput(["request"], {"request": 0}, [[]]))
states = [block for block in scheduler.kv_cache_manager.get_block_ids("request")[1] if block]
# The step in flight reads one state and writes another; the step before it, which is done, has read a third one.
assert len(states) <= 3, f"after {CHUNKS} chunks of a prompt {len(states)} states are kept, of which 3 may be in use"

"""A prompt that comes twice stops the server that computes prompts for another one, if its model has mamba layers.

With NixlConnector such a server leaves the last token of a prompt to the server that answers. Scheduler.schedule first
looks up how many tokens of the whole prompt are cached, all but one of it, and then the connector takes its last token
away. No token is left to compute, and an assertion ends the engine core.
"""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1 import SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched import scheduler as scheduling
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

BLOCK, BLOCKS = 4, 10  # tokens of a block; blocks, beside the null block
PARTS = ("scheduler", "cache", "model", "parallel", "observability", "ec_manager", "aux_output", "kv_transfer")


class Values(SimpleNamespace):
    """The configuration, and each part of it. What is not said is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self if name.removesuffix("_config") in PARTS else None


class Connector(NixlPullConnectorScheduler, SupportsHMA):  # type: ignore[misc]
    """The scheduler's half of NixlConnector, as the connector itself calls it."""

    requires_kv_delivery, supports_divergent_local_hybrid_hits = False, True
    request_finished_all_groups = NixlPullConnectorScheduler.request_finished

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_: None  # no other call does anything


config = Values(
    **{"max_num_seqs": 1, "max_num_batched_tokens": 16, "max_model_len": 16, "max_in_flight_tokens": 16},
    **{"policy": "fcfs", "long_prefill_token_threshold": 0, "enable_chunked_prefill": True, "watermark": 0.0},
    **{"num_gpu_blocks": BLOCKS + 1, "enable_prefix_caching": True, "block_size": BLOCK, "mamba_cache_mode": "align"},
    **{f"{what}_parallel_size": 1 for what in ("decode_context", "prefill_context", "pipeline", "tensor")},
    **{f"num_{what}_tokens": 0 for what in ("speculative", "lookahead", "prefill_lookahead", "hash_lookahead")},
    **{"max_concurrent_batches": 1, "data_parallel_index": 0, "scheduler_reserve_full_isl": True},
    prefill_schedule_interval=1,
    get_encoder_cache_manager_obj=lambda *_: None,
    get_from_extra_config=lambda _, default: default,
)
register_all_kvcache_specs(config)
kv_cache_utils.init_none_hash(sha256)
full = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
mamba = MambaSpec(
    block_size=BLOCK,
    **{"shapes": ((1,),), "dtypes": (torch.float32,), "num_speculative_blocks": 0, "mamba_cache_mode": "align"},
)
groups = [KVCacheGroupSpec(["full"], full), KVCacheGroupSpec(["mamba"], mamba)]
kv_cache = KVCacheConfig(BLOCKS + 1, [], groups)
scheduling.KVConnectorFactory = Values(create_connector=lambda **_: Connector(config, "server", kv_cache))
scheduler = scheduling.Scheduler(
    **{"vllm_config": config, "kv_cache_config": kv_cache, "log_stats": False},
    **{"block_size": BLOCK, "hash_block_size": BLOCK},
    structured_output_manager=Values(accept_tokens=lambda *_: True, should_advance=lambda *_, **__: False),
    mm_registry=Values(supports_multimodal_inputs=lambda *_: False),
)


def add(name: str) -> Request:
    """A prompt of nine tokens comes, which is computed for another server."""
    params = {"do_remote_decode": True, "do_remote_prefill": False}  # what a proxy says
    sampling = Values(max_tokens=1, min_tokens=0, ignore_eos=True, extra_args={"kv_transfer_params": params})
    hasher = kv_cache_utils.get_request_block_hasher(BLOCK, sha256)
    made = Request(name, [*range(9)], sampling, None, arrival_time=0.0, block_hasher=hasher)
    scheduler.add_request(made)
    return made


def step() -> None:
    """The scheduler makes a step, and workers compute it."""
    output = scheduler.schedule()
    names = list(output.num_scheduled_tokens)
    indices = {name: n for n, name in enumerate(names)}
    scheduler.update_from_output(output, ModelRunnerOutput(names, indices, [[9] for _ in names]))


add("first")
step()
second = add("second")
wrong = ""
try:
    step()
except AssertionError:
    if second.num_tokens == 9:
        raise
    wrong = f"8 tokens of the prompt are cached, and it has {second.num_tokens} tokens when they are scheduled"
assert not wrong, f"an assertion stops the engine: {wrong}"

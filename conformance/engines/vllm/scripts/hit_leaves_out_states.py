"""With a KV connector a request of a model with mamba layers goes on from a state that nobody has computed.

Scheduler.schedule takes the longest hit of all groups of layers. The attention layers have the beginning of the prompt
in the prefix cache, the mamba layers have no state after it, and no connector has one.
"""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1 import SupportsHMA
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched import scheduler as scheduling
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

BLOCK, BLOCKS = 4, 3  # tokens of a block; blocks, beside the null block
PARTS = ("scheduler", "cache", "model", "parallel", "observability", "ec_manager", "kv_transfer")


class Values(SimpleNamespace):
    """The configuration, and each part of it. What is not said is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self if name.removesuffix("_config") in PARTS else None


class Connector(SupportsHMA):  # type: ignore[misc]
    """The scheduler's half of a KV connector. Nobody has what is asked for."""

    def get_num_new_matched_tokens(self, *_: Any) -> tuple[int, bool]:
        return 0, False

    def request_finished_all_groups(self, *_: Any) -> tuple[bool, None]:
        return False, None

    def __getattr__(self, _: str) -> Any:
        return lambda *_: None  # no other call does anything


config = Values(
    **{"max_num_seqs": 1, "max_num_batched_tokens": 8, "max_model_len": 9, "max_in_flight_tokens": 8},
    policy="fcfs",
    long_prefill_token_threshold=0,
    enable_chunked_prefill=True,
    scheduler_reserve_full_isl=True,
    watermark=0.0,
    num_gpu_blocks=BLOCKS + 1,
    enable_prefix_caching=True,
    block_size=BLOCK,
    mamba_cache_mode="align",
    **{f"{what}_parallel_size": 1 for what in ("decode_context", "prefill_context", "pipeline")},
    get_encoder_cache_manager_obj=lambda *_: None,
    **{"num_speculative_tokens": 0, "num_lookahead_tokens": 0},
    is_kv_consumer=True,
    max_concurrent_batches=1,
)
register_all_kvcache_specs(config)
kv_cache_utils.init_none_hash(sha256)
full = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
mamba = MambaSpec(
    block_size=BLOCK,
    **{"shapes": ((1,),), "dtypes": (torch.float32,), "num_speculative_blocks": 0, "mamba_cache_mode": "align"},
)
groups = [KVCacheGroupSpec(["full"], full), KVCacheGroupSpec(["mamba"], mamba)]
scheduling.KVConnectorFactory = Values(create_connector=lambda **_: Connector())
scheduler = scheduling.Scheduler(
    vllm_config=config,
    kv_cache_config=KVCacheConfig(BLOCKS + 1, [], groups),
    structured_output_manager=Values(should_advance=lambda *_, **__: False),
    mm_registry=Values(supports_multimodal_inputs=lambda *_: False),
    block_size=BLOCK,
    hash_block_size=BLOCK,
    log_stats=False,
)


states: dict[int, list[int]] = {0: []}  # by block: the tokens for which the state in it was computed
wrong: list[str] = []


def add(name: str, prompt: list[int], outputs: int) -> None:
    sampling = Values(max_tokens=outputs, min_tokens=0, ignore_eos=True, stop_token_ids=[])
    hasher = kv_cache_utils.get_request_block_hasher(BLOCK, sha256)
    scheduler.add_request(Request(name, prompt, sampling, None, arrival_time=0.0, block_hasher=hasher))


def step() -> None:
    """The scheduler makes a step, and workers compute it: each request goes on from its state and writes a new one."""
    output = scheduler.schedule()
    names = list(output.num_scheduled_tokens)
    for name, count in output.num_scheduled_tokens.items():
        request, table = scheduler.requests[name], scheduler.kv_cache_manager.get_block_ids(name)[1]
        text, end = list(request.all_token_ids), request.num_computed_tokens
        start = end - count
        state = states[table[(start - 1) // BLOCK]] if start else []
        if state != text[:start]:
            wrong.append(f"after {text[:start]} {name} goes on from the state after {state}")
        states[table[(end - 1) // BLOCK]] = text[:end]
    whole = [scheduler.requests[name].num_computed_tokens >= scheduler.requests[name].num_tokens for name in names]
    indices = {name: n for n, name in enumerate(names)}
    sampled = [[9] if done else [] for done in whole]
    scheduler.update_from_output(output, ModelRunnerOutput(names, indices, sampled))


add("first", [0, 1, 2, 3, 4, 5, 6, 7], outputs=1)  # its state after 8 tokens is kept, and no earlier one
step()
add("second", [0, 1, 2, 3, 9], outputs=1)
step()
assert not wrong, f"a request computes with a state that is not its own: {wrong[0]}"

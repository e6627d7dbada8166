"""A request that another server has computed samples its first token from the logits of another request.

Of a model with mamba layers the last token of its prompt is left to compute. Where other requests decode with drafts,
Scheduler.schedule fills its pass up with as many placeholders. Then it cuts the pass where a block of states ends, and
still says that the pass has all the placeholders. The workers sample from the last rows of a pass: one for its last
token, and one for each draft. These are more rows than the pass has, so the first one is of the request before it.
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
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request

BLOCK, BLOCKS, DRAFTS = 4, 20, 2  # tokens of a block; blocks, beside the null block; draft tokens of a step
PARTS = ("scheduler", "cache", "model", "parallel", "observability", "ec_manager", "aux_output", "kv_transfer")
# What a proxy says of a prompt that the other server has computed.
COMPUTED = {"do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[1, 2], [2]], "tp_size": 1}
COMPUTED |= {"remote_engine_id": "prefill", "remote_request_id": "other", "remote_host": "host", "remote_port": 1}


class Values(SimpleNamespace):
    """The configuration, and each part of it. What is not said is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.startswith(("use_", "uses_", "needs_")):  # of drafts: they come from n-grams
            return lambda *_: False
        return self if name.removesuffix("_config") in PARTS else None


class Connector(NixlPullConnectorScheduler, SupportsHMA):  # type: ignore[misc]
    """The scheduler's half of NixlConnector, as the connector itself calls it."""

    requires_kv_delivery, supports_divergent_local_hybrid_hits = False, True
    request_finished_all_groups = NixlPullConnectorScheduler.request_finished

    def get_loaded_kv_cache_group_ids(self, _: Request) -> tuple[int, ...]:
        return (0, 1)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_: None  # no other call does anything


config = Values(
    **{"max_num_seqs": 2, "max_num_batched_tokens": 16, "max_model_len": 16, "max_in_flight_tokens": 16},
    **{"policy": "fcfs", "long_prefill_token_threshold": 0, "enable_chunked_prefill": True, "watermark": 0.0},
    **{"num_gpu_blocks": BLOCKS + 1, "enable_prefix_caching": True, "block_size": BLOCK, "mamba_cache_mode": "align"},
    **{f"{what}_parallel_size": 1 for what in ("decode_context", "prefill_context", "pipeline", "tensor")},
    **{f"num_{what}_tokens": 0 for what in ("lookahead", "prefill_lookahead", "hash_lookahead")},
    **{"max_concurrent_batches": 1, "data_parallel_index": 0, "scheduler_reserve_full_isl": True},
    **{"prefill_schedule_interval": 1, "num_speculative_tokens": DRAFTS, "use_v2_model_runner": False},
    speculative_config=Values(method="ngram", num_speculative_tokens=DRAFTS, max_num_new_slots_for_drafting=0),
    get_encoder_cache_manager_obj=lambda *_: None,
    get_from_extra_config=lambda _, default: default,
)
register_all_kvcache_specs(config)
kv_cache_utils.init_none_hash(sha256)
hasher = kv_cache_utils.get_request_block_hasher(BLOCK, sha256)
full = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
more = {"shapes": ((1,),), "dtypes": (torch.float32,), "num_speculative_blocks": DRAFTS, "mamba_cache_mode": "align"}
groups = [KVCacheGroupSpec(["full"], full), KVCacheGroupSpec(["mamba"], MambaSpec(block_size=BLOCK, **more))]
kv_cache = KVCacheConfig(BLOCKS + 1, [], groups)
scheduling.KVConnectorFactory = Values(create_connector=lambda **_: Connector(config, "decode", kv_cache))
scheduler = scheduling.Scheduler(
    **{"vllm_config": config, "kv_cache_config": kv_cache, "log_stats": False},
    **{"block_size": BLOCK, "hash_block_size": BLOCK},
    structured_output_manager=Values(
        should_advance=lambda *_, **__: False, accept_tokens=lambda *_: True, validate_tokens=lambda _, tokens: tokens
    ),
    mm_registry=Values(supports_multimodal_inputs=lambda *_: False),
)


def add(name: str, tokens: int, params: Any = None) -> None:
    sampling = Values(max_tokens=9, min_tokens=0, ignore_eos=True, extra_args={"kv_transfer_params": params})
    scheduler.add_request(Request(name, [*range(tokens)], sampling, None, arrival_time=0.0, block_hasher=hasher))


def step() -> Any:
    """The scheduler makes a step. Workers compute it and draft tokens, and transfers that begin with it are done."""
    output = scheduler.schedule()
    names = list(output.num_scheduled_tokens)
    done = KVConnectorOutput(finished_recving={*output.kv_connector_metadata.reqs_to_recv})
    indices = {name: n for n, name in enumerate(names)}
    result = ModelRunnerOutput(names, indices, [[9] for _ in names], kv_connector_output=done)
    scheduler.update_from_output(output, result)
    scheduler.update_draft_token_ids(DraftTokenIds(names, [[9] * DRAFTS for _ in names]))
    return output


add("first", 4)
step()
add("second", 7, dict(COMPUTED))  # six of its tokens are loaded
step()
passes = step()
rows = {name: 1 + len(drafts) for name, drafts in passes.scheduled_spec_decode_tokens.items()}  # that are sampled from
wrong = [name for name, count in passes.num_scheduled_tokens.items() if count < rows.get(name, 1)]
assert not wrong, f"fewer tokens are computed than rows are sampled from: {rows} of {passes.num_scheduled_tokens}"

"""NIXL, bidirectional_kv_xfer: after refused drafts the next turn goes on from a mamba state that has seen a draft.

With asynchronous scheduling a request gets blocks as if the drafts in flight were accepted. Where they are refused, the
running state of the last pass is before the end of the table, and clip_ssm_state_blocks gives away a draft's block.
"""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1 import SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched import scheduler as scheduling
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request

BLOCK, BLOCKS = 4, 8  # tokens of a block; blocks of the server, beside the null block
PARTS = ("scheduler", "cache", "model", "parallel", "observability", "ec_manager", "aux_output", "kv_transfer")
# What the prefill server has answered; a proxy sends it to the decode server.
PREFILLED = {"do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[1], [2]]}
PREFILLED |= {"remote_engine_id": "prefill", "remote_request_id": "first", "remote_host": "host", "remote_port": 1}


class Values(SimpleNamespace):
    """The configuration, and each part of it. What is not said is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self if name.removesuffix("_config") in (*PARTS, "speculative") else None


class Connector(NixlPullConnectorScheduler, SupportsHMA):  # type: ignore[misc]
    """The scheduler's half of NixlConnector. What it does not have does nothing."""

    requires_kv_delivery = supports_divergent_local_hybrid_hits = True
    request_finished_all_groups = NixlPullConnectorScheduler.request_finished

    def get_loaded_kv_cache_group_ids(self, _: Request) -> tuple[int, ...]:
        return (0, 1)

    def __getattr__(self, _: str) -> Any:
        return lambda *_: None


config = Values(
    **{"max_num_seqs": 1, "max_num_batched_tokens": 8, "max_model_len": 12, "max_in_flight_tokens": 16},
    **{"policy": "fcfs", "long_prefill_token_threshold": 0},
    enable_chunked_prefill=True,
    scheduler_reserve_full_isl=True,
    **{"watermark": 0.0, "prefill_schedule_interval": 1, "num_gpu_blocks": BLOCKS + 1, "block_size": BLOCK},
    **{"enable_prefix_caching": True, "mamba_cache_mode": "align"},
    **{f"{what}_parallel_size": 1 for what in ("decode_context", "prefill_context", "pipeline", "tensor")},
    **{"data_parallel_index": 0, "kv_buffer_device": "cuda"},
    get_from_extra_config={"bidirectional_kv_xfer": True, "kv_recompute_threshold": 0}.get,
    get_encoder_cache_manager_obj=lambda *_: None,
    **{"num_speculative_tokens": 1, "max_num_new_slots_for_drafting": 0},
    **{"num_lookahead_tokens": 1, "num_prefill_lookahead_tokens": 1, "num_hash_lookahead_tokens": 0},
    **{name: lambda: True for name in ("use_eagle", "use_eagle_block_drop", "needs_eagle_block_drop")},
    **{"max_concurrent_batches": 2, "async_scheduling": True},
)
register_all_kvcache_specs(config)
kv_cache_utils.init_none_hash(sha256)
full = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
numbers: dict[str, Any] = {"shapes": ((1,),), "dtypes": (torch.float32,), "num_speculative_blocks": 1}
mamba = MambaSpec(block_size=BLOCK, mamba_cache_mode="align", **numbers)
groups = KVCacheConfig(BLOCKS + 1, [], [KVCacheGroupSpec(["full"], full), KVCacheGroupSpec(["mamba"], mamba)])
scheduling.KVConnectorFactory = Values(create_connector=lambda **_: Connector(config, "decode", groups))
scheduler = AsyncScheduler(
    vllm_config=config,
    kv_cache_config=groups,
    structured_output_manager=Values(accept_tokens=lambda *_: True, should_advance=lambda *_: False),
    mm_registry=Values(supports_multimodal_inputs=lambda *_: False),
    block_size=BLOCK,
    hash_block_size=BLOCK,
    log_stats=False,
)
states: dict[int, str] = {}  # by block of the mamba layers: what the state there has seen


def complete(output: Any, start: int, *sampled: int) -> Any:
    """A step is done: a load, or a pass from ``start`` on, whose drafts are refused. It leaves a state after each."""
    if output.num_scheduled_tokens:
        table, drafts = scheduler.kv_cache_manager.get_block_ids("turn")[1], output.scheduled_spec_decode_tokens
        running = (start + output.num_scheduled_tokens["turn"] - 1) // BLOCK
        states[table[running]] = f"{start + 1} tokens"
        states.update({table[running + n + 1]: "a refused draft" for n in range(len(drafts.get("turn", ())))})
    loaded = KVConnectorOutput(finished_recving=set(output.kv_connector_metadata.reqs_to_recv))
    names = list(output.num_scheduled_tokens)
    result = ModelRunnerOutput(names, {"turn": 0}, [list(sampled) for _ in names], kv_connector_output=loaded)
    return scheduler.update_from_output(output, result)


sampling = Values(max_tokens=3, min_tokens=0, ignore_eos=True, stop_token_ids=[])
hasher = kv_cache_utils.get_request_block_hasher(BLOCK, sha256)
request = Request("turn", [1, 2, 3, 4, 5], sampling, None, arrival_time=0.0, block_hasher=hasher)
request.kv_transfer_params = PREFILLED
scheduler.add_request(request)
complete(scheduler.schedule(), 0)  # loads all but the last token of the prompt
complete(scheduler.schedule(), 4, 6)
first, second = scheduler.schedule(), scheduler.schedule()
complete(first, 5, 7)
told = complete(second, 6, 8)[0].outputs[0].kv_transfer_params
has, count = states[told["remote_block_ids"][1][0]], told["remote_num_tokens"]
assert has == f"{count} tokens", (
    f"the next turn's prefill server loads {count} tokens, with a state that has seen {has}"
)

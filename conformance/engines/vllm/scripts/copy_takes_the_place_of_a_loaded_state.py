"""The running state of a request is written into a block that the scheduler has given back.

The prompt was computed by another server, of a model with mamba layers, and --prefix-match-unit is set. Its last token
needs no new block, so MambaManager does not note that the request runs, and gives its state a hash. In the next step it
takes the request for one that has found this state: it puts a copy in its place, and tells the workers a new block.
They append the new block, and go on in the old one.
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
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request

BLOCK, UNIT, BLOCKS = 4, 2, 12  # tokens of a block and of a hash; blocks, beside the null block
PARTS = ("scheduler", "cache", "model", "parallel", "observability", "ec_manager", "aux_output", "kv_transfer")
# What a proxy says of a prompt that the other server has computed.
COMPUTED = {"do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[1, 2, 3, 4], [4]], "tp_size": 1}
COMPUTED |= {"remote_engine_id": "prefill", "remote_request_id": "other", "remote_host": "host", "remote_port": 1}


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

    def get_loaded_kv_cache_group_ids(self, _: Request) -> tuple[int, ...]:
        return (0, 1)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_: None  # no other call does anything


config = Values(
    **{"max_num_seqs": 2, "max_num_batched_tokens": 16, "max_model_len": 20, "max_in_flight_tokens": 16},
    **{"policy": "fcfs", "long_prefill_token_threshold": 0, "enable_chunked_prefill": True, "watermark": 0.0},
    **{"num_gpu_blocks": BLOCKS + 1, "enable_prefix_caching": True, "block_size": BLOCK, "mamba_cache_mode": "align"},
    **{f"{what}_parallel_size": 1 for what in ("decode_context", "prefill_context", "pipeline", "tensor")},
    **{f"num_{what}_tokens": 0 for what in ("speculative", "lookahead", "prefill_lookahead", "hash_lookahead")},
    **{"max_concurrent_batches": 1, "data_parallel_index": 0, "scheduler_reserve_full_isl": True},
    **{"prefill_schedule_interval": 1, "prefix_match_unit": UNIT, "is_kv_producer": True},
    get_encoder_cache_manager_obj=lambda *_: None,
    get_from_extra_config=lambda _, default: default,
)
register_all_kvcache_specs(config)
kv_cache_utils.init_none_hash(sha256)
hasher = kv_cache_utils.get_request_block_hasher(UNIT, sha256)
full = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
more = {"shapes": ((1,),), "dtypes": (torch.float32,), "num_speculative_blocks": 0, "mamba_cache_mode": "align"}
groups = [KVCacheGroupSpec(["full"], full), KVCacheGroupSpec(["mamba"], MambaSpec(block_size=BLOCK, **more))]
kv_cache = KVCacheConfig(BLOCKS + 1, [], groups)
scheduling.KVConnectorFactory = Values(create_connector=lambda **_: Connector(config, "decode", kv_cache))
scheduler = scheduling.Scheduler(
    **{"vllm_config": config, "kv_cache_config": kv_cache, "log_stats": False},
    **{"block_size": BLOCK, "hash_block_size": UNIT},
    structured_output_manager=Values(should_advance=lambda *_, **__: False, accept_tokens=lambda *_: True),
    mm_registry=Values(supports_multimodal_inputs=lambda *_: False),
)


sampling = Values(max_tokens=4, min_tokens=0, ignore_eos=True, extra_args={"kv_transfer_params": COMPUTED})
request = Request("request", [*range(14)], sampling, None, arrival_time=0.0, block_hasher=hasher)
scheduler.add_request(request)
blocks: list[int] = []  # with states, as the workers know them
for _ in range(3):  # the load, the last token of the prompt, and the first token of the answer
    output = scheduler.schedule()
    blocks += [block for new in output.scheduled_new_reqs for block in new.block_ids[1]]
    blocks += [block for new in output.scheduled_cached_reqs.new_block_ids if new for block in new[1]]
    names = list(output.num_scheduled_tokens)
    done = KVConnectorOutput(finished_recving={*output.kv_connector_metadata.reqs_to_recv})
    result = ModelRunnerOutput(names, {"request": 0}, [[9] for _ in names], kv_connector_output=done)
    scheduler.update_from_output(output, result)
place = (request.num_computed_tokens - 1) // BLOCK  # of the running state
has = scheduler.kv_cache_manager.get_block_ids("request")[1][place]
assert blocks[place] == has, f"workers write the running state into block {blocks[place]}, and the request has {has}"

"""A reset of host memory is said behind what the device has stored since: readers of KV events forget that.

Host memory of SimpleCPUOffloadConnector is a BlockPool: its reset publishes an AllBlocksCleared of its own. In the
batch of a step the events of the connector come behind those of the device.
"""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched import scheduler as scheduling
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.simple_kv_offload.manager import SimpleCPUOffloadScheduler

BLOCK, BLOCKS, HOST = 4, 2, 1  # tokens of a block; blocks of the device and of host memory, beside the null block
PARTS = ("scheduler", "cache", "model", "parallel", "observability", "ec_manager", "aux_output")


class Values(SimpleNamespace):
    """The configuration, and each part of it. What is not said is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self if name.removesuffix("_config") in (*PARTS, "kv_transfer", "kv_events") else None


class Connector:
    """The scheduler's half of SimpleCPUOffloadConnector."""

    requires_kv_delivery = supports_divergent_local_hybrid_hits = False

    def __init__(self, real: SimpleCPUOffloadScheduler) -> None:
        self.real = real
        self.has_pending_push_work, self.reset_cache = real.has_pending_stores, real.reset

    def get_loaded_kv_cache_group_ids(self, _: Any) -> tuple[int, ...]:
        return ()

    def bind_kv_cache_manager(self, manager: Any) -> None:
        self.real.bind_gpu_block_pool(manager.block_pool)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name, lambda *_: None)


config = Values(
    max_num_seqs=1,
    **{"max_num_batched_tokens": 4, "max_model_len": 6, "max_in_flight_tokens": 4},
    **{"policy": "fcfs", "long_prefill_token_threshold": 0, "enable_chunked_prefill": True},
    scheduler_reserve_full_isl=True,
    **{"watermark": 0.0, "prefill_schedule_interval": 1, "num_gpu_blocks": BLOCKS + 1, "block_size": BLOCK},
    **{"enable_prefix_caching": True, "mamba_cache_mode": "none", "cache_dtype": "float32"},
    **{f"{what}_parallel_size": 1 for what in ("decode_context", "prefill_context", "pipeline", "tensor")},
    **{"world_size": 1, "rank": 0, "enable_kv_cache_events": True, "publisher": "null"},
    get_total_num_kv_heads=lambda: 1,
    **{"engine_id": "engine", "kv_connector_extra_config": {}, "is_kv_consumer": True},
    get_encoder_cache_manager_obj=lambda *_: None,
    **{f"num_{what}_tokens": 0 for what in ("speculative", "lookahead", "prefill_lookahead", "hash_lookahead")},
    max_concurrent_batches=1,
)
spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
tensor = KVCacheTensor(BLOCKS + 1, ["layer"], layer_stride=BLOCKS + 1, block_stride=1)  # a byte of a block
groups = KVCacheConfig(BLOCKS + 1, [tensor], [KVCacheGroupSpec(["layer"], spec)])
register_all_kvcache_specs(config)
kv_cache_utils.init_none_hash(sha256)
sizes = {"scheduler_block_size": BLOCK, "hash_block_size": BLOCK}
connector = Connector(SimpleCPUOffloadScheduler(config, groups, HOST + 1, **sizes, lazy_offload=False))
scheduling.KVConnectorFactory = Values(create_connector=lambda **_: connector)
scheduler = scheduling.Scheduler(
    vllm_config=config,
    kv_cache_config=groups,
    structured_output_manager=Values(accept_tokens=lambda *_, **__: True, should_advance=lambda *_, **__: False),
    mm_registry=Values(supports_multimodal_inputs=lambda *_: False),
    block_size=BLOCK,
    hash_block_size=BLOCK,
    log_stats=False,
)


events: list[Any] = []
scheduler.kv_event_publisher = Values(publish=lambda batch: events.extend(batch.events))
sampling = Values(max_tokens=1, min_tokens=0, ignore_eos=True, stop_token_ids=[])
hasher = kv_cache_utils.get_request_block_hasher(BLOCK, sha256)
scheduler.reset_prefix_cache(reset_connector=True)
scheduler.add_request(Request("request", list(range(4)), sampling, None, arrival_time=0.0, block_hasher=hasher))
output = scheduler.schedule()
scheduler.update_from_output(output, ModelRunnerOutput(["request"], {"request": 0}, [[9]]))
told = [type(event).__name__ for event in events]
assert told[-1:] == ["BlockStored"], f"a block was stored after the reset, and readers are told {', '.join(told)}"

"""A block in host memory is said with the text of another block: readers of KV events get wrong tokens for its hash.

SimpleCPUOffloadConnector keeps the block table of a request. A window gives a block up, and the request gets it again
for its other layers. The connector takes it for that of the window, and publishes its hash with the window's tokens.
"""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched import scheduler as scheduling
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    SlidingWindowSpec,
)
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.simple_kv_offload.manager import SimpleCPUOffloadScheduler
from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadWorkerMetadata

BLOCK, BLOCKS, HOST, WINDOW = 4, 8, 3, 6  # tokens of a block; blocks of device and host, beside the null block
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
    **{"max_num_batched_tokens": 9, "max_model_len": 20, "max_in_flight_tokens": 9},
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
window = SlidingWindowSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32, sliding_window=WINDOW)
tensor = KVCacheTensor(BLOCKS + 1, ["layer", "other"], layer_stride=BLOCKS + 1, block_stride=1)  # a byte of a block
parts = [KVCacheGroupSpec(["layer"], spec), KVCacheGroupSpec(["other"], window)]
groups = KVCacheConfig(BLOCKS + 1, [tensor], parts, prefix_cache_retention_interval=0)
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
sampling = Values(max_tokens=3, min_tokens=0, ignore_eos=True, stop_token_ids=[])
hasher = kv_cache_utils.get_request_block_hasher(BLOCK, sha256)
scheduler.add_request(Request("request", list(range(16)), sampling, None, arrival_time=0.0, block_hasher=hasher))
begun = -1
for computed in (9, 16, 17):
    output = scheduler.schedule()
    done = SimpleCPUOffloadWorkerMetadata({begun: 1} if begun >= 0 else {})  # a copy is done with the next step
    told = KVConnectorOutput(kv_connector_worker_meta=done)
    names = [*output.num_scheduled_tokens]
    ran = ModelRunnerOutput(names, dict.fromkeys(names, 0), [[9] if computed > 15 else []], kv_connector_output=told)
    scheduler.update_from_output(output, ran)
    begun = output.kv_connector_metadata.store_event
stored = [event for event in events if type(event).__name__ == "BlockStored"]
texts = {(block, tuple(event.token_ids[-BLOCK:])) for event in stored for block in event.block_hashes[-1:]}
assert len(texts) == len(dict(texts)), "two texts are said to have one hash: readers of KV events get the wrong one"

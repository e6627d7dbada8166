"""A reset of the prefix cache of the device is said of host memory, too: readers of KV events forget what it has.

BlockPool.reset_prefix_cache publishes AllBlocksCleared, which names no medium. OffloadingConnector keeps its blocks.
"""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.distributed.kv_events import AllBlocksCleared
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched import scheduler as scheduling
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.kv_offload.base import OffloadingSpec
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request

BLOCK, BLOCKS = 4, 4  # tokens of a block; blocks of the server, beside the null block
PARTS = ("scheduler", "cache", "model", "parallel", "observability", "ec_manager", "aux_output")


class Values(SimpleNamespace):
    """The configuration, and each part of it. What is not said is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self if name.removesuffix("_config") in (*PARTS, "kv_transfer", "kv_events") else None


class HostMemory(OffloadingSpec):  # type: ignore[misc]
    """Host memory with two slots."""

    def get_manager(self) -> Any:
        return CPUOffloadingManager(2, enable_events=True)

    def get_worker(self, kv_caches: Any) -> Any:
        raise NotImplementedError


class Connector:
    """The scheduler's half of OffloadingConnector."""

    requires_kv_delivery = supports_divergent_local_hybrid_hits = False

    def __init__(self, real: OffloadingConnectorScheduler) -> None:
        self.real, self.request_finished = real, lambda request, _: real.request_finished(request)

    def get_loaded_kv_cache_group_ids(self, _: Any) -> tuple[int, ...]:
        return ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name, lambda *_: None)


config = Values(
    max_num_seqs=1,
    **{"max_num_batched_tokens": 8, "max_model_len": 12, "max_in_flight_tokens": 8},
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
groups = KVCacheConfig(BLOCKS + 1, [], [KVCacheGroupSpec(["layer"], spec)])
register_all_kvcache_specs(config)
kv_cache_utils.init_none_hash(sha256)
host = HostMemory(build_offloading_config(config, groups))
connector = Connector(OffloadingConnectorScheduler(host, config, groups))
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
sampling = Values(max_tokens=2, min_tokens=0, ignore_eos=True, stop_token_ids=[])
hasher = kv_cache_utils.get_request_block_hasher(BLOCK, sha256)
loads = 0
for name in ("first", "second"):  # of one prompt
    scheduler.reset_prefix_cache()
    scheduler.add_request(Request(name, list(range(5)), sampling, None, arrival_time=0.0, block_hasher=hasher))
    for _ in range(2):
        output = scheduler.schedule()
        done = OffloadingWorkerMetadata()
        for job in output.kv_connector_metadata.store_jobs:  # a copy to host memory is done in the step that begins it
            done.mark_completed(job)
        names = [*output.num_scheduled_tokens]
        told = KVConnectorOutput(kv_connector_worker_meta=done)
        ran = ModelRunnerOutput(names, dict.fromkeys(names, 0), [[9] for _ in names], kv_connector_output=told)
        scheduler.update_from_output(output, ran)
        loads += len(output.kv_connector_metadata.load_jobs)
cleared = max((number for number, event in enumerate(events) if isinstance(event, AllBlocksCleared)), default=-1)
known = [event for event in events[cleared + 1 :] if event.medium == "CPU"]
assert len(known) >= loads, "a request loads a block from host memory, and readers of KV events know of none"

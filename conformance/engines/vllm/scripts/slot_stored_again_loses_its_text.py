"""The KV event of a slot that host memory evicts and stores again in one step has no tokens and no block size.

With self_describing_kv_events OffloadingEventsTracker keeps the text of each slot from its offer on. The eviction makes
room for another request and is published after the step: take_events drops with it the text that came with the new
offer. The copy ends in the next step, and its BlockStored has one hash, no tokens and a block size of 0.
"""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.distributed.kv_events import BlockStored
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

BLOCK, BLOCKS = 4, 10  # tokens of a block; blocks of the server, beside the null block
PARTS = ("scheduler", "cache", "model", "parallel", "observability", "ec_manager", "aux_output", "kv_transfer")


class Values(SimpleNamespace):
    """The configuration, and each part of it. What is not said is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self if name.removesuffix("_config") in PARTS else None


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
        self.real = real

    def get_loaded_kv_cache_group_ids(self, _: Any) -> tuple[int, ...]:
        return ()

    def request_finished(self, request: Request, _: Any) -> Any:
        return self.real.request_finished(request)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name, lambda *_: None)


config = Values(
    **{"max_num_seqs": 2, "max_num_batched_tokens": 12, "max_model_len": 12, "max_in_flight_tokens": 12},
    **{"enable_chunked_prefill": True, "scheduler_reserve_full_isl": True, "policy": "fcfs"},
    **{"prefill_schedule_interval": 1, "watermark": 0.0, "long_prefill_token_threshold": 0},
    **{"max_concurrent_batches": 1, "num_gpu_blocks": BLOCKS + 1, "block_size": BLOCK},
    **{"enable_prefix_caching": True, "mamba_cache_mode": "none", "cache_dtype": "float32"},
    **{f"{what}_parallel_size": 1 for what in ("decode_context", "prefill_context", "pipeline", "tensor")},
    **{"world_size": 1, "rank": 0, "engine_id": "engine", "is_kv_consumer": True},
    kv_events_config=Values(enable_kv_cache_events=True, publisher="null"),
    kv_connector_extra_config={"blocks_per_chunk": 2, "self_describing_kv_events": True},
    **{"get_total_num_kv_heads": lambda: 1, "get_encoder_cache_manager_obj": lambda *_: None},
    **{f"num_{what}_tokens": 0 for what in ("speculative", "lookahead", "prefill_lookahead", "hash_lookahead")},
)
spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
groups = KVCacheConfig(BLOCKS + 1, [], [KVCacheGroupSpec(["layer"], spec)])
register_all_kvcache_specs(config)
kv_cache_utils.init_none_hash(sha256)
connector = Connector(OffloadingConnectorScheduler(HostMemory(build_offloading_config(config, groups)), config, groups))
scheduling.KVConnectorFactory = Values(create_connector=lambda **_: connector)
scheduler = scheduling.Scheduler(
    vllm_config=config,
    kv_cache_config=groups,
    structured_output_manager=Values(accept_tokens=lambda *_, **__: True, should_advance=lambda *_, **__: False),
    mm_registry=Values(supports_multimodal_inputs=lambda *_: False),
    **{"block_size": BLOCK, "hash_block_size": BLOCK, "log_stats": False},
)
events: list[Any] = []  # that are published
scheduler.kv_event_publisher = Values(publish=lambda batch: events.extend(batch.events))
hasher = kv_cache_utils.get_request_block_hasher(BLOCK, sha256)
copies: list[int] = []  # that are under way, by job
for requests in ({"a": 100}, {}, {}, {"b": 200}, {}, {}, {"c": 300, "a again": 100}, {}, {}):  # with the first token
    for name, first in requests.items():
        sampling = Values(max_tokens=1, min_tokens=0, ignore_eos=True, stop_token_ids=[])
        prompt = list(range(first, first + 9))  # two blocks, which fill a slot, and one token
        scheduler.add_request(Request(name, prompt, sampling, None, arrival_time=0.0, block_hasher=hasher))
    output = scheduler.schedule()
    told = KVConnectorOutput(kv_connector_worker_meta=OffloadingWorkerMetadata(completed_jobs=dict.fromkeys(copies, 1)))
    copies = list(output.kv_connector_metadata.store_jobs)  # they end in the next step
    indices = {name: n for n, name in enumerate(output.num_scheduled_tokens)}
    sampled = ModelRunnerOutput(list(indices), indices, [[9] for _ in indices], kv_connector_output=told)
    scheduler.update_from_output(output, sampled)
stored = [event for event in events if isinstance(event, BlockStored) and event.medium == "CPU"]
lengths = [len(event.token_ids) for event in stored]
assert set(lengths) == {2 * BLOCK}, f"slots of {2 * BLOCK} tokens were stored, and their events have {lengths} tokens"

"""Host memory is reset while a request loads from it, and the load reads what another request's copy writes there.

The reset gives the slot back while the load reads it. The next step hands it to a copy for which the workers must wait,
and OffloadingConnectorWorker.handle_preemptions begins this copy before it waits for the load.
"""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.offloading import common, scheduler, worker
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched import scheduler as scheduling
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.kv_offload.base import OffloadingSpec
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

BLOCK, BLOCKS = 4, 5  # tokens of a block; blocks of the server, beside the null block
PARTS = ("scheduler", "cache", "model", "parallel", "observability", "ec_manager", "aux_output", "kv_transfer")


class Values(SimpleNamespace):  # the configuration, and each part of it; what is not said is off
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self if name.removesuffix("_config") in PARTS else None


class HostMemory(OffloadingSpec):  # type: ignore[misc]
    """Host memory with one slot. A load is in flight until somebody waits for it: loads have a stream of their own."""

    get_manager, get_worker = (lambda _: CPUOffloadingManager(1)), (lambda host, _: host)
    overwritten, loads = False, dict[int, set[int]]()

    def submit_load(self, job: int, host: Any, _: Any) -> bool:
        self.loads = {job: set(host.block_ids)}
        return True

    def submit_store(self, _job: int, _device: Any, host: Any) -> bool:
        self.overwritten |= any(slots & set(host.block_ids) for slots in self.loads.values())
        return True

    def wait(self, jobs: set[int]) -> None:
        self.loads = {job: slots for job, slots in self.loads.items() if job not in jobs}


class Connector(SimpleNamespace):  # the scheduler's half of OffloadingConnector
    requires_kv_delivery = supports_divergent_local_hybrid_hits = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name, lambda *_: None)


values = Values(
    **{"max_num_seqs": 3, "max_num_batched_tokens": 16, "max_model_len": 12, "max_in_flight_tokens": 16},
    **{"enable_chunked_prefill": True, "scheduler_reserve_full_isl": True, "policy": "fcfs"},
    **{"prefill_schedule_interval": 1, "watermark": 0.0, "long_prefill_token_threshold": 0},
    **{"max_concurrent_batches": 1, "num_gpu_blocks": BLOCKS + 1, "block_size": BLOCK},
    **{"enable_prefix_caching": False, "mamba_cache_mode": "none", "cache_dtype": "float32"},
    **{f"{what}_parallel_size": 1 for what in ("decode_context", "prefill_context", "pipeline", "tensor")},
    **{"world_size": 1, "rank": 0, "engine_id": "engine", "kv_connector_extra_config": {}, "is_kv_consumer": True},
    **{"get_total_num_kv_heads": lambda: 1, "get_encoder_cache_manager_obj": lambda *_: None},
    **{f"num_{what}_tokens": 0 for what in ("speculative", "lookahead", "prefill_lookahead", "hash_lookahead")},
)
spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
groups = KVCacheConfig(BLOCKS + 1, [], [KVCacheGroupSpec(["layer"], spec)])
register_all_kvcache_specs(values)
kv_cache_utils.init_none_hash(sha256)
host = HostMemory(build_offloading_config(values, groups))
real = scheduler.OffloadingConnectorScheduler(host, values, groups)
calls = {"request_finished": lambda one, _: real.request_finished(one), "get_loaded_kv_cache_group_ids": lambda _: ()}
connector = Connector(real=real, **calls)
scheduling.KVConnectorFactory = Values(create_connector=lambda **_: connector)
engine = scheduling.Scheduler(
    vllm_config=values,
    kv_cache_config=groups,
    structured_output_manager=Values(accept_tokens=lambda *_, **__: True, should_advance=lambda *_, **__: False),
    mm_registry=Values(supports_multimodal_inputs=lambda *_: False),
    **{"block_size": BLOCK, "hash_block_size": BLOCK, "log_stats": False},
)
(workers := worker.OffloadingConnectorWorker(host, values, groups)).worker = host


def add(name: str, prompt: list[int], outputs: int) -> None:
    sampling = Values(max_tokens=outputs, min_tokens=0, ignore_eos=True, stop_token_ids=[])
    hashes = {"block_hasher": kv_cache_utils.get_request_block_hasher(BLOCK, sha256)}
    engine.add_request(Request(name, prompt, sampling, None, arrival_time=0.0, **hashes))


def step(**ended: Any) -> None:  # the calls of a worker, in their order
    output = engine.schedule()
    for call in (workers.handle_preemptions, workers.start_kv_transfers, workers.prepare_store_kv):
        call(output.kv_connector_metadata)
    names = list(output.num_scheduled_tokens)
    sampled = ModelRunnerOutput(names, {name: n for n, name in enumerate(names)}, [[9]] * len(names), **ended)
    engine.update_from_output(output, sampled)


add("first", [1, 2, 3, 4], 1)
step()
add("second", [11, 12, 13, 14, 15], 4)
stored = common.OffloadingWorkerMetadata(completed_jobs={0: 1})
step(kv_connector_output=KVConnectorOutput(kv_connector_worker_meta=stored))
add("third", [1, 2, 3, 4, 5], 2)  # it loads what the first has stored
step()
engine.reset_prefix_cache(reset_connector=True)
engine.finish_requests("second", RequestStatus.FINISHED_ABORTED)
add("fourth", list(range(21, 30)), 2)
step()
assert not host.overwritten, "the block of the second request is copied to the slot from which the third still loads"

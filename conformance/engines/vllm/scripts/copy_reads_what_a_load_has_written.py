"""Blocks are copied to host memory after a load from another server has written into them.

MultiConnector tells OffloadingConnector that it loads nothing itself. Then it does not note the blocks of the load, and
the workers do not wait for a copy of one of them, which was computed for a request that has ended.
"""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1 import multi_connector
from vllm.distributed.kv_transfer.kv_connector.v1.offloading import common, scheduler, worker
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched import async_scheduler
from vllm.v1.core.sched import scheduler as scheduling
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.kv_offload.base import OffloadingSpec
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request

BLOCK, BLOCKS = 4, 2  # tokens of a block; blocks of the server, beside the null block
PARTS = ("scheduler", "cache", "model", "parallel", "observability", "ec_manager", "aux_output", "kv_transfer")


class Values(SimpleNamespace):  # the configuration, and each part of it; what is not said is off
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self if name.removesuffix("_config") in PARTS else None


class HostMemory(OffloadingSpec):  # type: ignore[misc]  # a copy is done as soon as it is begun
    get_manager, get_worker, wait = (lambda _: CPUOffloadingManager(4)), (lambda host, _: host), (lambda *_: None)
    device, slots, loaded = dict[int, str](), dict[int, str](), list[str]()  # of which request the KV cache is

    def submit_store(self, _job: int, blocks: Any, slots: Any) -> bool:
        self.slots |= {slot: self.device[block] for block, slot in zip(blocks.block_ids, slots.block_ids, strict=True)}
        return True

    def submit_load(self, _job: int, slots: Any, _: Any) -> bool:
        self.loaded += [self.slots[slot] for slot in slots.block_ids]
        return True


class Connector(SimpleNamespace):  # a scheduler's half
    requires_kv_delivery = supports_divergent_local_hybrid_hits = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name, lambda *_: None)


values = Values(
    **{"rank": 0, "max_num_seqs": 1, "max_num_batched_tokens": 16, "max_model_len": 12, "max_in_flight_tokens": 32},
    **dict.fromkeys(("enable_chunked_prefill", "scheduler_reserve_full_isl", "enable_prefix_caching"), True),
    **{"prefill_schedule_interval": 1, "watermark": 0.0, "long_prefill_token_threshold": 0, "policy": "fcfs"},
    **{"num_gpu_blocks": BLOCKS + 1, "block_size": BLOCK, "mamba_cache_mode": "none", "cache_dtype": "float32"},
    **{f"{what}_parallel_size": 1 for what in ("decode_context", "prefill_context", "pipeline", "tensor")},
    **{"max_concurrent_batches": 2, "engine_id": "one", "kv_connector_extra_config": {"offload_prompt_only": False}},
    **{"world_size": 1, "get_total_num_kv_heads": lambda: 1, "get_encoder_cache_manager_obj": lambda *_: None},
    **{f"num_{what}_tokens": 0 for what in ("speculative", "lookahead", "prefill_lookahead", "hash_lookahead")},
)
spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
groups = KVCacheConfig(BLOCKS + 1, [], [KVCacheGroupSpec(["layer"], spec)])
register_all_kvcache_specs(values)
kv_cache_utils.init_none_hash(sha256)
host = HostMemory(build_offloading_config(values, groups))
real = scheduler.OffloadingConnectorScheduler(host, values, groups)
none = {"get_loaded_kv_cache_group_ids": lambda _: (), "take_events": lambda: ()}
offloading = Connector(real=real, request_finished=lambda request, _: real.request_finished(request), **none)
servers = Connector(real=None, request_finished=lambda *_: (False, None), **none)
servers.get_num_new_matched_tokens = lambda request, _: (8, True) if request.request_id == "second" else (0, False)
both = object.__new__(multi_connector.MultiConnector)
vars(both).update(_connectors=[servers, offloading], _requests_to_connector={}, _extra_async_saves={})
scheduling.KVConnectorFactory = Values(create_connector=lambda **_: both)
engine = async_scheduler.AsyncScheduler(
    structured_output_manager=Values(accept_tokens=lambda *_, **__: True, should_advance=lambda *_, **__: False),
    mm_registry=Values(supports_multimodal_inputs=lambda *_: False),
    **{"vllm_config": values, "kv_cache_config": groups, "block_size": BLOCK, "hash_block_size": BLOCK, "log_stats": 0},
)
(workers := worker.OffloadingConnectorWorker(host, values, groups)).worker = host


def add(name: str, prompt: Any, outputs: int) -> None:
    sampling = Values(max_tokens=outputs, min_tokens=0, ignore_eos=True, stop_token_ids=[])
    hashes = {"block_hasher": kv_cache_utils.get_request_block_hasher(BLOCK, sha256)}
    engine.add_request(Request(name, [*prompt], sampling, None, arrival_time=0.0, **hashes))


def work(output: Any, loads: str = "", stored: Any = ()) -> None:  # the calls of a worker, in their order
    copies = output.kv_connector_metadata.metadata[1]
    workers.handle_preemptions(copies)
    host.device.update(dict.fromkeys(engine.kv_cache_manager.get_block_ids(loads)[0] if loads else (), loads))
    workers.start_kv_transfers(copies)
    host.device.update({block: new.req_id for new in output.scheduled_new_reqs for block in new.block_ids[0]})
    workers.prepare_store_kv(copies)
    told = multi_connector.MultiKVConnectorWorkerMetadata((None, common.OffloadingWorkerMetadata(dict(stored))))
    done = KVConnectorOutput(finished_recving={loads} - {""}, kv_connector_worker_meta=told)
    names = list(output.num_scheduled_tokens)
    made = ModelRunnerOutput(names, dict.fromkeys(names, 0), [[4]] * len(names), kv_connector_output=done)
    engine.update_from_output(output, made)


add("first", [1, 2, 3], 2)
for output in (engine.schedule(), engine.schedule()):  # two steps are in flight
    work(output)
add("second", range(11, 19), 1)
work(engine.schedule(), loads="second")
work(engine.schedule(), stored={0: 1})
add("third", range(1, 6), 1)  # it begins as the first one does, and loads from host memory
work(engine.schedule())
assert host.loaded == ["first"], f"a request loads from host memory what was computed for the {host.loaded[0]} one"

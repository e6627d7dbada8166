"""A client limits how much of its request is copied to host memory, and the scheduler stops.

The model has full attention and mamba layers, and hits may end inside a block (--prefix-match-unit). The connector
copies the block that a prompt fills in part, up to the prompt's last boundary. It asserts that the boundary is within
the limit that the client has sent (max_offload_tokens).
"""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched import scheduler as scheduling
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec
from vllm.v1.kv_offload.base import OffloadingSpec
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

BLOCK, BLOCKS = 4, 12  # tokens of a block; blocks of the server, beside the null block
UNIT, PROMPT = 1, 6  # --prefix-match-unit: a hit may end after any token; tokens of the prompt
PARTS = ("scheduler", "cache", "model", "parallel", "observability", "ec_manager", "aux_output", "kv_transfer")


class Values(SimpleNamespace):
    """The configuration, and each part of it. What is not said is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self if name.removesuffix("_config") in PARTS else None


class HostMemory(OffloadingSpec):  # type: ignore[misc]
    """Host memory with eight slots."""

    def get_manager(self) -> Any:
        return CPUOffloadingManager(8)

    def get_worker(self, kv_caches: Any) -> Any:
        raise NotImplementedError


class Connector:
    """The scheduler's half of OffloadingConnector."""

    requires_kv_delivery = supports_divergent_local_hybrid_hits = False

    def __init__(self, real: OffloadingConnectorScheduler) -> None:
        self.real = real

    def get_loaded_kv_cache_group_ids(self, _: Any) -> tuple[int, ...]:
        return ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name, lambda *_: None)


config = Values(
    max_num_seqs=1,
    **{"max_num_batched_tokens": 8, "max_model_len": 40, "max_in_flight_tokens": 8},
    policy="fcfs",
    long_prefill_token_threshold=0,
    **dict.fromkeys(("enable_chunked_prefill", "scheduler_reserve_full_isl", "enable_prefix_caching"), True),
    **{"watermark": 0.0, "prefill_schedule_interval": 1, "num_gpu_blocks": BLOCKS + 1, "block_size": BLOCK},
    **{"mamba_cache_mode": "align", "prefix_match_unit": UNIT},
    cache_dtype="float32",
    **{f"{what}_parallel_size": 1 for what in ("decode_context", "prefill_context", "pipeline", "tensor")},
    **{"world_size": 1, "rank": 0},
    get_total_num_kv_heads=lambda: 1,
    engine_id="engine",
    kv_connector_extra_config={},
    is_kv_consumer=True,
    get_encoder_cache_manager_obj=lambda *_: None,
    **{f"num_{what}_tokens": 0 for what in ("speculative", "lookahead", "prefill_lookahead", "hash_lookahead")},
    max_concurrent_batches=1,
)
full = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
mamba = MambaSpec(block_size=BLOCK, shapes=((8,),), dtypes=(torch.float32,), mamba_cache_mode="align")
groups = KVCacheConfig(BLOCKS + 1, [], [KVCacheGroupSpec(["full"], full), KVCacheGroupSpec(["mamba"], mamba)])
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
    hash_block_size=UNIT,
    log_stats=False,
)

sampling = Values(
    **{"max_tokens": 3, "min_tokens": 0, "ignore_eos": True, "stop_token_ids": []},
    extra_args={"kv_transfer_params": {"max_offload_tokens": 2}},
)
hasher = kv_cache_utils.get_request_block_hasher(UNIT, sha256)
scheduler.add_request(Request("request", list(range(PROMPT)), sampling, None, arrival_time=0.0, block_hasher=hasher))
stopped = False
try:
    for _ in range(2):
        output = scheduler.schedule()
        answers = scheduler.requests["request"].num_computed_tokens >= PROMPT
        scheduler.update_from_output(output, ModelRunnerOutput(["request"], {"request": 0}, [[7] if answers else []]))
    scheduler.schedule()
except AssertionError:
    stopped = True
assert not stopped, "the client allows two tokens of its request to be copied, and the scheduler stops"

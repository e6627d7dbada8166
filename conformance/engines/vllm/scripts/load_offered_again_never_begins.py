"""NIXL, bidirectional_kv_xfer: a preempted prefill request is offered its load again, which never begins.

The prefill server loads a part of a prompt from the decode server of the last turn, and computes the rest. The request
is preempted, and get_num_new_matched_tokens offers the other server's blocks again. The scheduler waits for them, and
update_state_after_alloc begins nothing, since these blocks were processed. An abort does not give the new blocks back.
"""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler
from vllm.v1.core.sched import scheduler as scheduling
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

BLOCK, BLOCKS = 4, 4  # tokens of a block; blocks of the server, beside the null block
PARTS = ("scheduler", "cache", "model", "parallel", "observability", "ec_manager", "aux_output", "kv_transfer")
# What the decode server has answered to the last turn; a proxy sends it with the next one.
ANSWERED = {"do_remote_prefill": False, "do_remote_decode": True, "remote_block_ids": [[1]], "remote_num_tokens": 4}
ANSWERED |= {"remote_engine_id": "decode", "remote_request_id": "turn", "remote_host": "host", "remote_port": 1}


class Values(SimpleNamespace):
    """The configuration, and each part of it. What is not said is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self if name.removesuffix("_config") in PARTS else None


class Connector:
    """The scheduler's half of NixlConnector. What it does not have does nothing."""

    requires_kv_delivery = supports_divergent_local_hybrid_hits = True

    def __init__(self, real: NixlPullConnectorScheduler) -> None:
        self.real = real

    def get_loaded_kv_cache_group_ids(self, _: Request) -> tuple[int, ...]:
        return (0,)

    def request_finished(self, request: Request, blocks: list[int]) -> Any:
        return self.real.request_finished(request, (blocks,))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name, lambda *_: None)


config = Values(
    **{"max_num_seqs": 2, "max_num_batched_tokens": 5, "max_model_len": 12, "max_in_flight_tokens": 5},
    policy="fcfs",
    long_prefill_token_threshold=0,
    enable_chunked_prefill=True,
    scheduler_reserve_full_isl=True,
    **{"watermark": 0.0, "prefill_schedule_interval": 1, "num_gpu_blocks": BLOCKS + 1, "block_size": BLOCK},
    mamba_cache_mode="none",
    **{f"{what}_parallel_size": 1 for what in ("decode_context", "prefill_context", "pipeline", "tensor")},
    data_parallel_index=0,
    kv_load_failure_policy="fail",
    kv_buffer_device="cuda",
    get_from_extra_config={"bidirectional_kv_xfer": True, "kv_recompute_threshold": 0}.get,
    get_encoder_cache_manager_obj=lambda *_: None,
    **{f"num_{what}_tokens": 0 for what in ("speculative", "lookahead", "prefill_lookahead", "hash_lookahead")},
    max_concurrent_batches=1,
)
register_all_kvcache_specs(config)
spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
groups = KVCacheConfig(BLOCKS + 1, [], [KVCacheGroupSpec(["layer"], spec)])
connector = Connector(NixlPullConnectorScheduler(config, "prefill", groups))
scheduling.KVConnectorFactory = Values(create_connector=lambda **_: connector)
scheduler = scheduling.Scheduler(
    vllm_config=config,
    kv_cache_config=groups,
    structured_output_manager=Values(accept_tokens=lambda *_: True, should_advance=lambda *_: False),
    mm_registry=Values(supports_multimodal_inputs=lambda *_: False),
    block_size=BLOCK,
    hash_block_size=BLOCK,
    log_stats=False,
)


def add(name: str, tokens: int, outputs: int, params: dict[str, Any] | None = None) -> None:
    sampling = Values(max_tokens=outputs, min_tokens=0, ignore_eos=True, stop_token_ids=[])
    request = Request(name, list(range(tokens)), sampling, None, arrival_time=0.0)
    request.kv_transfer_params = params
    scheduler.add_request(request)


def step() -> None:
    """The scheduler makes a step, and workers compute it. Each transfer that begins with it ends with it."""
    output = scheduler.schedule()
    ended = KVConnectorOutput(finished_recving=set(output.kv_connector_metadata.reqs_to_recv))
    names = list(output.num_scheduled_tokens)
    requests = [scheduler.requests[name] for name in names]
    sampled = [[9] if one.num_computed_tokens >= one.num_tokens else [] for one in requests]
    indices = {name: n for n, name in enumerate(names)}
    result = ModelRunnerOutput(names, indices, sampled, kv_connector_output=ended)
    scheduler.update_from_output(output, result)


add("another", tokens=3, outputs=3)
add("turn", tokens=11, outputs=1, params=dict(ANSWERED))
for _ in range(20):
    step()
waits = scheduler.requests["turn"].status == RequestStatus.WAITING_FOR_REMOTE_KVS
scheduler.finish_requests(["turn"], RequestStatus.FINISHED_ABORTED)
for _ in range(3):
    step()
free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
assert not waits, f"the request waits for ever; when its client has gone away, {free} of {BLOCKS} blocks are free"

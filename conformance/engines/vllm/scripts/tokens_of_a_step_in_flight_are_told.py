"""NIXL, bidirectional_kv_xfer: the next turn takes KV of refused drafts for that of the next message.

With asynchronous scheduling the tokens of a step in flight count as computed, drafts too. Where accepted drafts end a
request, a step of it is still in flight, and the prefill server of the next turn is told all these tokens.
"""

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler
from vllm.v1.core.sched import scheduler as scheduling
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request

BLOCK, BLOCKS = 4, 8  # tokens of a block; blocks of the server, beside the null block
PARTS = ("scheduler", "cache", "model", "parallel", "observability", "ec_manager", "aux_output", "kv_transfer")
# What the prefill server has answered; a proxy sends it to the decode server.
PREFILLED = {"do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[1]]}
PREFILLED |= {"remote_engine_id": "prefill", "remote_request_id": "first", "remote_host": "host", "remote_port": 1}


class Values(SimpleNamespace):
    """The configuration, and each part of it. What is not said is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self if name.removesuffix("_config") in (*PARTS, "speculative") else None


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
    **{"max_num_seqs": 1, "max_num_batched_tokens": 8, "max_model_len": 12, "max_in_flight_tokens": 16},
    **{"policy": "fcfs", "long_prefill_token_threshold": 0},
    enable_chunked_prefill=True,
    scheduler_reserve_full_isl=True,
    **{"watermark": 0.0, "prefill_schedule_interval": 1, "num_gpu_blocks": BLOCKS + 1, "block_size": BLOCK},
    mamba_cache_mode="none",
    **{f"{what}_parallel_size": 1 for what in ("decode_context", "prefill_context", "pipeline", "tensor")},
    data_parallel_index=0,
    kv_buffer_device="cuda",
    get_from_extra_config={"bidirectional_kv_xfer": True, "kv_recompute_threshold": 0}.get,
    get_encoder_cache_manager_obj=lambda *_: None,
    **{"num_speculative_tokens": 1, "max_num_new_slots_for_drafting": 0},
    **{"num_lookahead_tokens": 1, "num_prefill_lookahead_tokens": 1, "num_hash_lookahead_tokens": 0},
    **{name: lambda: True for name in ("use_eagle", "use_eagle_block_drop", "needs_eagle_block_drop")},
    **{"max_concurrent_batches": 2, "async_scheduling": True},
)
register_all_kvcache_specs(config)
spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
groups = KVCacheConfig(BLOCKS + 1, [], [KVCacheGroupSpec(["layer"], spec, is_eagle_group=True)])
half = partial(NixlPullConnectorScheduler, config, kv_cache_config=groups)
scheduling.KVConnectorFactory = Values(create_connector=lambda **_: Connector(half("decode")))
scheduler = AsyncScheduler(
    vllm_config=config,
    kv_cache_config=groups,
    structured_output_manager=Values(accept_tokens=lambda *_: True, should_advance=lambda *_: False),
    mm_registry=Values(supports_multimodal_inputs=lambda *_: False),
    block_size=BLOCK,
    hash_block_size=BLOCK,
    log_stats=False,
)


def complete(output: Any, *sampled: int) -> Any:
    """A step is done: a load that began with it, or the pass of a request that has ``sampled`` these tokens."""
    loaded = KVConnectorOutput(finished_recving=set(output.kv_connector_metadata.reqs_to_recv))
    names = list(output.num_scheduled_tokens)
    result = ModelRunnerOutput(names, {"turn": 0}, [list(sampled) for _ in names], kv_connector_output=loaded)
    return scheduler.update_from_output(output, result)


sampling = Values(max_tokens=3, min_tokens=0, ignore_eos=True, stop_token_ids=[])
request = Request("turn", [1, 2, 3], sampling, None, arrival_time=0.0)
request.kv_transfer_params = PREFILLED
scheduler.add_request(request)
complete(scheduler.schedule())  # the load
complete(scheduler.schedule(), 4)
with_draft, in_flight = scheduler.schedule(), scheduler.schedule()
answers = complete(with_draft, 5, 6)  # the draft is accepted, and the request ends
complete(in_flight, 7)  # computes its last token and a draft, which is refused
following = Request("next", [1, 2, 3, 4, 5, 6, 21, 22, 23], sampling, None, arrival_time=0.0)  # with the next message
following.kv_transfer_params = answers[0].outputs[0].kv_transfer_params
loads, _ = half("prefill").get_num_new_matched_tokens(following, 0)
text = request.num_tokens
assert loads <= text, f"the last turn has {text} tokens, and the prefill server loads {loads}: a refused draft, too"

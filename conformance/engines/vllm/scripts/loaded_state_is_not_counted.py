"""A request of a hybrid model whose prompt a connector loads within a step is admitted with one block too few.

The connector has two blocks of a prompt of nine tokens. It loads before the step computes, as OffloadingConnector does
with sync_load_budget_bytes, so that the request runs in the step. It needs three blocks for full attention, one for the
loaded mamba state, and one for the state that its pass writes. The manager of mamba layers counts one of the last two.
"""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.v1.core.sched import scheduler as scheduling
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec
from vllm.v1.request import Request

BLOCK, BLOCKS = 4, 4  # tokens of a block; blocks of the server, beside the null block
PARTS = ("scheduler", "cache", "model", "parallel", "observability", "ec_manager", "aux_output", "kv_transfer")


class Values(SimpleNamespace):
    """The configuration, and each part of it. What is not said is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self if name.removesuffix("_config") in PARTS else None


class Connector:
    """The scheduler's half of a KV connector that loads before the step computes."""

    requires_kv_delivery = supports_divergent_local_hybrid_hits = False

    def get_num_new_matched_tokens(self, _: Request, computed: int) -> tuple[int, bool]:
        return 2 * BLOCK - computed, False

    def request_finished_all_groups(self, *_: Any) -> tuple[bool, None]:
        return False, None

    def __getattr__(self, _: str) -> Any:
        return lambda *_: None  # no other call does anything


config = Values(
    max_num_seqs=2,
    max_num_batched_tokens=16,
    max_model_len=12,
    policy="fcfs",
    long_prefill_token_threshold=0,
    enable_chunked_prefill=True,
    scheduler_reserve_full_isl=True,
    watermark=0.0,
    prefill_schedule_interval=1,
    num_gpu_blocks=BLOCKS + 1,
    block_size=BLOCK,
    enable_prefix_caching=True,
    mamba_cache_mode="align",
    decode_context_parallel_size=1,
    prefill_context_parallel_size=1,
    pipeline_parallel_size=1,
    get_encoder_cache_manager_obj=lambda *_: None,
    num_speculative_tokens=0,
    num_lookahead_tokens=0,
    num_prefill_lookahead_tokens=0,
    num_hash_lookahead_tokens=0,
    max_in_flight_tokens=16,
    max_concurrent_batches=1,
)
scheduling.KVConnectorFactory = Values(create_connector=lambda **_: Connector())
register_all_kvcache_specs(config)
full = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
mamba = MambaSpec(block_size=BLOCK, shapes=((8,),), dtypes=(torch.float32,), mamba_cache_mode="align")
groups = [KVCacheGroupSpec(["full"], full), KVCacheGroupSpec(["mamba"], mamba)]
scheduler = scheduling.Scheduler(
    vllm_config=config,
    kv_cache_config=KVCacheConfig(BLOCKS + 1, [], groups),
    structured_output_manager=Values(accept_tokens=lambda *_: True, should_advance=lambda *_: False),
    mm_registry=Values(supports_multimodal_inputs=lambda *_: False),
    block_size=BLOCK,
    hash_block_size=BLOCK,
    log_stats=False,
)
sampling = Values(max_tokens=1, min_tokens=0, ignore_eos=True, stop_token_ids=[])
scheduler.add_request(Request("request", list(range(9)), sampling, None, arrival_time=0.0))
stopped = ""
try:
    scheduler.schedule()
except ValueError as error:
    stopped = str(error)
assert not stopped, f"the scheduler admits the request where {BLOCKS} blocks are free, and stops: {stopped}"

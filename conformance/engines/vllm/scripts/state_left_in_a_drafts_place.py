"""NIXL, bidirectional_kv_xfer: after accepted drafts the next turn goes on from a mamba state that lacks them.

A pass with drafts leaves the state after its first token in the running block, and the states after its drafts in the
blocks behind it; the next pass reads the right one. A request that ends has no next pass. The prefill server of the
next turn is told all computed tokens, accepted drafts among them, and the running block (clip_ssm_state_blocks).
"""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1 import SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched import scheduler as scheduling
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request

BLOCK, BLOCKS = 4, 8  # tokens of a block; blocks of the server, beside the null block
PARTS = ("scheduler", "cache", "model", "parallel", "observability", "ec_manager", "aux_output", "kv_transfer")
# What the prefill server has answered; a proxy sends it to the decode server.
PREFILLED = {"do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[1], [2]]}
PREFILLED |= {"remote_engine_id": "prefill", "remote_request_id": "first", "remote_host": "host", "remote_port": 1}


class Values(SimpleNamespace):
    """The configuration, and each part of it. What is not said is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self if name.removesuffix("_config") in (*PARTS, "speculative") else None


class Connector(NixlPullConnectorScheduler, SupportsHMA):  # type: ignore[misc]
    """The scheduler's half of NixlConnector. What it does not have does nothing."""

    requires_kv_delivery = supports_divergent_local_hybrid_hits = True
    request_finished_all_groups = NixlPullConnectorScheduler.request_finished

    def get_loaded_kv_cache_group_ids(self, _: Request) -> tuple[int, ...]:
        return (0, 1)

    def __getattr__(self, _: str) -> Any:
        return lambda *_: None


config = Values(
    **{"max_num_seqs": 1, "max_num_batched_tokens": 8, "max_model_len": 12, "max_in_flight_tokens": 8},
    **{"policy": "fcfs", "long_prefill_token_threshold": 0},
    enable_chunked_prefill=True,
    scheduler_reserve_full_isl=True,
    **{"watermark": 0.0, "prefill_schedule_interval": 1, "num_gpu_blocks": BLOCKS + 1, "block_size": BLOCK},
    **{"enable_prefix_caching": True, "mamba_cache_mode": "align"},
    **{f"{what}_parallel_size": 1 for what in ("decode_context", "prefill_context", "pipeline", "tensor")},
    **{"data_parallel_index": 0, "kv_buffer_device": "cuda"},
    get_from_extra_config={"bidirectional_kv_xfer": True, "kv_recompute_threshold": 0}.get,
    get_encoder_cache_manager_obj=lambda *_: None,
    **{"num_speculative_tokens": 1, "max_num_new_slots_for_drafting": 0},
    **{f"num_{what}_tokens": 0 for what in ("lookahead", "prefill_lookahead", "hash_lookahead")},
    **{name: lambda: False for name in ("use_eagle", "use_eagle_block_drop", "needs_eagle_block_drop")},
    max_concurrent_batches=1,
)
register_all_kvcache_specs(config)
kv_cache_utils.init_none_hash(sha256)
full = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
numbers: dict[str, Any] = {"shapes": ((1,),), "dtypes": (torch.float32,), "num_speculative_blocks": 1}
mamba = MambaSpec(block_size=BLOCK, mamba_cache_mode="align", **numbers)
groups = KVCacheConfig(BLOCKS + 1, [], [KVCacheGroupSpec(["full"], full), KVCacheGroupSpec(["mamba"], mamba)])
scheduling.KVConnectorFactory = Values(create_connector=lambda **_: Connector(config, "decode", groups))
scheduler = scheduling.Scheduler(
    vllm_config=config,
    kv_cache_config=groups,
    structured_output_manager=Values(
        accept_tokens=lambda *_: True, should_advance=lambda *_: False, validate_tokens=lambda _, tokens: tokens
    ),
    mm_registry=Values(supports_multimodal_inputs=lambda *_: False),
    block_size=BLOCK,
    hash_block_size=BLOCK,
    log_stats=False,
)
states: dict[int, int] = {}  # by block: it has the state after so many tokens


def step(*sampled: int) -> Any:
    """The scheduler makes a step. The workers load what it says, or compute, and leave the state after each token."""
    output = scheduler.schedule()
    if output.num_scheduled_tokens:
        end, table = request.num_computed_tokens, scheduler.kv_cache_manager.get_block_ids("turn")[1]
        drafts = len(output.scheduled_spec_decode_tokens.get("turn", ()))
        running = (end - 1) // BLOCK
        states.update({table[running + n]: end - drafts + n for n in range(drafts + 1)})
    loaded = KVConnectorOutput(finished_recving=set(output.kv_connector_metadata.reqs_to_recv))
    names = list(output.num_scheduled_tokens)
    result = ModelRunnerOutput(names, {"turn": 0}, [list(sampled) for _ in names], kv_connector_output=loaded)
    return scheduler.update_from_output(output, result)


sampling = Values(max_tokens=3, min_tokens=0, ignore_eos=True, stop_token_ids=[])
hasher = kv_cache_utils.get_request_block_hasher(BLOCK, sha256)
request = Request("turn", [1, 2, 3, 4], sampling, None, arrival_time=0.0, block_hasher=hasher)
request.kv_transfer_params = PREFILLED
scheduler.add_request(request)
step()  # loads all but the last token of the prompt
step(5)
scheduler.update_draft_token_ids(DraftTokenIds(["turn"], [[6]]))
answers = step(6, 7)  # the draft is accepted, and the request ends
following = Request("next", list(range(1, 11)), sampling, None, arrival_time=0.0)
following.kv_transfer_params = told = answers[0].outputs[0].kv_transfer_params
loads, _ = Connector(config, "prefill", groups).get_num_new_matched_tokens(following, 0)
has = states[told["remote_block_ids"][1][0]]
assert has == loads, f"the prefill server of the next turn loads {loads} tokens, with the state after {has} of them"

"""The prefix cache has a mamba state under the hash of a longer text than that after which the state is.

A hybrid model whose hidden states are extracted (``--speculative-config``, method ``extract_hidden_states``): the
release's own planning gives the layer of hidden states smaller blocks than those of states, and ``EngineCore`` takes
the smallest size as that at whose multiples chunks end. So a chunk ends inside a block of states, and the next one runs
past its end. The block gets the hash of all its tokens.
"""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_planning, kv_cache_utils
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, HiddenStateCacheSpec, KVCacheConfig, MambaSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

BLOCK, BLOCKS = 4, 20  # tokens of a block, also of states; blocks, beside the null block
PARTS = ("scheduler", "cache", "model", "parallel", "observability", "ec_manager", "aux_output")


class Values(SimpleNamespace):
    """The configuration, and each part of it. What is not said is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self if name.removesuffix("_config") in PARTS else None


config = Values(
    max_num_seqs=2,
    max_num_batched_tokens=6,
    max_model_len=14,
    policy="fcfs",
    long_prefill_token_threshold=0,
    enable_chunked_prefill=True,
    scheduler_reserve_full_isl=True,
    watermark=0.0,
    prefill_schedule_interval=1,
    num_gpu_blocks=BLOCKS + 1,
    enable_prefix_caching=True,
    mamba_cache_mode="align",
    decode_context_parallel_size=1,
    prefill_context_parallel_size=1,
    data_parallel_size=1,
    pipeline_parallel_size=1,
    get_encoder_cache_manager_obj=lambda *_: None,
    num_speculative_tokens=0,
    num_lookahead_tokens=0,
    num_prefill_lookahead_tokens=0,
    num_hash_lookahead_tokens=0,
    max_in_flight_tokens=6,
    max_concurrent_batches=1,
    enabled=False,
    get_resolved_kv_cache_layout=lambda: Values(is_block_outermost=False),
)
register_all_kvcache_specs(config)
kv_cache_utils.init_none_hash(sha256)
full = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
mamba = MambaSpec(block_size=BLOCK, shapes=((8,),), dtypes=(torch.float32,), mamba_cache_mode="align")
hidden = HiddenStateCacheSpec(block_size=BLOCK, num_kv_heads=2, head_size=2, dtype=torch.float32)
groups = kv_cache_planning.get_kv_cache_groups(config, {"full": full, "mamba": mamba, "hidden": hidden})
config.block_size = min(group.kv_cache_spec.block_size for group in groups)  # as in engine/core.py
cached = KVCacheConfig(BLOCKS + 1, [], groups)
whole, unit = kv_cache_utils.resolve_kv_cache_block_sizes(cached, config)
scheduler = Scheduler(
    vllm_config=config,
    kv_cache_config=cached,
    structured_output_manager=Values(accept_tokens=lambda *_: True, should_advance=lambda *_: False),
    mm_registry=Values(supports_multimodal_inputs=lambda *_: False),
    block_size=whole,
    hash_block_size=unit,
    log_stats=False,
)
states: dict[int, list[int]] = {}  # by block: the tokens after which the state in it is
wrong: list[str] = []


def add(name: str, prompt: list[int]) -> None:
    sampling = Values(max_tokens=1, min_tokens=0, ignore_eos=True, stop_token_ids=[])
    hasher = kv_cache_utils.get_request_block_hasher(unit, sha256)
    scheduler.add_request(Request(name, prompt, sampling, None, arrival_time=0.0, block_hasher=hasher))


def step() -> None:
    """The scheduler makes a step, and workers compute it: they copy blocks, read all states, then write new ones."""
    output = scheduler.schedule()
    states.update({target: states.get(source, []) for source, target in output.kv_cache_block_copies or ()})
    texts, written = {}, {}
    for name, count in output.num_scheduled_tokens.items():
        request, table = scheduler.requests[name], scheduler.kv_cache_manager.get_block_ids(name)[1]
        text = texts[name] = list(request.all_token_ids)[: request.num_computed_tokens]
        before = text[: len(text) - count]
        state = states.get(table[(len(before) - 1) // BLOCK], []) if before else []
        if state != before:
            wrong.append(f"after {before} request {name!r} goes on from the state after {state}")
        written[table[(len(text) - 1) // BLOCK]] = text
    states.update(written)
    names = list(texts)
    sampled = [[9] if len(texts[name]) >= scheduler.requests[name].num_tokens else [] for name in names]
    indices = {name: n for n, name in enumerate(names)}
    scheduler.update_from_output(output, ModelRunnerOutput(names, indices, sampled))


add("first", [*range(1, 14)])
for _ in range(3):
    step()
add("second", [*range(1, 10)])
step()
assert not wrong, f"a request computes with a state of other tokens: {wrong[0]}"

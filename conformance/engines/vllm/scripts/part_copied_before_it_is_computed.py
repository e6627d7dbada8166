"""A request goes on in a copy of a block that the same step has yet to copy and to compute, and reads zeros.

The prefix cache has the first half of a block, and two requests come whose prompts go on behind it. The copy in which
the first request goes on gets the hash of a whole block when it is handed out, and the second request finds it in the
same step. The workers read the sources of all copies of a step before they write any target.
"""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

BLOCK, BLOCKS, MATCH = 4, 20, 2  # tokens of a block; blocks, beside the null block; --prefix-match-unit
PARTS = ("scheduler", "cache", "model", "parallel", "observability", "ec_manager", "aux_output")


class Values(SimpleNamespace):
    """The configuration, and each part of it. What is not said is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self if name.removesuffix("_config") in PARTS else None


config = Values(
    max_num_seqs=2,
    max_num_batched_tokens=32,
    max_model_len=20,
    policy="fcfs",
    long_prefill_token_threshold=0,
    enable_chunked_prefill=True,
    scheduler_reserve_full_isl=True,
    watermark=0.0,
    prefill_schedule_interval=1,
    num_gpu_blocks=BLOCKS + 1,
    enable_prefix_caching=True,
    block_size=BLOCK,
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
    max_in_flight_tokens=32,
    max_concurrent_batches=1,
    enabled=False,
)
register_all_kvcache_specs(config)
kv_cache_utils.init_none_hash(sha256)
full = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
mamba = MambaSpec(block_size=BLOCK, shapes=((1,),), dtypes=(torch.float32,), mamba_cache_mode="align")
groups = [KVCacheGroupSpec(["full"], full), KVCacheGroupSpec(["mamba"], mamba)]
scheduler = Scheduler(
    vllm_config=config,
    kv_cache_config=KVCacheConfig(BLOCKS + 1, [], groups, prefix_cache_retention_interval=0),
    structured_output_manager=Values(accept_tokens=lambda *_: True, should_advance=lambda *_: False),
    mm_registry=Values(supports_multimodal_inputs=lambda *_: False),
    block_size=BLOCK,
    hash_block_size=MATCH,
    log_stats=False,
)
kv_cache: dict[int, list[Any]] = {}  # by block of the layers with full attention: of each slot the text up to its token
wrong: list[str] = []


def add(name: str, prompt: list[int]) -> None:
    sampling = Values(max_tokens=1, min_tokens=0, ignore_eos=True, stop_token_ids=[])
    hasher = kv_cache_utils.get_request_block_hasher(MATCH, sha256)
    scheduler.add_request(Request(name, prompt, sampling, None, arrival_time=0.0, block_hasher=hasher))


def step() -> None:
    """The scheduler makes a step, and workers compute it: they copy blocks, then each writes its tokens."""
    output = scheduler.schedule()
    read = {target: kv_cache.get(source, [None] * BLOCK) for source, target in output.kv_cache_block_copies or ()}
    kv_cache.update({target: list(slots) for target, slots in read.items()})
    texts, tables = {}, {}
    for name, count in output.num_scheduled_tokens.items():
        request, tables[name] = scheduler.requests[name], scheduler.kv_cache_manager.get_block_ids(name)[0]
        texts[name] = list(request.all_token_ids)[: request.num_computed_tokens]
        for end in range(len(texts[name]) - count + 1, len(texts[name]) + 1):
            slots = kv_cache.setdefault(tables[name][(end - 1) // BLOCK], [None] * BLOCK)
            slots[(end - 1) % BLOCK] = texts[name][:end]
    for name, text in texts.items():
        for end in range(1, len(text) + 1):
            holds = kv_cache[tables[name][(end - 1) // BLOCK]][(end - 1) % BLOCK]
            if holds != text[:end]:
                wrong.append(f"request {name!r} reads {holds} for {text[:end]}")
    names = list(texts)
    sampled = [[9] if len(texts[name]) >= scheduler.requests[name].num_tokens else [] for name in names]
    indices = {name: n for n, name in enumerate(names)}
    scheduler.update_from_output(output, ModelRunnerOutput(names, indices, sampled))


add("first", [1, 2, 3])
step()
step()
add("second", [1, 2, 3, 4, 5, 6, 7, 8, 9])
add("third", [1, 2, 3, 4, 5, 6, 7, 8, 9])
step()
assert not wrong, f"a request reads KV cache that is not of its text: {wrong[0]}"

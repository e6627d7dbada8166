"""With mamba layers the prefix cache finds a state that the same step has yet to compute, and a request reads it.

Two requests have one prompt. The blocks of the first get their hashes when they are handed out, and the second one
finds them in the same step. Workers copy the states from which requests go on before they compute any request.
"""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils, single_type_kv_cache_manager
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

BLOCK, BLOCKS = 4, 20  # tokens of a block; blocks, beside the null block
PARTS = ("scheduler", "cache", "model", "parallel", "observability", "ec_manager")


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
    num_gpu_blocks=BLOCKS + 1,
    enable_prefix_caching=True,
    block_size=BLOCK,
    mamba_cache_mode="align",
    decode_context_parallel_size=1,
    prefill_context_parallel_size=1,
    pipeline_parallel_size=1,
    get_encoder_cache_manager_obj=lambda *_: None,
    num_speculative_tokens=0,
    num_lookahead_tokens=0,
    max_in_flight_tokens=32,
    max_concurrent_batches=1,
)
getattr(single_type_kv_cache_manager, "register_all_kvcache_specs", lambda _: None)(config)
kv_cache_utils.init_none_hash(sha256)
full = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
mamba = MambaSpec(block_size=BLOCK, shapes=((1,),), dtypes=(torch.float32,), mamba_cache_mode="align")
groups = [KVCacheGroupSpec(["full"], full), KVCacheGroupSpec(["mamba"], mamba)]
sizes = ("block_size", "hash_block_size")  # older releases have the first alone
scheduler = Scheduler(
    vllm_config=config,
    kv_cache_config=KVCacheConfig(BLOCKS + 1, [], groups),
    structured_output_manager=Values(should_advance=lambda *_, **__: False),
    mm_registry=Values(supports_multimodal_inputs=lambda *_: False),
    log_stats=False,
    **{size: BLOCK for size in sizes if size in Scheduler.__init__.__annotations__},
)
states: dict[int, list[int]] = {}  # by block: the tokens for which the state in it was computed
wrong: list[str] = []


def add(name: str, prompt: list[int]) -> None:
    sampling = Values(max_tokens=1, min_tokens=0, ignore_eos=True, stop_token_ids=[])
    hasher = kv_cache_utils.get_request_block_hasher(BLOCK, sha256)
    given = {"eos_token_id": None} if "eos_token_id" in Request.__init__.__annotations__ else {}
    scheduler.add_request(Request(name, prompt, sampling, None, arrival_time=0.0, block_hasher=hasher, **given))


def step() -> None:
    """The scheduler makes a step, and workers compute it: all requests read their states, and then write new ones."""
    output = scheduler.schedule()
    texts, tables = {}, {}
    for name, count in output.num_scheduled_tokens.items():
        request, tables[name] = scheduler.requests[name], scheduler.kv_cache_manager.get_block_ids(name)[1]
        texts[name] = list(request.all_token_ids)[: request.num_computed_tokens]
        before = texts[name][: len(texts[name]) - count]
        state = states.get(tables[name][(len(before) - 1) // BLOCK]) if before else []
        if state != before:
            wrong.append(f"after {before} request {name!r} goes on from the state after {state}")
    for name, text in texts.items():
        states[tables[name][(len(text) - 1) // BLOCK]] = text
    names = list(texts)
    sampled = [[9] if len(texts[name]) >= scheduler.requests[name].num_tokens else [] for name in names]
    indices = {name: n for n, name in enumerate(names)}
    scheduler.update_from_output(output, ModelRunnerOutput(names, indices, sampled, None, {}, []))


add("first", [1, 2, 3, 4, 5, 6, 7, 8, 9])
add("second", [1, 2, 3, 4, 5, 6, 7, 8, 9])
for _ in range(3):
    step()
assert not wrong, f"a request computes with a state of other tokens: {wrong[0]}"

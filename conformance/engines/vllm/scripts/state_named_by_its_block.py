"""The prefix cache has a mamba state under the hash of a longer text than that after which the state is.

A request goes on in a copy of a state after half a block, and computes past the end of the block in one chunk, since
its layers leave the state for the prefix cache inside the chunk. The block with the old state gets the hash of a whole
block of the text.
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
inside = {"num_prefill_checkpoint_blocks": 1, "prefill_checkpoint_alignment": 1}
mamba = MambaSpec(block_size=BLOCK, shapes=((1,),), dtypes=(torch.float32,), mamba_cache_mode="align", **inside)
groups = [KVCacheGroupSpec(["full"], full), KVCacheGroupSpec(["mamba"], mamba)]
scheduler = Scheduler(
    vllm_config=config,
    kv_cache_config=KVCacheConfig(BLOCKS + 1, [], groups, prefix_cache_retention_interval=BLOCK),
    structured_output_manager=Values(accept_tokens=lambda *_: True, should_advance=lambda *_: False),
    mm_registry=Values(supports_multimodal_inputs=lambda *_: False),
    block_size=BLOCK,
    hash_block_size=MATCH,
    log_stats=False,
)
states: dict[int, list[int]] = {}  # by block: the tokens after which the state in it is
wrong: list[str] = []


def add(name: str, prompt: list[int]) -> None:
    sampling = Values(max_tokens=1, min_tokens=0, ignore_eos=True, stop_token_ids=[])
    hasher = kv_cache_utils.get_request_block_hasher(MATCH, sha256)
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


add("first", [1, 2, 3])
step()
step()
add("second", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
step()
add("third", [1, 2, 3, 4, 5])
step()
assert not wrong, f"a request computes with a state of other tokens: {wrong[0]}"

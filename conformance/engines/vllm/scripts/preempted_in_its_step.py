"""With priority scheduling the prefix cache finds blocks that nobody has computed, with the KV of another request.

Scheduler.schedule gives a request its blocks, puts their hashes into the prefix cache, and preempts it in this call.
"""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

BLOCK, BLOCKS = 2, 8  # tokens of a block; blocks of the server, beside the null block


class Values(SimpleNamespace):
    """A part of the configuration. What is not said is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


config = Values(
    scheduler_config=Values(
        max_num_seqs=2,
        max_num_batched_tokens=8,
        max_num_encoder_input_tokens=0,
        encoder_cache_size=0,
        policy="priority",
        long_prefill_token_threshold=4,  # most tokens of a chunk of a prompt
        enable_chunked_prefill=True,
        watermark=0.0,
        prefill_schedule_interval=1,
        scheduler_reserve_full_isl=True,
    ),
    cache_config=Values(
        num_gpu_blocks=BLOCKS + 1, block_size=BLOCK, enable_prefix_caching=True, mamba_cache_mode="none"
    ),
    model_config=Values(max_model_len=16, runner_type="generate"),
    parallel_config=Values(
        data_parallel_index=0,
        decode_context_parallel_size=1,
        prefill_context_parallel_size=1,
        pipeline_parallel_size=1,
        cp_kv_cache_interleave_size=1,
    ),
    observability_config=Values(per_request_spec_decode_metrics="none"),
    ec_manager_config=Values(get_encoder_cache_manager_obj=lambda *_: None),
    aux_output_config=Values(enabled=False),
    num_speculative_tokens=0,
    num_lookahead_tokens=0,
    num_prefill_lookahead_tokens=0,
    num_hash_lookahead_tokens=0,
    max_in_flight_tokens=8,
    max_concurrent_batches=1,
)
register_all_kvcache_specs(config)
kv_cache_utils.init_none_hash(sha256)
spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
scheduler = Scheduler(
    vllm_config=config,
    kv_cache_config=KVCacheConfig(BLOCKS + 1, [], [KVCacheGroupSpec(["layer"], spec)]),
    structured_output_manager=Values(accept_tokens=lambda *_: True, should_advance=lambda *_: False),
    mm_registry=Values(supports_multimodal_inputs=lambda *_: False),
    block_size=BLOCK,
    hash_block_size=BLOCK,
    log_stats=False,
)
text: dict[int, tuple[str, int]] = {}  # by KV slot: whose token it holds
place: dict[str, list[int]] = {}  # by request: its blocks, as the workers know them
wrong: list[str] = []


def add(name: str, first: int, length: int, outputs: int, priority: int) -> None:
    sampling = Values(max_tokens=outputs, min_tokens=0, ignore_eos=True, stop_token_ids=[])
    hasher = kv_cache_utils.get_request_block_hasher(BLOCK, sha256)
    prompt = list(range(first, first + length))
    scheduler.add_request(Request(name, prompt, sampling, None, float(first), priority=priority, block_hasher=hasher))


def step() -> None:
    """The scheduler makes a step, and workers compute it: they write the new tokens and read all."""
    output = scheduler.schedule()
    again = output.scheduled_cached_reqs
    done = {new.req_id: (new.num_computed_tokens, list(new.block_ids[0])) for new in output.scheduled_new_reqs}
    for name, blocks, start in zip(again.req_ids, again.new_block_ids, again.num_computed_tokens, strict=True):
        before = [] if name in again.resumed_req_ids else place[name]
        done[name] = (start, before + list(blocks[0] if blocks else ()))
    ends = {name: start + output.num_scheduled_tokens[name] for name, (start, _) in done.items()}
    for name, (start, blocks) in done.items():
        place[name], end = blocks, ends[name]
        slots = [blocks[n // BLOCK] * BLOCK + n % BLOCK for n in range(end)]
        text.update({slots[n]: (name, n) for n in range(start, end)})
        wrong.extend(
            f"{name} reads {text.get(s)} for token {n}" for n, s in enumerate(slots) if text.get(s) != (name, n)
        )
    sampled = [[9] if end >= scheduler.requests[name].num_tokens else [] for name, end in ends.items()]
    indices = {name: n for n, name in enumerate(ends)}
    scheduler.update_from_output(output, ModelRunnerOutput(list(ends), indices, sampled))


add("earlier", first=100, length=4, outputs=1, priority=0)
add("low", first=200, length=12, outputs=1, priority=1)
step()
add("urgent", first=300, length=4, outputs=2, priority=0)
for _ in range(6):
    step()
assert not wrong, f"a request reads what nobody has computed for it: {wrong[0]}"

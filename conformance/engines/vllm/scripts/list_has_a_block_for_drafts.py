"""With an EAGLE head a decode server reads KV cache that is moved by one block.

The prefill server sends the block that it has for drafts, too (Scheduler._connector_finished). The decode server has
none, and NIXL's workers pair the two lists of blocks from the end.
"""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1 import SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.scheduler import NixlConnectorScheduler
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.worker import NixlConnectorWorker
from vllm.v1.core.sched import scheduler as scheduling
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

BLOCK, BLOCKS = 4, 8  # tokens of a block; blocks of a server, beside the null block
PARTS = ("scheduler", "cache", "model", "parallel", "observability", "ec_manager", "kv_transfer", "speculative")


class Values(SimpleNamespace):
    """The configuration, and each part of it. What is not said is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self if name.removesuffix("_config") in PARTS else None


class Connector(NixlConnectorScheduler, SupportsHMA):  # type: ignore[misc]
    """The scheduler's half of NIXL."""

    request_finished_all_groups = NixlConnectorScheduler.request_finished

    def __getattr__(self, _: str) -> Any:
        return lambda *_: None  # no other call does anything


class PairingWorkers(NixlConnectorWorker):  # type: ignore[misc]
    """The workers' half of NIXL, as far as it pairs blocks."""

    def __init__(self) -> None:
        self._has_mamba = False


config = Values(
    **{"max_num_seqs": 1, "max_num_batched_tokens": 8, "max_model_len": 10, "max_in_flight_tokens": 8},
    policy="fcfs",
    long_prefill_token_threshold=0,
    enable_chunked_prefill=True,
    scheduler_reserve_full_isl=True,
    watermark=0.0,
    num_gpu_blocks=BLOCKS + 1,
    block_size=BLOCK,
    mamba_cache_mode="none",
    **{f"{what}_parallel_size": 1 for what in ("decode_context", "prefill_context", "pipeline", "tensor")},
    data_parallel_index=0,
    get_from_extra_config=lambda _, default: default,
    get_encoder_cache_manager_obj=lambda *_: None,
    **{"num_speculative_tokens": 1, "num_lookahead_tokens": 1},
    use_eagle=lambda: True,
    **{name: lambda: False for name in ("uses_draft_model", "use_dflash", "use_dspark")},
    max_concurrent_batches=1,
)
register_all_kvcache_specs(config)
size: dict[str, Any] = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
specs = {"full": FullAttentionSpec(**size), "window": SlidingWindowSpec(**size, sliding_window=6)}
groups = KVCacheConfig(BLOCKS + 1, [], [KVCacheGroupSpec([name], spec) for name, spec in specs.items()])
scheduling.KVConnectorFactory = Values(create_connector=lambda **_: Connector(config, "here", groups))


def server(asked: dict[str, Any]) -> Any:
    """The scheduler of a server that gets a prompt. ``asked``: what the client says of KV cache."""
    scheduler = scheduling.Scheduler(
        vllm_config=config,
        kv_cache_config=groups,
        structured_output_manager=Values(should_advance=lambda *_, **__: False),
        mm_registry=Values(supports_multimodal_inputs=lambda *_: False),
        block_size=BLOCK,
        hash_block_size=BLOCK,
        log_stats=False,
    )
    sampling = Values(
        max_tokens=1, min_tokens=0, ignore_eos=True, stop_token_ids=[], extra_args={"kv_transfer_params": asked}
    )
    scheduler.add_request(Request("request", list(range(8)), sampling, None, arrival_time=0.0))
    return scheduler


prefill = server({"do_remote_prefill": False, "do_remote_decode": True})
output = prefill.schedule()
tables = prefill.kv_cache_manager.get_block_ids("request")
answers = prefill.update_from_output(output, ModelRunnerOutput(["request"], {"request": 0}, [[9]]))
told = answers[0].outputs[0].kv_transfer_params
asked = server(told).schedule().kv_connector_metadata.reqs_to_recv["request"]
local, remote = PairingWorkers()._apply_prefix_caching(asked.local_block_ids, asked.remote.block_ids, 1)
needed = [table[2 - len(written) : 2] for table, written in zip(tables, local, strict=True)]  # a prompt of two blocks
wrong = [
    f"{[*read]} where those of the prompt are {[*table]}"
    for read, table in zip(remote, needed, strict=True)
    if [*read] != [*table]
]
assert not wrong, f"the decode server reads the blocks {wrong[0]}"

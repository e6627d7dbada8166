"""A request whose KV transfer has failed is answered from KV cache blocks that nobody has written.

In a model with several groups of layers NIXL's workers say of a failed transfer that it is done, and nothing more
(NixlConnectorWorker._handle_failed_transfer). So the scheduler counts the whole prompt as computed.
"""

import queue
from types import SimpleNamespace
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1 import SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.scheduler import NixlConnectorScheduler
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.worker import NixlConnectorWorker
from vllm.v1.core.sched import scheduler as scheduling
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request

BLOCK, BLOCKS = 4, 8  # tokens of a block; blocks, beside the null block
PARTS = ("scheduler", "cache", "model", "parallel", "observability", "ec_manager", "kv_transfer")


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


class FailingWorkers(NixlConnectorWorker):  # type: ignore[misc]
    """The workers' half of NIXL, as far as failed transfers need it, on a network on which each transfer fails."""

    def __init__(self) -> None:
        self._is_hma_required = True
        self._invalid_block_ids, self._failed_recv_reqs = queue.Queue[Any](), queue.Queue[Any]()
        self.nixl_wrapper = Values(check_xfer_state=lambda _: "ERR", release_xfer_handle=lambda _: None)
        self.xfer_stats = Values(record_failed_transfer=lambda: None)

    def _log_failure(self, **_: Any) -> None:
        """Needs the configuration of a server."""

    def failed(self, told: Any) -> KVConnectorOutput:
        """What the workers tell the scheduler when the transfers of a step have failed."""
        self._recving_metadata = dict(told)
        done = self._pop_done_transfers({name: [1] for name in told})
        return KVConnectorOutput(finished_recving=done, invalid_block_ids=self.get_block_ids_with_load_errors())


config = Values(
    **{"max_num_seqs": 1, "max_num_batched_tokens": 8, "max_model_len": 9, "max_in_flight_tokens": 8},
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
    kv_load_failure_policy="fail",
    get_encoder_cache_manager_obj=lambda *_: None,
    **{"num_speculative_tokens": 0, "num_lookahead_tokens": 0},
    max_concurrent_batches=1,
)
register_all_kvcache_specs(config)
size: dict[str, Any] = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
specs = {"full": FullAttentionSpec(**size), "window": SlidingWindowSpec(**size, sliding_window=6)}
groups = KVCacheConfig(BLOCKS + 1, [], [KVCacheGroupSpec([name], spec) for name, spec in specs.items()])
scheduling.KVConnectorFactory = Values(create_connector=lambda **_: Connector(config, "here", groups))
scheduler = scheduling.Scheduler(
    vllm_config=config,
    kv_cache_config=groups,
    structured_output_manager=Values(should_advance=lambda *_, **__: False),
    mm_registry=Values(supports_multimodal_inputs=lambda *_: False),
    block_size=BLOCK,
    hash_block_size=BLOCK,
    log_stats=False,
)
other = {"remote_engine_id": "there", "remote_request_id": "its", "remote_host": "host", "remote_port": 1, "tp_size": 1}
asked = {"do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[1, 2], [1, 2]], **other}
sampling = Values(
    max_tokens=1, min_tokens=0, ignore_eos=True, stop_token_ids=[], extra_args={"kv_transfer_params": asked}
)
scheduler.add_request(Request("request", list(range(8)), sampling, None, arrival_time=0.0))
output = scheduler.schedule()
told = FailingWorkers().failed(output.kv_connector_metadata.reqs_to_recv)
scheduler.update_from_output(output, ModelRunnerOutput([], {}, [], kv_connector_output=told))
given = [(new.req_id, new.num_computed_tokens) for new in scheduler.schedule().scheduled_new_reqs]
assert not any(computed for _, computed in given), f"{given[0][1]} of 8 tokens count as computed, and none was loaded"

"""A server that gets the KV cache of a whole prompt from another one computes its last token without a key it needs.

Two servers of a model with a sliding window, with NixlConnector: one computes the prompt, the other answers. The one
that answers loads what the token behind the prompt needs, and then computes the last token of the prompt again. The
window of this token begins one token earlier: here in a block that has left the window on both servers.
"""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1 import SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler
from vllm.v1.core.sched import scheduler as scheduling
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request

BLOCK, BLOCKS, SIZE = 4, 7, 6  # tokens of a block; blocks of a server, beside the null block; tokens of the window
PARTS = ("scheduler", "cache", "model", "parallel", "observability", "ec_manager", "aux_output", "kv_transfer")
OPEN = {"do_remote_decode": True, "do_remote_prefill": False}  # what a proxy says to the server that computes a prompt


class Values(SimpleNamespace):
    """The configuration, and each part of it. What is not said is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self if name.removesuffix("_config") in PARTS else None


class Connector(NixlPullConnectorScheduler, SupportsHMA):  # type: ignore[misc]
    """The scheduler's half of NixlConnector, as the connector itself calls it."""

    requires_kv_delivery = supports_divergent_local_hybrid_hits = False
    request_finished_all_groups = NixlPullConnectorScheduler.request_finished

    def get_loaded_kv_cache_group_ids(self, _: Request) -> tuple[int, ...]:
        return (0, 1)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_: None  # no other call does anything


config = Values(
    **{"max_num_seqs": 1, "max_num_batched_tokens": 16, "max_model_len": 16, "max_in_flight_tokens": 16},
    **{"policy": "fcfs", "long_prefill_token_threshold": 0, "enable_chunked_prefill": True, "watermark": 0.0},
    **{"prefill_schedule_interval": 1, "num_gpu_blocks": BLOCKS + 1, "mamba_cache_mode": "none", "block_size": BLOCK},
    **{f"{what}_parallel_size": 1 for what in ("decode_context", "prefill_context", "pipeline", "tensor")},
    **{f"num_{what}_tokens": 0 for what in ("speculative", "lookahead", "prefill_lookahead", "hash_lookahead")},
    **{"max_concurrent_batches": 1, "data_parallel_index": 0, "scheduler_reserve_full_isl": True},
    get_encoder_cache_manager_obj=lambda *_: None,
    get_from_extra_config=lambda _, default: default,
)
register_all_kvcache_specs(config)
shape = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
window = SlidingWindowSpec(**shape, sliding_window=SIZE)
groups = [KVCacheGroupSpec(["full"], FullAttentionSpec(**shape)), KVCacheGroupSpec(["window"], window)]
kv_cache = KVCacheConfig(BLOCKS + 1, [], groups)
scheduling.KVConnectorFactory = Values(create_connector=lambda **_: Connector(config, "server", kv_cache))
missing: list[str] = []


class VllmServer:
    """A scheduler, and of each block of the layers with a window the tokens whose key and value are in it."""

    def __init__(self) -> None:
        self.holds: dict[int, set[int]] = {}
        self.scheduler = scheduling.Scheduler(
            **{"vllm_config": config, "kv_cache_config": kv_cache, "log_stats": False},
            **{"block_size": BLOCK, "hash_block_size": BLOCK},
            structured_output_manager=Values(accept_tokens=lambda *_: True, should_advance=lambda *_: False),
            mm_registry=Values(supports_multimodal_inputs=lambda *_: False),
        )

    def answer(self, prompt: list[int], params: Any, has: dict[int, set[int]]) -> Any:
        """A request comes, and one token is sampled. Returns what the other server is told. ``has``: its blocks."""
        sampling = Values(max_tokens=1, min_tokens=0, ignore_eos=True, extra_args={"kv_transfer_params": params})
        self.scheduler.add_request(Request("request", [*prompt], sampling, None, arrival_time=0.0))
        for _ in range(9):
            output = self.scheduler.schedule()
            loads = output.kv_connector_metadata.reqs_to_recv
            for load in loads.values():  # the workers pair the blocks from the end
                own, other = (reversed(lists[1]) for lists in (load.local_block_ids, load.remote.block_ids))
                self.holds.update({to: {*has.get(of, ())} for to, of in zip(own, other, strict=False)})
            for name, count in output.num_scheduled_tokens.items():
                self.compute(name, count)
            names = [*output.num_scheduled_tokens]
            sampled = [[9] for _ in names]  # the batch has room for the whole prompt
            done = KVConnectorOutput(finished_recving={*loads})
            result = ModelRunnerOutput(names, {"request": 0}, sampled, kv_connector_output=done)
            for outputs in self.scheduler.update_from_output(output, result).values():
                if any(one.finished for one in outputs.outputs):
                    return outputs.outputs[0].kv_transfer_params
        raise RuntimeError("the request does not end")

    def compute(self, name: str, count: int) -> None:
        """Each token writes its key and value, and then reads those of its window."""
        table = self.scheduler.kv_cache_manager.get_block_ids(name)[1]
        end = self.scheduler.requests[name].num_computed_tokens
        for token in range(end - count, end):
            self.holds.setdefault(table[token // BLOCK], set()).add(token)
            for read in range(max(0, token - SIZE + 1), token):
                if read not in self.holds.get(table[read // BLOCK], ()):
                    missing.append(f"token {token} finds block {table[read // BLOCK]} in place of that of token {read}")


computes, answers, tokens = VllmServer(), VllmServer(), list(range(9))
computed = computes.answer(tokens, OPEN, {})
answers.answer(tokens, computed, computes.holds)
assert not missing, f"a key of the window is not there: {missing[0]}"

"""The configuration that a release of vLLM reads, as plain values.

vLLM builds its configuration from a model on disk and from the machine. Here a run gives the values. Each object has
the fields that the scheduler of any supported release reads, and no others: a release that reads another field has no
verdict (``conformance.driver.exception_origin.StandIn``). None of the objects decides anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from conformance.driver.exception_origin import StandIn
from conformance.driver.protocol import Json
from conformance.stems.block_cache.protocol import FULL


@dataclass(frozen=True)
class HostTier:
    """Host memory: so many ``slots`` of ``blocks_per_chunk`` blocks. ``policy``: ``lru`` or ``arc``. ``threshold``: how
    often a block is offered before it is copied. ``prompt_only``: only blocks of prompts are copied. ``pool``: host
    memory is a block pool, to which the simple connector copies (``eager`` or ``lazy``); empty where it has a manager.
    ``describes``: KV events say the blocks and the tokens of a slot, and not its key alone. ``within_step``: so many
    tokens are loaded before the step computes that runs their requests, 0 where none are.
    """

    slots: int
    blocks_per_chunk: int
    policy: str
    threshold: int
    prompt_only: bool
    pool: str = ""
    describes: bool = False
    within_step: int = 0


@dataclass(frozen=True)
class Tuning:
    """Options that most servers do not set. ``retention``: tokens between which a group with a window or states keeps
    a prefix, 0 for none but the ends of prompts and where texts part, ``None`` for each block. ``watermark``: a request
    is admitted beside others only where so many blocks stay free. ``interval``: of so many steps one computes prompts.
    ``whole``: a request is admitted where its whole prompt fits. ``match``: tokens of a hash, where they are fewer than
    those of a block; ``None`` for a block. The others: see ``TuningConfig``.
    """

    retention: int | None = None
    watermark: int = 0
    interval: int = 1
    whole: bool = True
    match: int | None = None
    junctions: bool = False
    whole_hits: bool = False
    adaptive: bool = False
    draft_model: bool = False
    short_hashes: bool = False


@dataclass(frozen=True)
class Setup:
    """What a run configures of a scheduler.

    ``block_size``: tokens of the smallest blocks: vLLM's own ``block_size`` is that of the group whose blocks are
    smallest. ``state_size``: tokens of a block of states. ``blocks``: of the pool, with the null block. ``batch``: most
    tokens of a step. ``requests``: most requests that run at once. ``max_length``: most tokens of a request.
    ``threshold``: most tokens of a chunk of a prompt, 0 for any number. ``drafts``: draft tokens of a request in a
    step. ``eagle``: the drafts come from an EAGLE head, which has KV cache of its own; else from n-grams or, where that
    is tuned, a draft model.
    ``steps_in_flight``: 1, 2 with the asynchronous scheduler, or more where the model is also split into pipeline
    stages. ``align``: mamba states are cached at block boundaries. ``events``: the pool says what it stores and
    removes. ``transfers``: KV cache comes from other servers and is read by them. ``reoffers``: a transfer of which
    nothing came is offered again. ``failure``: ``recompute`` or ``fail``, what becomes of a request of whose transfer a
    part did not come. ``host``: host memory in place of other servers. ``tuning``: options that most servers do not
    set. ``layers``: the groups of layers, as in the configuration of a run. ``both_ways``: who answers also lets other
    servers read what it has computed. ``servers``: KV cache moves between servers beside ``host``. ``workers``: how
    many end their transfers apart.
    """

    block_size: int
    blocks: int
    caching: bool
    batch: int
    requests: int
    max_length: int
    threshold: int = 0
    policy: str = "fcfs"
    drafts: int = 0
    eagle: bool = False
    steps_in_flight: int = 1
    align: bool = False
    events: bool = False
    transfers: bool = False
    reoffers: bool = False
    failure: str = "recompute"
    host: HostTier | None = None
    tuning: Tuning = Tuning()
    state_size: int = 0
    layers: Sequence[Json] = ()
    both_ways: bool = False
    servers: bool = False
    workers: int = 1

    @property
    def has_server_connector(self) -> bool:
        """KV cache of several groups of layers, or of other layers than such with full attention, moves between
        servers, or there is host memory, too: vLLM's own connector decides about it.
        """
        if self.host is not None:
            return self.servers
        return self.transfers and [group["kind"] for group in self.layers] != [FULL]

    @property
    def stages(self) -> int:
        """Pipeline stages of the model. With the asynchronous scheduler vLLM keeps one step more in flight than the
        model has stages; with several stages only its second model runner does so.
        """
        return max(1, self.steps_in_flight - 1)

    @property
    def ranks(self) -> int:
        """Processes that serve the model together: of each pipeline stage one, or with one stage as many tensor
        parallel ranks as there are workers.
        """
        return max(self.stages, self.workers)

    @property
    def has_draft_model(self) -> bool:
        """The drafts come from a model of their own."""
        return self.tuning.draft_model and self.drafts > 0 and not self.eagle

    @property
    def lookahead(self) -> int:
        """Tokens behind those of a pass for which a request gets slots: of an EAGLE head or a draft model, which write
        KV cache for what they draft.
        """
        return self.drafts if self.eagle or self.has_draft_model else 0

    @property
    def shortens_hits(self) -> bool:
        """A hit is made shorter for the layers of an EAGLE head, unless hashes cover what these layers have read."""
        return self.eagle and not self.tuning.whole_hits

    @property
    def hash_lookahead(self) -> int:
        """Tokens behind a block that its hash covers, in a release that has such hashes
        (``VllmConfig.num_hash_lookahead_tokens``).
        """
        plain = self.tuning.short_hashes or self.transfers or not self.caching
        return 1 if self.shortens_hits and not plain else 0


def config(setup: Setup) -> StandIn:
    """The object that stands in for a ``VllmConfig``."""
    in_flight = setup.steps_in_flight
    return StandIn(
        scheduler_config=_scheduler(setup),
        cache_config=_cache(setup),
        model_config=_model(setup),
        parallel_config=_parallel(setup),
        observability_config=_observability(),
        speculative_config=_speculation(setup) if setup.drafts else None,
        kv_events_config=StandIn(enable_kv_cache_events=True, publisher="null") if setup.events else None,
        kv_transfer_config=_transfers(setup) if setup.transfers else None,
        ec_transfer_config=None,
        ec_manager_config=StandIn(get_encoder_cache_manager_obj=nothing),
        aux_output_config=StandIn(enabled=False),
        lora_config=None,
        is_mm_encoder_only=False,
        use_v2_model_runner=setup.stages > 1,
        num_speculative_tokens=setup.drafts,
        num_lookahead_tokens=setup.lookahead,
        num_prefill_lookahead_tokens=int(setup.eagle),
        num_hash_lookahead_tokens=setup.hash_lookahead,
        max_in_flight_tokens=setup.batch * in_flight,
        max_concurrent_batches=in_flight,
    )


def _scheduler(setup: Setup) -> StandIn:
    return StandIn(
        max_num_seqs=setup.requests,
        max_num_active_seqs=None,
        max_num_batched_tokens=setup.batch,
        max_num_scheduled_tokens=None,
        max_num_encoder_input_tokens=0,
        encoder_cache_size=0,
        policy=setup.policy,
        long_prefill_token_threshold=setup.threshold,
        long_prefill_token_threshold_adaptive=setup.tuning.adaptive,
        enable_chunked_prefill=True,
        disable_chunked_mm_input=False,
        watermark=(setup.tuning.watermark + 0.5) / setup.blocks if setup.tuning.watermark else 0.0,  # rounded down
        prefill_schedule_interval=setup.tuning.interval,
        scheduler_reserve_full_isl=setup.tuning.whole,
        async_scheduling=setup.steps_in_flight > 1,
        **({"disable_hybrid_kv_cache_manager": False} if setup.has_server_connector else {}),
    )


def _transfers(setup: Setup) -> StandIn:
    return StandIn(
        kv_load_failure_policy=setup.failure,
        is_kv_consumer=True,
        is_kv_producer=True,
        is_kv_transfer_instance=True,
        **(_of_servers(setup) if setup.has_server_connector else {}),
    )


def _of_servers(setup: Setup) -> dict[str, Any]:
    """What the connector between servers reads beside the rest."""
    return {"get_from_extra_config": between_servers(setup).get, "kv_buffer_device": "cuda"}


def between_servers(setup: Setup) -> dict[str, Any]:
    """The options of the connector between servers: a load of a few tokens is worth while."""
    return {"bidirectional_kv_xfer": setup.both_ways, "kv_recompute_threshold": 0}


def _cache(setup: Setup) -> StandIn:
    return StandIn(
        num_gpu_blocks=setup.blocks,
        block_size=setup.block_size,
        enable_prefix_caching=setup.caching,
        mamba_cache_mode="align" if setup.align else "none",
        enable_mamba_fine_grained_prefix_cache=False,
        enable_mamba_shared_prefix_checkpoint=setup.tuning.junctions,
        prefix_cache_retention_interval=setup.tuning.retention,
        hash_block_size=None,  # what older releases call it; only where a server may set it do runs do so
        prefix_match_unit=setup.tuning.match,
        **(_CACHE_WITH_HOST if setup.host is not None else {}),
    )


# What the connector to host memory reads beside the rest.
_CACHE_WITH_HOST = {
    "cache_dtype": "float32",
    "kv_cache_layout": None,
}
_MODEL_WITH_HOST = {"use_mla": False, "model": "model", "dtype": "float32"}
_PARALLEL_WITH_HOST = {
    "rank": 0,
    "data_parallel_rank_local": None,
    "distributed_executor_backend": None,
    "nnodes_within_dp": 1,
}


def _model(setup: Setup) -> StandIn:
    return StandIn(
        max_model_len=setup.max_length,
        runner_type="generate",
        is_encoder_decoder=False,
        is_diffusion=False,
        is_multimodal_model=False,
        supports_multimodal_inputs=False,
        uses_mrope=False,
        enable_return_routed_experts=False,
        return_sampling_mask=False,
        **(
            _MODEL_WITH_HOST | {"get_total_num_kv_heads": lambda: setup.ranks // setup.stages}
            if setup.host is not None
            else {}
        ),
    )


def _parallel(setup: Setup) -> StandIn:
    return StandIn(
        data_parallel_index=0,
        data_parallel_rank=0,
        data_parallel_size=1,
        decode_context_parallel_size=1,
        prefill_context_parallel_size=1,
        pipeline_parallel_size=setup.stages,
        cp_kv_cache_interleave_size=1,
        **_parallel_of_connectors(setup),
    )


def _parallel_of_connectors(setup: Setup) -> dict[str, Any]:
    of_each_stage = {"tensor_parallel_size": setup.ranks // setup.stages}
    if setup.host is not None:
        return _PARALLEL_WITH_HOST | of_each_stage | {"world_size": setup.ranks}
    return of_each_stage if setup.has_server_connector else {}


def _observability() -> StandIn:
    return StandIn(
        kv_cache_metrics=False,
        enable_mfu_metrics=False,
        enable_logging_iteration_details=False,
        per_request_spec_decode_metrics="none",
    )


def _speculation(setup: Setup) -> StandIn:
    return StandIn(
        method="eagle" if setup.eagle else "draft_model" if setup.has_draft_model else "ngram",
        num_speculative_tokens=setup.drafts,
        num_speculative_tokens_per_batch_size=None,
        max_num_new_slots_for_drafting=0,
        disable_eagle_block_drop=setup.tuning.whole_hits,
        disable_lookahead_block_hashes=setup.tuning.short_hashes,
        use_eagle=_always(setup.eagle),
        use_eagle_block_drop=_always(setup.shortens_hits),
        needs_eagle_block_drop=_always(setup.eagle),
        uses_draft_model=_always(setup.has_draft_model),
        uses_extract_hidden_states=_always(False),
        use_multi_module_mtp=_always(False),
        use_dflash=_always(False),
        uses_dflash=_always(False),
        use_dspark=_always(False),
        uses_dspark=_always(False),
    )


def sampling(outputs: int, transfers: Json | None = None) -> StandIn:
    """The object that stands in for the ``SamplingParams`` of a request: it ends after ``outputs`` tokens.
    ``transfers``: what the client says of transfers between servers.
    """
    return StandIn(
        max_tokens=outputs,
        min_tokens=0,
        ignore_eos=True,
        eos_token_id=None,
        stop_token_ids=[],
        extra_args=None if transfers is None else {"kv_transfer_params": transfers},
        logprobs=None,
        num_logprobs=None,
        prompt_logprobs=None,
        structured_outputs=None,
        repetition_detection=None,
        skip_reading_prefix_cache=None,
    )


def adapter(number: int, name: str) -> StandIn:
    """The object that stands in for the ``LoRARequest`` of a LoRA adapter."""
    return StandIn(adapter_id=number, lora_int_id=number, lora_name=name, name=name, lora_path=f"/{name}")


def no_grammar() -> StandIn:
    """The object that stands in for the manager of structured output: no request has a grammar."""
    return StandIn(
        should_advance=_always(False),
        accept_tokens=_always(True),
        validate_tokens=lambda _request, tokens, *_, **__: tokens,
    )


def no_images() -> StandIn:
    """The object that stands in for the registry of multi-modal inputs."""
    return StandIn(supports_multimodal_inputs=_always(False), get_encdec_max_encoder_len=nothing)


def is_first_rank() -> bool:
    """Stands for whether this process is the first of its machine, and of all: it is the only one."""
    return True


def same(features: Any, *_: Any, **__: Any) -> Any:
    """Stands for what vLLM takes away of a request's images: no request has any."""
    return features


def platform() -> StandIn:
    """The object that stands in for the machine: one with CUDA, as far as the bookkeeping asks."""
    return StandIn(
        is_xpu=_always(False),
        is_cuda_alike=_always(True),
        is_rocm=_always(False),
        is_pin_memory_available=_always(False),
        register_custom_kv_cache_specs=nothing,
        device_type="cuda",
        fp8_dtype=nothing,
        get_nixl_supported_devices=dict,
    )


def _always(value: bool) -> Callable[..., bool]:
    return lambda *_, **__: value


def nothing(*_: Any, **__: Any) -> None:
    """Stands for what does nothing."""

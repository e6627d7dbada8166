"""The launch options and environment variables that vLLM's cache and scheduler read, and which of them are drawn.

What the modules of the newest release read is found in its source (``conformance.engines.option_reads``). Each option
is one with which schedulers are drawn (``DRAWN``), or stands in ``UNDRAWN`` under the reason why not. A test compares
both with the release, so an option of a new release is not overlooked. An option stands under the name of its field: of
``--block-size`` it is ``block_size``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from conformance.engines import option_reads
from conformance.engines.option_reads import Reads

PREFIX = "VLLM_"  # of the variables
SETTINGS = ("config/*.py",)
MODULES = (
    *("v1/core/**/*.py", "v1/request.py", "v1/kv_cache_interface.py", "v1/kv_cache_spec_registry.py"),
    *("v1/simple_kv_offload/**/*.py", "v1/kv_offload/**/*.py", "distributed/kv_events.py"),
    *("distributed/kv_transfer/kv_connector/v1/offloading/**/*.py",),
    *(f"distributed/kv_transfer/kv_connector/v1/{name}_connector.py" for name in ("offloading", "simple_cpu_offload")),
)
# Dicts whose keys are options: what is configured of a connector, and what a request says to it.
DICTS = re.compile(r"(kv_connector_)?extra_config|(kv_transfer_)?params")
# Storages behind host memory, another cache, and what copies blocks.
ELSEWHERE = re.compile(r"kv_offload/tiering/(?!manager|spec)|hisparse|/worker\.py|gpu_worker|cuda_mem_ops")
# By option, what of a run's configuration says it (``conformance.stems.block_cache.config``).
DRAWN: Mapping[str, str] = {
    **{"block_size": "block_size", "num_gpu_blocks": "blocks", "num_gpu_blocks_override": "blocks"},
    **{"hash_block_size": "tuning.match", "prefix_match_unit": "tuning.match"},
    **{"enable_prefix_caching": "caching", "max_num_batched_tokens": "batch", "max_num_seqs": "requests"},
    **{"max_model_len": "max_length", "long_prefill_token_threshold": "threshold", "policy": "policy"},
    **{"long_prefill_token_threshold_adaptive": "tuning.adaptive", "watermark": "tuning.watermark"},
    **{"prefill_schedule_interval": "tuning.interval", "scheduler_reserve_full_isl": "tuning.whole_prompts"},
    **{"prefix_cache_retention_interval": "tuning.retention", "cache_hit_alignment_tokens": "tuning.match"},
    **{"enable_mamba_shared_prefix_checkpoint": "tuning.junctions", "disable_eagle_block_drop": "tuning.whole_hits"},
    **{"async_scheduling": "steps_in_flight", "pipeline_parallel_size": "steps_in_flight"},
    **{"mamba_cache_mode": "layers", "sliding_window": "layers", "num_speculative_tokens": "drafts"},
    **{"method": "eagle", "enable_kv_cache_events": "events", "kv_load_failure_policy": "failure"},
    **{"kv_connector_extra_config": "host", "num_cpu_blocks": "host", "cpu_bytes_to_use": "host"},
    **{"eviction_policy": "host", "store_threshold": "host", "offload_prompt_only": "host", "blocks_per_chunk": "host"},
    **{"self_describing_kv_events": "host", "sync_load_budget_bytes": "host", "lazy_offload": "host"},
    **{"do_remote_prefill": "transfers", "max_load_tokens": "host", "max_offload_tokens": "host"},
    **{"tensor_parallel_size": "workers", "world_size": "workers"},
}
UNDRAWN: Mapping[str, str] = {
    "It is a part of the configuration, whose options stand one by one.": """
        attention_config aux_output_config cache_config device_config ec_manager_config ec_transfer_config
        hisparse_config kv_events_config kv_transfer_config lora_config model_config observability_config
        parallel_config scheduler_config speculative_config
    """,
    "It is of more than one process: ranks, and the workers of one model.": """
        cp_kv_cache_interleave_size data_parallel_index data_parallel_rank data_parallel_rank_local data_parallel_size
        decode_context_parallel_size distributed_executor_backend prefill_context_parallel_size rank
    """,
    "It is of requests that no client of a run sends: images, several adapters, encoders, other outputs.": """
        disable_chunked_mm_input ec_connector encoder_cache_size is_encoder_decoder max_loras
        max_num_encoder_input_tokens return_sampling_mask runner_type
    """,
    "It is of a tier behind host memory, which no run has.": """
        backpressure disk_buffer_slots disk_capacity_bytes disk_path kv_offload_backend secondary_tiers
        tier_poll_interval_s use_page_cache
    """,
    "It names a class in the place of the release's own.": "cache_policy_module_path spec_module_path spec_name",
    "It decides what tensors hold and how they lie in memory, and the bookkeeping does not ask.": """
        canonical_layout
        architectures cache_dtype device_type dtype head_size kv_cache_layout model disable_hybrid_kv_cache_manager
    """,
    "It is of figures, logs, or the way in which events leave the process.": """
        enable_logging_iteration_details enable_mfu_metrics engine_id kv_cache_metrics kv_cache_metrics_sample
        per_request_spec_decode_metrics publisher sample_rate VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES
    """,
    "A limit that is drawn has the same effect.": """
        cpu_bytes_to_use_per_rank max_num_active_seqs max_num_scheduled_tokens simple_cpu_offload_num_blocks
    """,
    "It is of one kind of layers or of machines.": "rswa_window VLLM_XPU_PP_MICROBATCH",
    "It is not read: another thing has its name there.": "count device length name start",
    "It is not drawn yet.": """
        enable_chunked_prefill max_tracker_size num_speculative_tokens_per_batch_size
    """,
}


def modules(root: Path) -> list[Path]:
    """The files of a release's package, in ``root``, that are the cache and the scheduler of a drawn run."""
    return option_reads.files_of(root, MODULES, ELSEWHERE)


def read_by(root: Path) -> Reads:
    """What the modules of a release read: options by their fields or keys, and variables, each with the files that read
    it.
    """
    return option_reads.read_by(root, modules(root), SETTINGS, PREFIX, DICTS)


def undrawn() -> frozenset[str]:
    """What has a reason for not being drawn."""
    return frozenset(name for names in UNDRAWN.values() for name in names.split())

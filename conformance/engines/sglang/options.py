"""The launch options and environment variables that SGLang's cache and scheduler read, and which of them are drawn.

What the modules of the newest release read is found in its source (``conformance.engines.option_reads``). Each option
is one that servers are drawn with (``launches``), or stands in ``UNDRAWN`` under the reason why not. A test compares
both with the release, so an option of a new release is not overlooked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

from conformance.engines import option_reads
from conformance.engines.option_reads import Reads
from conformance.engines.sglang.launches import HOSTING, LAUNCHES, STORAGE
from conformance.engines.sglang.server.launching import ALWAYS
from conformance.stems.launches import LaunchChoice

PREFIX = "SGLANG_"  # of the variables; those of a drawn server are named without it
SETTINGS = ("srt/server_args.py", "srt/arg_groups/fields/*.py")
MODULES = (
    *("srt/mem_cache/**/*.py", "srt/managers/schedul*.py", "srt/managers/scheduler_components/*.py"),
    *("srt/managers/*delayer*.py", "srt/managers/cache_controller.py", "srt/model_executor/pool_configurator.py"),
    *("srt/disaggregation/decode*.py", "srt/disaggregation/prefill.py", "srt/disaggregation/common/conn.py"),
)
DICTS = re.compile(r"(storage_backend_)?extra_config")  # their keys are options of a storage behind host memory
# Pools of single models, and caches and storages of others, none of which a drawn server has.
ELSEWHERE = re.compile(
    r"mem_cache/storage/(?!sim_)|(?<![a-z])(deepseek|dsv41|npu|hisparse|mooncake|nixl|dsa|nsa|minimax|flexkv|lmcache|mla)(?![a-z])"
    r"|sparsity|linker|embedding_cache|multimodal|fp8|(?<![a-z])hip_"
)
# Variables stand here without SGLANG_, and with $ in front where they have no SGLANG_. An option stands under its field
# of ``ServerArgs``: --page-size is page_size.
UNDRAWN: Mapping[str, str] = {
    "It is of more than one process: ranks, and other servers, to which prompts or answers go.": """
        tp_lcm_size attn_cp_size attn_dp_size base_gpu_id dcp_size disaggregation_bootstrap_port
        disaggregation_decode_enable_offload_kvcache
        disaggregation_decode_extra_slots disaggregation_decode_host_receive_threshold
        disaggregation_enable_kv_checksum
        disaggregation_transfer_backend dp_size dwdp_size elastic_ep_backend
        enable_dp_attention_local_control_broadcast enable_dynamic_chunking enable_pd_role_switch
        enable_two_batch_overlap encoder_transfer_backend ep_join_mode ep_size language_only moe_a2a_backend
        moe_dp_size nccl_port nnodes pp_async_batch_depth pp_max_micro_batch_size
        pp_size speculative_moe_a2a_backend tp_size DISAGG_STAGING_BUFFER DP_RANK DYNAMIC_CHUNKING_SMOOTH_FACTOR
        ENABLE_COLOCATED_BATCH_GEN ENABLE_DP_SPEC_PREFILL_COORDINATION ENABLE_KV_SHARD_ZERO_SM_GATHER
        ENABLE_METRICS_DP_ATTENTION ENABLE_PP_SPEC NCCL_ALL_GATHER_IN_OVERLAP_SCHEDULER_SYNC_BATCH
        PP_COMM_OVERLAP PP_SKIP_PURE_CHUNKED_OUTPUT_COMM SCHEDULER_SKIP_ALL_GATHER enable_kv_cache_sharding
        DISAGGREGATION_ALL_CP_RANKS_TRANSFER dist_init_addr enable_cp_tp_group_sharing enable_dsa_cache_layer_split
        load_balance_method
    """,
    "It is of the network between a decode server and its prefill server, which is stood in for.": """
        DISAGGREGATION_BOOTSTRAP_ENTRY_CLEANUP_INTERVAL
        DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK DISAGGREGATION_HEARTBEAT_INTERVAL
        DISAGGREGATION_HEARTBEAT_MAX_FAILURE DISAGGREGATION_THREAD_POOL_SIZE DISAGGREGATION_ZMQ_MAX_SOCKETS
        DISAGGREGATION_ZMQ_SEND_TIMEOUT disaggregation_ib_device host port
    """,
    "Not drawn yet: a decode server that gives out a row when the prompt is computed, and not before.": """
        disaggregation_decode_allocation_policy
    """,
    "It chooses or configures a cache or a storage that is not of SGLang, or is of one model.": """
        dsv4_attn_backend enable_deepseek_v4_fp4_indexer $FLEXKV_CONFIG_PATH EXPERIMENTAL_ONLINE_C128_MTP
        OPT_USE_ONLINE_COMPRESS dsa_decode_backend dsa_prefill_backend enable_flexkv enable_hisparse
        enable_lmcache enable_unified_cache_external_linker flexkv_config_file
        lmcache_config_file qsa_indexer_dtype radix_cache_backend unified_cache_external_linker_backend
        enable_metadata_cache file_storage_path interface_v1 metadata_ttl DSV4_COMPRESS_STATE_DTYPE
        HICACHE_FILE_BACKEND_ENABLE_METADATA_CACHE
        HICACHE_FILE_BACKEND_METADATA_TTL HICACHE_FILE_BACKEND_STORAGE_DIR
        MOONCAKE_CUSTOM_MEM_POOL OPT_MINIMAX_M3_FP8_INDEX_CACHE OPT_USE_MINIMAX_FUSED_KV_INDEX_STORE
        enable_encoder_swa_bounded_replay enable_decoder_swa_bounded_replay
    """,
    "It is of requests that no client of a run sends: images, adapters, embeddings, grammars, thoughts.": """
        allow_auto_truncate dllm_algorithm enable_broadcast_mm_inputs_process enable_lora
        enable_lora_overlap_loading enable_mis language_model_only lora_drain_wait_threshold lora_paths
        max_loras_per_batch mm_feature_transport prefill_only_disable_kv_cache reasoning_parser
        return_hidden_states_mode sampling_mask_max_tokens strip_thinking_cache EMBEDDINGS_SPARSE_HEAD
        MM_BUFFER_SIZE_MB MM_FEATURE_CACHE_MB VLM_CACHE_SIZE_MB
    """,
    "The model, the device or a socket is stood in for: what it decides is decided by the run.": """
        cuda_graph_config detokenizer_ipc_name enable_memory_saver enable_deterministic_inference
        enable_multi_layer_eagle grpc_mode grpc_port load_format metrics_ipc_name mlx_enable_sampling model_path
        revision rpc_ipc_name sampling_backend scheduler_input_ipc_name served_model_name smg_grpc_mode
        speculative_draft_attention_backend speculative_draft_model_path speculative_draft_model_revision
        tokenizer_backend tokenizer_ipc_name tokenizer_mode tokenizer_path trust_remote_code weight_cache_mode
        weight_version AMD_USE_FLYDSL_MEGA_MOE FLASHINFER_PREFILL_SPLIT_TILE_SIZE NPU_HICACHE_MAMBA_IO
        NUMA_BIND_V2 RUST_SERVER SET_CPU_AFFINITY USE_AITER
    """,
    "It changes how a number is stored or copied, and no slot.": """
        dtype hicache_io_backend hicache_mem_layout kv_cache_dtype quantization speculative_draft_kv_cache_dtype
        AITER_KV_CACHE_LAYOUT DISABLE_FUSED_MAMBA_SLOT_OPS HICACHE_HOST_REGISTER_CHUNK_GB HUGEPAGE_SIZE
        NATIVE_MOVE_KV_CACHE USE_HND_KVCACHE
    """,
    "It sizes a pool from a machine's memory: a run gives sizes in tokens.": """
        hicache_host_memory_fraction hicache_size mamba_full_memory_ratio mem_fraction_static
    """,
    "It changes what is logged, measured, watched or streamed, and no slot.": """
        enable_forward_pass_metrics enable_metrics enable_metrics_for_all_schedulers
        enable_mfu_metrics enable_request_time_stats_logging enable_trace extra_metric_labels
        forward_pass_metrics_ipc_name forward_pass_metrics_worker_id gc_threshold load_publish_endpoint
        load_snapshot_publish_interval otlp_service_name otlp_traces_endpoint sleep_on_idle
        soft_watchdog_timeout stream_interval trace_modules watchdog_timeout CACHE_HIT_RATE_WINDOW_SECONDS
        EMPTY_CACHE_INTERVAL ENABLE_METRICS_DEVICE_TIMER EXPOSE_OWN_ENV_VARS FORCE_STREAM_INTERVAL
        KILLPG_ON_SCHEDULER_EXCEPTION LOG_FORWARD_ITERS LOG_GC LOG_LAZY_COMPACTION_STATS
        LOG_LAZY_COMPACTION_STATS_INTERVAL_SEC MEM_PROFILE_MAX_ENTRIES PROFILE_BY_STAGE_DECODE_MIN_BS PROFILE_V2
        ROUTING_KEY_POLICY_DEBUG_LOG TORCH_PROFILER_DIR
    """,
    "Every server with host memory has it, and each decode server, as on CUDA.": """
        ENABLE_WAR_BARRIER
    """,
    "It is for devices of another make.": """
        $HSA_USERPTR_FOR_PAGED_MEM NPU_ENABLE_SPARSE_KV_OFFLOAD EXACT_CHUNK_FILL PREFILL_TILE_BUDGET
        PREFILL_TILE_BUDGET_MODE
    """,
    "It limits what a client may ask: the clients of a run ask for short answers.": """
        MAX_NEW_TOKENS_LIMIT
    """,
    "It is read when a module is imported: every server has a value of its own for it, under *What stands in*.": """
        $IN_BATCH_PREFIX_CACHING_CHECK_THRESHOLD $IN_BATCH_PREFIX_CACHING_DEPRIORITIZE_THRESHOLD RECORD_STEP_TIME
    """,
    "It is read when a module is imported: one value for all servers of a process.": """
        CLIP_MAX_NEW_TOKENS_ESTIMATION TEST_RETRACT TEST_RETRACT_INTERVAL TEST_RETRACT_NO_PREFILL_BS
    """,
    "It is of a test of SGLang: it makes something late or fail.": """
        TEST_CRASH_AFTER_STREAM_OUTPUTS TEST_HICACHE_BACKEND_RANDOM_DELAY TEST_HICACHE_BACKEND_RANDOM_FAILURE
        TEST_DISAGG_KV_CHECKSUM_MISMATCH_PROB TEST_HICACHE_H2D_DELAY_CYCLES TEST_SCRIPTED_RUNTIME
        TEST_STUCK_SCHEDULER_INIT
        TEST_FORCE_OPTIMISTIC_PREFILL_RETRY_PROB
    """,
    "It is a check of SGLang's own; the law asks the same at each step.": """
        CHECK_KV_PAGE_INVARIANTS DEBUG_MEMORY_POOL ENABLE_STRICT_MEM_CHECK_DURING_IDLE
        ENABLE_TREE_CACHE_SANITY_CHECK MAMBA_DEBUG_ASSERTS
    """,
    "It is derived from another option, or tunes one that is drawn.": """
        _swa_full_tokens_ratio_explicitly_set swa_prefix_tails prefill_delayer_max_delay_ms
        prefill_delayer_max_delay_passes prefill_delayer_queue_min_ratio
        prefill_delayer_token_usage_low_watermark linear_replayssm_cache_len PREFILL_DELAYER_DEBUG_LOG
        PREFILL_DELAYER_MAX_PREFILL_BS_WINDOW_SIZE hicache_storage_prefetch_retry_max_attempts
        hicache_storage_prefetch_retry_poll_interval prefill_decode_interval_min_bs uses_mamba_radix_cache
        DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT HICACHE_DECODE_OFFLOAD_STRIDE
        INIT_NEW_TOKEN_RATIO MIN_NEW_TOKEN_RATIO_FACTOR NEW_TOKEN_RATIO_DECAY_STEPS
        SCHEDULER_RECV_SKIPPER_WEIGHT_DECODE SCHEDULER_RECV_SKIPPER_WEIGHT_DEFAULT
        SCHEDULER_RECV_SKIPPER_WEIGHT_NONE SCHEDULER_RECV_SKIPPER_WEIGHT_TARGET_VERIFY
    """,
    "It says how the Rust core is built. Servers are drawn with both cores.": """
        RUST_BUILD_MODE
    """,
    "Not drawn yet: a pool of its own for states that are cached, which is not read.": """
        enable_int8_mamba_checkpoint int8_mamba_ckpt_size
    """,
    "Not drawn yet: prompts and answers are computed on two streams.": """
        enable_pdmux
    """,
    "Not drawn yet: drafts on a model with recurrent layers.": """
        enable_linear_replayssm_spec
    """,
    "Not drawn yet: unified memory, whose pools cannot be built for the small models of a run.": """
        enable_page_major_kv_layout enable_unified_memory COMPACTION_MAX_PAGES_PER_MOVE DEBUG_POISON_POOL
        DISABLE_LAZY_COMPACTION LAZY_COMPACTION_MAX_MOVES_PER_CALL
    """,
    "Not drawn yet: how long a request waits for a storage, and what the storage is told of its prefix.": """
        hicache_storage_pass_prefix_keys prefetch_timeout_base prefetch_timeout_per_ki_token
    """,
    "Not drawn yet: host memory that is a buffer alone.": """
        ENABLE_HICACHE_SWA_TAIL_ONLY_BACKUP hicache_host_memory_mode HICACHE_BUFFER_ANCHOR_LOCK_CAP
    """,
}


def read_by(root: Path) -> Reads:
    """The options and variables that the cache and the scheduler of a release read, each with its files. ``root``: the
    folder of the package ``sglang``.
    """
    return option_reads.read_by(root, modules(root), SETTINGS, PREFIX, DICTS)


def modules(root: Path) -> list[Path]:
    """The files of the cache and of the scheduler of a release."""
    return option_reads.files_of(root, MODULES, ELSEWHERE)


def drawn() -> frozenset[str]:
    """The options and variables that some drawn server has."""
    flags = [*ALWAYS, *(word for choice in _choices() for word in choice.flags)]
    return drawn_variables().union(STORAGE, (_option(word) for word in flags if word.startswith("--")))


def drawn_variables() -> frozenset[str]:
    """The variables that some drawn server has in its environment."""
    return frozenset(PREFIX + name for choice in _choices() for name, _ in choice.environment)


def _choices() -> Iterator[LaunchChoice]:
    for launches in (LAUNCHES, HOSTING):
        yield from chain.from_iterable(launches.every.values())


def _option(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def undrawn() -> dict[str, str]:
    """Of each option and variable that no server is drawn with, the reason."""
    found: dict[str, str] = {}
    for reason, names in UNDRAWN.items():
        found |= {_full(name): reason for name in names.split()}
    return found


def _full(name: str) -> str:
    """The name that the release reads, of a word in ``UNDRAWN``."""
    return name[1:] if name.startswith("$") else PREFIX + name if name.isupper() else name

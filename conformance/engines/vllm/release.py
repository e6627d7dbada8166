"""Everything that differs between vLLM's releases: where a class is, what a call takes, what a release has.

Each difference is one probe: a method that looks at the imported release itself, never at its version number. The
other files of this folder ask a ``VLLMRelease``.
"""

from __future__ import annotations

import ast
import inspect
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import msgspec
import torch

from conformance.driver.exception_origin import StandIn
from conformance.driver.protocol import Json, Unsupported
from conformance.engines import importing
from conformance.engines.importing import Imported, Package
from conformance.engines.vllm import connectors, host_connector, host_pool, server_workers, settings
from conformance.engines.vllm.connectors import Connectors, WorkerAnswer
from conformance.engines.vllm.download import BOOKKEEPING
from conformance.engines.vllm.names import DigestTexts
from conformance.engines.vllm.server_connector import SAYS_OF_ITSELF, ServerConnector, ServerHalf
from conformance.engines.vllm.settings import Setup, Tuning
from conformance.engines.vllm.transfers import AllGroups, Factory
from conformance.stems.block_cache.protocol import FULL, MAMBA, WINDOW
from conformance.stems.kv_events.reader import Key
from conformance.stems.kv_events.wire import Medium

# Packages from whose classes vLLM derives its own, or which hash blocks.
REAL = frozenset({"packaging", "torch", "numpy", "msgspec", "cbor2", "regex", "psutil"})
PACKAGE = Package("vllm", "vLLM", "vllm", BOOKKEEPING, REAL)
# Modules of vLLM that are stubs, none of them bookkeeping: its configuration, whose values ``settings`` gives; models,
# kernels, workers and their inputs and outputs; transfers of KV cache between servers; and metrics.
STUBBED = (
    "vllm.compilation.cuda_graph",
    "vllm.config",
    "vllm.distributed",
    "vllm.distributed.aux_output_connector.connector",
    "vllm.distributed.ec_transfer",
    "vllm.distributed.ec_transfer.ec_connector.base",
    "vllm.distributed.ec_transfer.ec_connector.factory",
    "vllm.distributed.ec_transfer.ec_connector.metrics",
    "vllm.distributed.kv_transfer",
    "vllm.distributed.kv_transfer.kv_connector.factory",
    "vllm.distributed.kv_transfer.kv_connector.v1",
    "vllm.distributed.kv_transfer.kv_connector.v1.metrics",
    "vllm.distributed.kv_transfer.kv_connector.v1.nixl",
    "vllm.distributed.parallel_state",
    "vllm.forward_context",
    "vllm.inputs",
    "vllm.lora",
    "vllm.model_executor",
    "vllm.model_executor.layers.fused_moe",
    "vllm.model_executor.layers.fused_moe.routed_experts_capturer",
    "vllm.model_executor.layers.mamba.mamba_utils",
    "vllm.multimodal",
    "vllm.multimodal.encoder_budget",
    "vllm.multimodal.inputs",
    "vllm.multimodal.utils",
    "vllm.outputs",
    "vllm.platforms",
    "vllm.pooling_params",
    "vllm.sampling_params",
    "vllm.transformers_utils",
    "vllm.usage.usage_lib",
    "vllm.v1.attention.backend",
    "vllm.v1.hisparse.runtime",
    "vllm.v1.metrics.perf",
    "vllm.v1.structured_output",
    "vllm.v1.worker",
    "vllm.v1.worker.block_table",
    "vllm.v1.worker.utils",
)
# What names of these modules stand for, where the scheduler asks them. No verdict may depend on an answer.
ANSWERS = {
    # The scheduler asks the machine whether it is an XPU, and lets it add kinds of layers of its own.
    "vllm.platforms.current_platform": settings.platform(),
    # A model without images has no budget for them.
    "vllm.multimodal.MULTIMODAL_REGISTRY": settings.no_images(),
    "vllm.multimodal.utils.strip_covered_mm_data": settings.same,
    # Some lines of the log are written by the first process alone.
    "vllm.distributed.parallel_state.is_local_first_rank": settings.is_first_rank,
    "vllm.distributed.parallel_state.is_global_first_rank": settings.is_first_rank,
    # A connector says by its class that it takes the blocks of all groups of layers.
    "vllm.distributed.kv_transfer.kv_connector.v1.SupportsHMA": AllGroups,
    "vllm.distributed.kv_transfer.kv_connector.v1.KVConnectorRole": StandIn(SCHEDULER="scheduler"),
    "vllm.distributed.kv_transfer.kv_connector.factory.KVConnectorFactory": Factory,
    # The connector to host memory derives what it tells the workers, and its figures, from classes without content.
    "vllm.distributed.kv_transfer.kv_connector.v1.metrics.KVConnectorStats": host_connector.Figures,
}
NEEDED = {"BlockPool": ("v1.core.block_pool",), "AsyncScheduler": ("v1.core.sched.async_scheduler",)}
UTILS, SPECS, SINGLE = "v1.core.kv_cache_utils", "v1.kv_cache_interface", "v1.core.single_type_kv_cache_manager"
SCHEDULER, RETENTION = "v1.core.sched.scheduler", "prefix_cache_retention_interval"
HOST_SCHEDULER, WITHIN_STEP = f"{host_connector.CONNECTOR}.scheduler", "sync_load_budget_bytes"
CHECKPOINT = "model_executor.layers.mamba.checkpoint"
NIXL = "distributed.kv_transfer.kv_connector.v1.nixl"
SERVERS = (f"{NIXL}.pull_scheduler", f"{NIXL}.scheduler")
SERVER_HALVES = ("NixlPullConnectorScheduler", "NixlConnectorScheduler")
# The classes of the connector itself, the one from which the others derive first.
CONNECTORS = (
    ("distributed.kv_transfer.kv_connector.v1.base", "KVConnectorBase_V1"),
    *((f"{NIXL}.connector", name) for name in ("NixlConnector", "NixlBaseConnector", "NixlPullConnector")),
)
KV_UTILS = "distributed.kv_transfer.kv_connector.utils"
WORKERS = (f"{NIXL}.base_worker", f"{NIXL}.worker")
WORKER_HALVES = ("NixlBaseConnectorWorker", "NixlConnectorWorker")


class VLLMRelease:
    """One imported release of vLLM."""

    def __init__(self, imported: Imported) -> None:
        self.imported = imported
        logging.getLogger("vllm").setLevel(logging.CRITICAL)
        self._utils.init_none_hash(self._hash)

    @property
    def label(self) -> str:
        """The version, or the folder of the checkout."""
        return self.imported.label

    # What the release has.

    @cached_property
    def has_partial_hashes(self) -> bool:
        """A block that is not computed whole may have a hash."""
        return hasattr(self._pool_class, "cache_partial_block")

    @cached_property
    def has_moved_hashes(self) -> bool:
        """The hashes of a block may go to another block with the same contents."""
        return hasattr(self._pool_class, "move_block_hashes")

    @cached_property
    def has_pins(self) -> bool:
        """A block may be free and still be read, until it is handed out again."""
        return hasattr(self._pool_class, "unpin_blocks")

    @property
    def notes(self) -> tuple[str, ...]:
        """What of the release is not driven, as sentences for the user; empty if nothing is left out."""
        left = {
            "hashes of blocks that are not computed whole": self.has_partial_hashes,
            "hashes that move to another block": self.has_moved_hashes,
            "free blocks that are still read": self.has_pins,
        }
        words = ", ".join(words for words, is_there in left.items() if is_there)
        return (f"not driven by block_pool: {words}",) if words else ()

    @cached_property
    def has_align(self) -> bool:
        """Mamba states can be cached at block boundaries."""
        known = {field.name for field in fields(self._specs.MambaSpec)}
        return "mamba_cache_mode" in known and '"align"' in self.imported.text(SINGLE)

    @cached_property
    def has_async_stages(self) -> bool:
        """The asynchronous scheduler serves a model that is split into pipeline stages."""
        return "pipeline_parallel_size" in inspect.getsource(self._async)

    @cached_property
    def keeps_stale_output(self) -> bool:
        """What a step in flight samples for a request that is preempted meanwhile still joins its text."""
        return "num_stale_output_tokens" in inspect.getsource(self._request_class)

    # Blocks.

    def pool(self, blocks: int, caching: bool, size: int, events: bool = False) -> Any:
        """A BlockPool of ``blocks`` blocks with the null block; a hash covers ``size`` tokens."""
        return self._pool_class(blocks, caching, size, enable_kv_cache_events=events)

    @cached_property
    def _pool_class(self) -> Any:
        return self.imported.find_class("BlockPool", NEEDED["BlockPool"])

    @cached_property
    def touches_groups(self) -> bool:
        """``BlockPool.touch`` takes the blocks of each group of layers, and not a list of blocks."""
        return "tuple" in str(inspect.signature(self._pool_class.touch).parameters["blocks"].annotation)

    def touch(self, pool: Any, blocks: Sequence[Any]) -> None:
        """``BlockPool.touch``."""
        pool.touch((blocks,) if self.touches_groups else blocks)

    @staticmethod
    def named(pool: Any, block: Any) -> list[bytes]:
        """The hashes that a block says it has."""
        first = [] if block.block_hash is None else [block.block_hash]
        more = getattr(pool, "cached_block_hashes_by_block", {}).get(block.block_id, ())
        return [*first, *more]

    @staticmethod
    def found(pool: Any) -> Mapping[bytes, Any]:
        """The map of the prefix cache: by hash a block, or a dict of blocks."""
        known: Mapping[bytes, Any] = pool.cached_block_hash_to_block._cache
        return known

    @cached_property
    def split(self) -> Callable[[bytes], tuple[int, bytes]]:
        """The group of layers and the digest of a hash of the pool."""
        group, digest = self._utils.get_group_id, self._utils.get_block_hash
        return lambda key: (group(key), digest(key))

    # KV events.

    def event(self, event: Any) -> Any:
        """A KV event as a subscriber decodes it."""
        return msgspec.to_builtins(event, builtin_types=(bytes,))

    def event_key(self, key: bytes, medium: Medium | None = None) -> Key:
        """The medium, the group of layers and the hash by which events name a hash of the device's pool, or of another
        ``medium``. In events of older releases no group is named.
        """
        group, digest = self.split(key)
        named = "group_idx" in self._kv_events.BlockStored.__struct_fields__
        place = self._kv_events.MEDIUM_GPU if medium is None else medium
        return place, group if named else None, self._utils.maybe_convert_block_hash(digest)

    # Requests.

    @cached_property
    def has_long_hashes(self) -> bool:
        """A hash may also cover tokens behind its block."""
        return "num_hash_lookahead_tokens" in inspect.signature(self._utils.get_request_block_hasher).parameters

    def hasher(self, size: int, lookahead: int) -> Callable[[Any], list[bytes]]:
        """The function with which a request hashes its text; a hash is of ``size`` tokens, and where the release has
        such hashes also covers ``lookahead`` tokens behind them.
        """
        more = (lookahead,) if self.has_long_hashes else ()
        made: Callable[[Any], list[bytes]] = self._utils.get_request_block_hasher(size, self._hash, *more)
        return made

    def request(
        self,
        number: int,
        tokens: Sequence[int],
        outputs: int,
        mark: int,
        priority: int,
        size: int,
        names: DigestTexts,
        lookahead: int = 0,
        transfers: Json | None = None,
    ) -> Any:
        """A Request with a prompt. ``mark``: 0, or what the hash of its text must distinguish: an odd mark is a LoRA
        adapter, an even one a cache salt that has the name of the adapter with the mark before. ``names`` gets what the
        request hashes. ``transfers``: what the client says of transfers between servers.
        """
        name = f"name{(mark + 1) // 2}"
        more: dict[str, Any] = {"eos_token_id": None} if "eos_token_id" in self._of_a_request else {}
        return self._request_class(
            request_id=str(number),
            prompt_token_ids=list(tokens),
            sampling_params=settings.sampling(outputs, transfers),
            pooling_params=None,
            arrival_time=float(number),
            lora_request=settings.adapter(mark, name) if mark % 2 else None,
            cache_salt=name if mark and not mark % 2 else None,
            priority=priority,
            block_hasher=names.written_down(self.hasher(size, lookahead), size, mark),
            **more,
        )

    @cached_property
    def _request_class(self) -> Any:
        return self.imported.find_class("Request", ("v1.request",))

    @cached_property
    def _of_a_request(self) -> Mapping[str, Any]:
        return inspect.signature(self._request_class.__init__).parameters

    @cached_property
    def status(self) -> Any:
        """The enumeration ``RequestStatus``."""
        return self.imported.module("v1.request").RequestStatus

    @cached_property
    def _hash(self) -> Callable[[Any], bytes]:
        made: Callable[[Any], bytes] = self.imported.module("utils.hashing").sha256
        return made

    # The scheduler.

    def full(self, size: int) -> Any:
        """A group of layers with full attention; a block has ``size`` tokens."""
        return self._specs.FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype=torch.float32)

    def window(self, size: int, window: int) -> Any:
        """A group of layers in which a token reads ``window`` tokens, the last of which is itself."""
        return self._specs.SlidingWindowSpec(
            block_size=size, num_kv_heads=1, head_size=1, dtype=torch.float32, sliding_window=window
        )

    def mamba(self, size: int, drafts: int, align: bool, checkpoint: int | None) -> Any:
        """A group of mamba layers; a block has one state. ``align``: states are cached at block boundaries.
        ``checkpoint``: see ``LayersConfig``.
        """
        if align and not self.has_align:
            raise Unsupported("the release does not cache mamba states at block boundaries")
        more: dict[str, Any] = {"mamba_cache_mode": "align" if align else "none"} if self.has_align else {}
        if checkpoint is not None:
            if not self.leaves_checkpoints:
                raise Unsupported("the release's layers leave no state inside a pass")
            more |= {"num_prefill_checkpoint_blocks": 1, "prefill_checkpoint_alignment": checkpoint}
        return self._specs.MambaSpec(
            block_size=size,
            shapes=((1,),),
            dtypes=(torch.float32,),
            num_speculative_blocks=drafts,
            **more,
        )

    def spec(self, group: Json, size: int, drafts: int, align: bool) -> Any:
        """A group of layers, as the configuration of a run says it; a block has ``size`` tokens."""
        if group["kind"] == FULL:
            return self.full(size)
        if group["kind"] == WINDOW:
            return self.window(size, group["window"])
        return self.mamba(size, drafts, align, group.get("checkpoint"))

    def scheduler(self, setup: Setup, groups: Sequence[Any]) -> Any:
        """A Scheduler, or an AsyncScheduler where two or more steps are in flight, whose layers are in these groups."""
        most = min(setup.batch, setup.threshold or setup.batch)
        if setup.align and most < setup.block_size and not self.splits_blocks:
            raise Unsupported("a step has room for a block, where the release caches states at block boundaries")
        if setup.stages > 1 and not self.has_async_stages:
            raise Unsupported("the release's asynchronous scheduler serves no model with pipeline stages")
        smallest = min(spec.block_size for spec in groups)
        if setup.state_size > smallest and not self.has_blocks_below_states:
            raise Unsupported("the release gives no group smaller blocks than those of states that are cached")
        if setup.events and len(groups) > 1 and not self.publishes_of_groups:
            raise Unsupported("a server of the release that publishes KV events has one group of layers")
        layers = [self._specs.KVCacheGroupSpec([f"layer{at}"], spec) for at, spec in enumerate(groups)]
        if setup.eagle:
            self._mark_eagle(layers)
        config = settings.config(setup)
        if hasattr(self.imported.module(SINGLE), "register_all_kvcache_specs"):
            self.imported.module(SINGLE).register_all_kvcache_specs(config)
        cached = self._specs.KVCacheConfig(
            num_blocks=setup.blocks, kv_cache_tensors=[], kv_cache_groups=layers, **self._tuned(setup.tuning)
        )
        sizes = self._sizes(setup, config, cached)
        if (make := self._maker(setup, sizes)) is not None:
            vars(config.kv_transfer_config)["connector"] = make
        build = self._async if setup.steps_in_flight > 1 else self._synchronous
        return build(
            vllm_config=config,
            kv_cache_config=cached,
            structured_output_manager=settings.no_grammar(),
            mm_registry=settings.no_images(),
            log_stats=False,
            **sizes,
        )

    def checkpoints(self, scheduler: Any, setup: Setup, alignment: int) -> Callable[[int, int], tuple[int, int] | None]:
        """Where the workers leave the state inside a pass that computes the tokens from one up to another, by the
        function that they call: after how many tokens, and at which place of the table. ``alignment``: see
        ``LayersConfig``; kernels have no other states, so a position between two of them gets the state before it.
        """
        hit = self._utils.resolve_cache_hit_alignment_tokens(
            scheduler.kv_cache_config, scheduler.vllm_config, scheduler.block_size, scheduler.hash_block_size
        )
        sizes, lookahead = (scheduler.hash_block_size, setup.state_size), setup.hash_lookahead
        compute, drops = self._compute_checkpoints, setup.shortens_hits
        more = {}
        if self.has_long_hashes:
            drops, more = drops and not lookahead, {"num_hash_lookahead_tokens": lookahead}

        def checkpoint_of(start: int, end: int) -> tuple[int, int] | None:
            (offset,), (place,) = compute([end], [end - start], *sizes, alignment, drops, hit, **more)
            return (start + offset // alignment * alignment, place) if offset else None

        return checkpoint_of

    @cached_property
    def _compute_checkpoints(self) -> Callable[..., tuple[list[int], list[int]]]:
        """The function alone: its module needs kernels."""
        names = ("get_mamba_prefill_checkpoint_position", "is_mamba_prefill_checkpoint_valid")
        known = {name: getattr(self._specs, name) for name in names}
        known["cdiv"] = self.imported.module("utils.math_utils").cdiv
        tree = ast.parse(self.imported.text(CHECKPOINT))
        tree.body = [node for node in tree.body if getattr(node, "name", "") == "compute_mamba_prefill_checkpoints"]
        exec(compile(tree, CHECKPOINT, "exec"), known)
        made: Callable[..., tuple[list[int], list[int]]] = known["compute_mamba_prefill_checkpoints"]
        return made

    def _tuned(self, tuning: Tuning) -> dict[str, int]:
        """The fields of ``KVCacheConfig`` that a run tunes. Raises ``Unsupported`` where the release lacks an option
        that the run sets.
        """
        plain, text = Tuning(), self.imported.text(SCHEDULER)
        asked = {
            "watermark": tuning.watermark != plain.watermark,
            "prefill_schedule_interval": tuning.interval != plain.interval,
            "scheduler_reserve_full_isl": tuning.whole != plain.whole,
            "enable_mamba_shared_prefix_checkpoint": tuning.junctions,
            "disable_eagle_block_drop": tuning.whole_hits,
            "num_hash_lookahead_tokens": tuning.short_hashes,
            "long_prefill_token_threshold_adaptive": tuning.adaptive,
        }
        lacking = [name for name, is_asked in asked.items() if is_asked and name not in text]
        if tuning.retention is not None and RETENTION not in {
            field.name for field in fields(self._specs.KVCacheConfig)
        }:
            lacking.append(RETENTION)
        if tuning.match is not None and not self.matches_units:
            lacking.append("prefix_match_unit")
        if tuning.draft_model and "uses_draft_model" not in self.imported.text("config.speculative"):
            lacking.append("draft models")
        if lacking:
            raise Unsupported(f"the release does not configure {', '.join(lacking)}")
        return {} if tuning.retention is None else {RETENTION: tuning.retention}

    def _sizes(self, setup: Setup, config: StandIn, cached: Any) -> dict[str, int]:
        """The tokens of a block, and of a hash where the release asks for them: it decides them itself then. Raises
        ``Unsupported`` where it refuses.
        """
        if "hash_block_size" not in inspect.signature(self._synchronous.__init__).parameters:
            return {"block_size": setup.block_size}
        try:
            whole, unit = self._utils.resolve_kv_cache_block_sizes(cached, config)
        except ValueError as error:
            raise Unsupported(f"no server has this configuration: {error}") from error
        return {"block_size": whole, "hash_block_size": unit}

    @cached_property
    def tells_states_of_steps(self) -> bool:
        """A connector is told with each step which blocks have states that it may copy."""
        return "kv_connector_block_state" in self.imported.text(SCHEDULER)

    @cached_property
    def has_copies(self) -> bool:
        """A request may go on in a copy of a block that is not computed whole."""
        return hasattr(self._synchronous, "_free_cow_retained_blocks")

    @cached_property
    def leaves_checkpoints(self) -> bool:
        """Layers with states may leave a state inside a pass for the prefix cache, and not at its end alone."""
        return self.imported.has(CHECKPOINT) and hasattr(self._utils, "resolve_cache_hit_alignment_tokens")

    @cached_property
    def splits_blocks(self) -> bool:
        """A step may compute less than a block of a model whose states are cached at block boundaries."""
        refused = r"long_prefill_token_threshold\s*>=\s*(self\.cache_config\.)?block_size"
        return re.search(refused, self.imported.text("config.vllm")) is None

    @cached_property
    def has_blocks_below_states(self) -> bool:
        """Layers may have smaller blocks than cached states: hidden states, and later drafters. Before that, the
        release makes blocks of attention larger, and an assertion stops it where states would need a larger page.
        """
        return hasattr(self._specs, "HiddenStateCacheSpec")

    @cached_property
    def publishes_of_groups(self) -> bool:
        """A server with several groups of layers may publish KV events. Before that, its configuration turns the hybrid
        manager off with them: the layers of a model become one group, or the server does not start.
        """
        refused = r"kv_events_config is not None:\s*(#.*\s*)*need_disable_hybrid_kv_cache_manager = True"
        return re.search(refused, self.imported.text("config.vllm")) is None

    @cached_property
    def knows_placeholders(self) -> bool:
        """V2 workers know which drafts of a pass nobody drafted. Before that, they verify a token in their place."""
        name = "v1.worker.gpu.spec_decode.rejection_sampler"
        return self.imported.has(name) and "is_placeholder" in self.imported.text(name)

    @cached_property
    def matches_units(self) -> bool:
        """A server may ask how many tokens a hash has (``--prefix-match-unit``)."""
        return "prefix_match_unit" in self.imported.text(UTILS)

    @staticmethod
    def _mark_eagle(layers: Sequence[Any]) -> None:
        """The EAGLE head is a layer of the first group, where the release asks which group it is."""
        if hasattr(layers[0], "is_eagle_group"):
            layers[0].is_eagle_group = True

    @cached_property
    def _synchronous(self) -> Any:
        return self.imported.find_class("Scheduler", ("v1.core.sched.scheduler",))

    @cached_property
    def _async(self) -> Any:
        return self.imported.find_class("AsyncScheduler", NEEDED["AsyncScheduler"])

    @staticmethod
    def placeholders(request: Any) -> int:
        """For how many sampled tokens of steps in flight a request waits."""
        return int(request.num_output_placeholders)

    @staticmethod
    def zeroed(output: Any) -> list[int]:
        """The blocks into which the workers write zeros before they copy anything."""
        return [int(block) for block in getattr(output, "new_block_ids_to_zero", None) or ()]

    @staticmethod
    def copies(output: Any) -> list[tuple[int, int]]:
        """The blocks that the workers copy before a step, each as source and target."""
        return [(int(source), int(target)) for source, target in getattr(output, "kv_cache_block_copies", None) or ()]

    @staticmethod
    def deferred(scheduler: Any) -> list[Sequence[Any]]:
        """Lists of blocks that are given back, each once a step in flight is done."""
        return [blocks for _, blocks in getattr(scheduler, "deferred_frees", ())]

    def _maker(self, setup: Setup, sizes: Mapping[str, int]) -> connectors.Maker | None:
        """What makes the connector of a scheduler; ``None`` for a stand-in, and where there is none."""
        servers = partial(self._server_connector, setup=setup) if setup.has_server_connector else None
        if setup.host is None:
            return servers
        if not setup.host.pool and not self.imported.has(f"{host_connector.CONNECTOR}.config"):
            raise Unsupported("the release's connector to host memory is not known")
        if setup.tuning.match is not None and not self.tells_states_of_steps:
            raise Unsupported("which blocks the release keeps to copy states to host memory is not known")
        if setup.tuning.match is not None and setup.host.describes:
            raise Unsupported("by which hashes KV events describe parts of blocks in host memory is not known")
        if setup.host.within_step and WITHIN_STEP not in self.imported.text(HOST_SCHEDULER):
            raise Unsupported(f"the release's connector to host memory does not read {WITHIN_STEP}")
        make = partial(host_pool.made, sizes=sizes) if setup.host.pool else host_connector.made
        host = partial(make, self.imported, host=setup.host)
        if servers is None:
            return host
        if not hasattr(self.imported.module(connectors.MULTI).MultiConnector, "request_finished_all_groups"):
            raise Unsupported("the release's connector of several connectors does not take the blocks of all groups")
        asked = {
            "kv_load_failure_policy": setup.failure,
            "kv_connector_extra_config": settings.between_servers(setup),
        }
        return partial(connectors.both, self.imported, servers=servers, host=host, asked=asked)

    @staticmethod
    def pinned(manager: Any) -> list[Any]:
        """The blocks with the state of a part that 0.27.1 keeps for a connector until their request ends."""
        return [block for blocks in getattr(manager, "_partial_tail_pins", {}).values() for block in blocks]

    def _server_connector(self, config: Any, groups: Any, setup: Setup) -> ServerConnector:
        """The release's own connector between servers, the scheduler's half."""
        module = next((name for name in SERVERS if self.imported.has(name)), None)
        if module is None:
            raise Unsupported("no connector between servers of the release takes other layers than full attention")
        text = self.imported.text(module) + self.imported.text(module.replace("pull_", "base_"))
        if any(group["kind"] == MAMBA for group in setup.layers) and "_ssm_spec_blocks" not in text:
            raise Unsupported("the release's connector between servers does not say which state it sends")
        known = self.imported.module(module)
        made = next(getattr(known, name) for name in SERVER_HALVES if hasattr(known, name))
        real = made(config, "engine", groups)
        half = ServerHalf(
            real,
            clip=getattr(real, "get_exchange_clipped_blocks", None) or real.get_sw_clipped_blocks,
            comes=getattr(real, "on_new_request", settings.nothing),
            told=getattr(real, "update_connector_output", settings.nothing),
            pairs=self._pairs([group.kv_cache_spec for group in groups.kv_cache_groups]),
            answers=self._answers(
                StandIn(
                    connector_scheduler=real,
                    _kv_cache_config=groups,
                    _kv_transfer_config=config.kv_transfer_config,
                )
            ),
            names_failures="failed_recving" in {field.name for field in fields(self._outputs.KVConnectorOutput)},
        )
        return ServerConnector(half, setup)

    def _answers(self, connector: StandIn) -> Mapping[str, Callable[..., Any]]:
        """What the release's connector says of itself, by the name of the method; of what the release does not ask,
        nothing. ``connector``: the fields that the methods read. They are called alone: the class from which the
        connector derives needs what the workers import.
        """
        known: dict[str, Any] = {"__name__": __name__}
        for module, kind in CONNECTORS:
            tree = ast.parse(f"from __future__ import annotations\n{self.imported.text(module)}")
            classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind]
            methods = [node for of in classes for node in of.body if isinstance(node, ast.FunctionDef)]
            tree.body = [*tree.body[:1], *(node for node in methods if node.name in SAYS_OF_ITSELF)]
            for method in tree.body[1:]:
                vars(method)["decorator_list"] = []
            exec(compile(tree, module, "exec"), known)
        return {name: partial(known[name], connector) for name in SAYS_OF_ITSELF if name in known}

    def _pairs(self, specs: Sequence[Any]) -> server_workers.Pairs:
        """Which blocks of two servers the release's workers pair, of layers of these kinds."""
        module = self.imported.module(next(filter(self.imported.has, WORKERS)))
        kind = next(getattr(module, name) for name in WORKER_HALVES if hasattr(module, name))
        states = self._specs.MambaSpec
        if not hasattr(kind, "_apply_prefix_caching"):
            return server_workers.by_reading(kind._read_blocks, specs, states)
        function = kind._apply_prefix_caching
        more = len(inspect.signature(function).parameters) - 3  # beside the worker and the two lists
        return server_workers.by_function(function, specs, states, more)

    def connectors(self, scheduler: Any, setup: Setup) -> Connectors:
        """The connectors of a scheduler with transfers."""
        own, size = scheduler.connector, setup.block_size
        if setup.host is not None and setup.has_server_connector:
            servers, host = own._connectors
            told = self.imported.module(connectors.MULTI).MultiKVConnectorWorkerMetadata
            return Connectors(size, servers=servers, host=host, told=told)
        if setup.host is not None:
            return Connectors(size, host=own)
        if setup.has_server_connector:
            return Connectors(size, servers=own)
        own.unread = (self.status.FINISHED_ABORTED, getattr(self.status, "FINISHED_ERROR", None))
        own.size, own.reoffers = size, setup.reoffers
        return Connectors(size, stand_in=own)

    def transferred(self, said: WorkerAnswer) -> Any:
        """The KVConnectorOutput of a step of one rank."""
        more = {} if said.told is None else {"kv_connector_worker_meta": said.told}
        more |= {"failed_recving": set(said.failed)} if said.failed else {}
        return self._outputs.KVConnectorOutput(
            finished_sending=set(said.sent),
            finished_recving=set(said.received),
            invalid_block_ids=set(said.lost),
            **more,
        )

    def aggregator(self, connector: Any, ranks: int) -> Any:
        """What makes one output of those of so many ranks, as the release's executor has it."""
        if not self.imported.has(KV_UTILS):
            raise Unsupported("how the release puts together what several ranks say of transfers is not known")
        kind = self.imported.module(KV_UTILS).KVOutputAggregator
        made = getattr(kind, "from_connector", None)
        return kind(ranks) if made is None else made(connector, ranks)

    def sampled(self, ids: Sequence[str], tokens: Sequence[list[int]], transfers: Any = None) -> Any:
        """The ModelRunnerOutput of a step: for each request the tokens that it sampled. ``transfers``: those that are
        done (``transferred``).
        """
        output = self._outputs.ModelRunnerOutput
        given = {
            "req_ids": list(ids),
            "req_id_to_index": {name: at for at, name in enumerate(ids)},
            "sampled_token_ids": list(tokens),
            "logprobs": None,
            "prompt_logprobs_dict": {},
            "pooler_output": [],
            "kv_connector_output": transfers,
        }
        return output(**given)

    def drafted(self, ids: Sequence[str], tokens: Sequence[list[int]]) -> Any:
        """The DraftTokenIds of a step."""
        return self._outputs.DraftTokenIds(list(ids), list(tokens))

    # Modules.

    @cached_property
    def _utils(self) -> Any:
        return self.imported.module(UTILS)

    @cached_property
    def _kv_events(self) -> Any:
        return self.imported.module("distributed.kv_events")

    @cached_property
    def _specs(self) -> Any:
        return self.imported.module(SPECS)

    @cached_property
    def _outputs(self) -> Any:
        return self.imported.module("v1.outputs")


@cache
def _release(imported: Imported) -> VLLMRelease:
    return VLLMRelease(imported)


def load(root: Path, label: str) -> VLLMRelease:
    """The release whose ``vllm/`` lies below ``root``; EngineError if it cannot be imported into this process."""
    return _release(importing.load(PACKAGE, root, label, STUBBED, NEEDED, ANSWERS))

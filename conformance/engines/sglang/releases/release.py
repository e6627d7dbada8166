"""Everything that differs between SGLang's releases: where a class is, what a call is named, what a release has.

Each difference is one probe: a method that looks at the imported release itself, never at its version number. The
other rooms of the engine ask a ``Release``, so a release whose classes moved is supported by a change in this room:
here, or in ``serving`` for the code that serves requests, ``records`` for their fields, ``cores`` for the tree's core.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
import re
from array import array
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch

from conformance.driver.exception_origin import StandIn
from conformance.driver.protocol import EngineError, Misuse, Unsupported
from conformance.engines.importing import Imported
from conformance.engines.sglang.releases import cores, importing, marks, native_hash
from conformance.engines.sglang.releases.cores import DEFAULT
from conformance.engines.sglang.releases.locking import MARK, SKIPS, Locks, Receipts, WholeLocks
from conformance.engines.sglang.releases.nodes import Nodes, OlderNodes, OneComponentNodes, UnifiedNodes
from conformance.engines.sglang.releases.rust_nodes import RustNodes
from conformance.engines.sglang.releases.serving import Serving
from conformance.engines.sglang.releases.settings import SERVER_ARGS, Settings, has_context
from impl.kv_events import EventTypes

# Modules of SGLang that are stubs, none of them bookkeeping: the processors of logits, which pickle themselves; and
# the registry of model configurations (its __init__ alone: the modules below `configs` are the release's own).
STUBBED = ("sglang.srt.configs", "sglang.srt.sampling.custom_logit_processor")
# What names of packages that are not installed stand for, where a module of SGLang asks them something while it is
# imported. No verdict may depend on an answer.
ANSWERS = {
    # `sglang.srt.utils.common` removes the handlers of this logger, so it gets one without any. What is logged
    # decides nothing.
    "huggingface_hub.utils.logging.get_logger": lambda: logging.Logger("huggingface_hub"),
    # `sglang.srt.utils.hf_transformers_utils` adds these two where transformers lacks them. They turn tokens into text,
    # and the bookkeeping has no text.
    "transformers.PreTrainedTokenizerBase.clean_up_tokenization": None,
    "transformers.utils.import_utils.is_torch_fx_available": None,
    # `sglang.srt.managers.tokenizer_manager` sets this policy when it is imported, which schedulers of older releases
    # do to ask how tensors of pictures travel. Nothing here runs a loop of asyncio.
    "uvloop.EventLoopPolicy": asyncio.DefaultEventLoopPolicy,
}
# Where a class may be, the newest place first.
ALLOCATOR = ("mem_cache.allocator",)
SWA_ALLOCATOR = ("mem_cache.allocator.swa", "mem_cache.swa_memory_pool")
SWA_POOL = ("mem_cache.swa_memory_pool",)
SESSION_CACHES = (
    ("StreamingSession", "session.streaming_session"),
    ("SessionAwareCache", "mem_cache.session_aware_cache"),
)
TREES = {
    "unified": ("UnifiedRadixCache", "mem_cache.unified_radix_cache"),
    "swa_radix": ("SWARadixCache", "mem_cache.swa_radix_cache"),
    "mamba_radix": ("MambaRadixCache", "mem_cache.mamba_radix_cache"),
    "radix": ("RadixCache", "mem_cache.radix_cache"),
    "pure_swa": ("PureSWARadixCache", "mem_cache.pure_swa_radix_cache"),  # every layer has a window: one pool
}
OLDER_WITH_HOST = ("HiRadixCache", "HiMambaRadixCache")  # trees of servers with host memory before 0.5.19
TREE_BUILDERS = ("mem_cache.registry", "managers.scheduler")  # where a server decides which tree it builds
ONE_LOCK = ("radix", "pure_swa")  # trees with one component, whose callers free what the tree has already
REQUESTS = "managers.schedule_batch"  # the module of ``Req``
TREE_COMPONENTS = ("mem_cache.unified_cache.components", "mem_cache.unified_cache_components")
RESULTS = {
    "match": "MatchResult",
    "insert": "InsertResult",
    "evict": "EvictResult",
    "lock": "IncLockRefResult",
    "unlock": "DecLockRefResult",
    "held": "TreeLock",
}
SERVED = ("checkpoint", "cache_finished_req")  # the calls by which requests reach a tree, by generation
NATIVE_HASH = "mem_cache.cpp_utils.native_hash"
EVENTS = ("kv_events", "kv_event_queue")  # what a tree that publishes KV events has
EVENT_TYPES, RECORDING = "disaggregation.kv_events", "mem_cache.events"
SALT = b"sglang-cache-salt-v1\0"  # what the release hashes before a salt, for the hashes of KV events
DECODE_BUDGET = "_radix_full_evictable"  # of a decode server that has a tree with an SWA part
DECODE = "disaggregation.decode"  # a server that gets prompts from a prefill server
NEEDED = {"PagedTokenToKVPoolAllocator": ALLOCATOR, "SWATokenToKVPoolAllocator": SWA_ALLOCATOR}


class Media(NamedTuple):
    """The names of the device's memory and of the host's in KV events."""

    device: str
    host: str


class TrackBuffers(NamedTuple):
    """The buffer in which a request's mamba state is tracked: none, one slot, or two (``doubled``); with ``lazy`` the
    second slot is allocated before a page boundary and given back after it.
    """

    buffered: bool = False
    doubled: bool = True
    lazy: bool = False

    @property
    def slots(self) -> int:
        """How many track slots a request is given when it is admitted."""
        return (2 if self.doubled and not self.lazy else 1) * self.buffered

    @property
    def options(self) -> dict[str, bool]:
        """The options of SGLang's constructors; releases without lazy buffers have no option for them."""
        return {"enable_mamba_extra_buffer": self.buffered} | (
            {"enable_mamba_extra_buffer_lazy": True} if self.lazy else {}
        )


class Release:
    """One imported release of SGLang. ``publishing``: its trees publish KV events."""

    def __init__(self, imported: Imported, *, publishing: bool = True) -> None:
        self.imported, self.publishing = imported, publishing
        self.settings = Settings(imported)
        self.serving = Serving(imported)

    @property
    def label(self) -> str:
        """The version, or the folder of the checkout."""
        return self.imported.label

    @property
    def interpreted(self) -> bool:
        """The Triton kernels are interpreted, so they accept CPU tensors."""
        return importing.kernels().interpreted

    @property
    def fragile(self) -> bool:
        """A kernel that reads outside a tensor may kill the process."""
        return not importing.kernels().checked

    # What the release has.

    @cached_property
    def has_unified_tree(self) -> bool:
        """The release has ``UnifiedRadixCache``, the tree with full, SWA and mamba parts and with its own sessions."""
        return self.imported.has(TREES["unified"][1])

    @cached_property
    def has_lazy_buffers(self) -> bool:
        """Track buffers can be lazy."""
        known = inspect.signature(self._memory_pool.HybridReqToTokenPool.__init__).parameters
        return "enable_mamba_extra_buffer_lazy" in known

    @cached_property
    def has_tail_allocation(self) -> bool:
        """The SWA allocator has ``alloc_extend_swa_tail``."""
        return hasattr(self._swa_class, "alloc_extend_swa_tail")

    def supports_tails(self, components: Collection[str]) -> bool:
        """A decode server of the release, which gets prompts from a prefill server, may have a tree of these parts.

        Older releases end at the start where the tree has an SWA part. In a tree without an SWA part there is no tail:
        the law has a word for a tail alone.
        """
        if not (self.settings.in_context and self.imported.has(DECODE)) or "mamba" in components:
            return False
        return "swa" in components and hasattr(self.imported.module(DECODE).DecodePreallocQueue, DECODE_BUDGET)

    @cached_property
    def _tokens_are_arrays(self) -> bool:
        """``RadixKey``, and with it a request, keeps its tokens in an ``array``; other releases keep a list."""
        return "array" in str(inspect.signature(self._radix_key.__init__).parameters["token_ids"].annotation)

    @cached_property
    def _built_trees(self) -> frozenset[str]:
        """The kinds of trees that a server of the release may build: others are classes that nothing uses any more."""
        text = "".join(self.imported.text(module) for module in TREE_BUILDERS if self.imported.has(module))
        found = {kind for kind, (name, _) in TREES.items() if re.search(rf"\b{name}\)?\(", text)}
        return frozenset(kind for kind in found if self.imported.has(TREES[kind][1]))

    def check(self, kind: str, buffers: TrackBuffers) -> None:
        """Raises Unsupported if the release has no tree of this kind, or no such track buffers."""
        if kind not in self._built_trees:
            raise Unsupported(f"no server of this release builds a tree of kind {kind}: {TREES[kind][0]}")
        if buffers.lazy and not (buffers.buffered and buffers.doubled):
            raise Unsupported("a lazy buffer has two slots")
        if buffers.lazy and not self.has_lazy_buffers:
            raise Unsupported("the release has no lazy buffer")

    def tokens(self, ids: Sequence[int]) -> Any:
        """Token ids, without their mark, in the container that the release uses."""
        return array("q", marks.unmarked(ids)) if self._tokens_are_arrays else marks.unmarked(ids)

    def key(self, tokens: Sequence[int]) -> Any:
        """The ``RadixKey`` of a text, with its mark."""
        return self._radix_key(self.tokens(tokens), **self.space(tokens))

    def space(self, tokens: Sequence[int]) -> dict[str, str]:
        """What a request or a key has beside the tokens of a text, for their mark: see ``marks.space``."""
        return marks.space(tokens, self._has_salts)

    @cached_property
    def _has_salts(self) -> bool:
        """``RadixKey``, and with it a request, has a ``cache_salt`` beside its ``extra_key``."""
        return "cache_salt" in inspect.signature(self._radix_key.__init__).parameters

    # Pools and rows.

    def allocator(self, size: int, page_size: int, need_sort: bool, device: str = "cpu") -> Any:
        """A TokenToKVPoolAllocator at page size 1, a PagedTokenToKVPoolAllocator at any other."""
        self._check_device(device)
        if page_size == 1:
            token = self.imported.find_class("TokenToKVPoolAllocator", ALLOCATOR)
            return token(size, torch.bfloat16, device, None, need_sort)
        paged = self.imported.find_class("PagedTokenToKVPoolAllocator", ALLOCATOR)
        return paged(size, page_size, torch.bfloat16, device, None, need_sort)

    def swa_allocator(self, size: int, size_swa: int, page_size: int, need_sort: bool, device: str = "cpu") -> Any:
        """A SWATokenToKVPoolAllocator."""
        self._check_device(device)
        return self._swa_class(size, size_swa, page_size, torch.bfloat16, device, self.swa_pool(), need_sort)

    @staticmethod
    def release_list(pool: Any) -> list[int]:
        """The pages of a pool that are free and not sorted in yet: ``release_pages``, or a list of tensors."""
        staged = getattr(pool, "staged_pages", None)
        tensors = [pool.release_pages] if staged is None else staged
        return [page for pages in tensors for page in pages.tolist()]

    @staticmethod
    def lacks_of(allocator: Any, *calls: str) -> set[str]:
        """Those of ``calls`` that an allocator of the release does not have, and backups where it has none.

        An allocator that frees SWA slots by segments does so in each of its calls at page size 1: there callers send a
        slot whose SWA page is gone to ``free_full``, and no other call may get it. At other page sizes ``free`` and
        ``free_swa`` take such slots.
        """
        lacks = {name for name in calls if not hasattr(allocator, name)}
        if not hasattr(allocator, "backup_state"):
            lacks |= {"backup", "restore"}
        if hasattr(allocator, "free_swa_segment") and allocator.page_size == 1:
            lacks.add("free_unmapped")
        return lacks

    def one_pool(self, size: int, need_sort: bool) -> Any:
        """A PureSWATokenToKVPoolAllocator: one pool, for models whose layers all have a window; a page is a token."""
        self._check_device("cpu")
        found = self.imported.find_class("PureSWATokenToKVPoolAllocator", SWA_ALLOCATOR)
        return found(size, 1, torch.bfloat16, "cpu", self.swa_pool(), need_sort)

    def swa_pool(self) -> Any:
        """An SWAKVPool without buffers, since bookkeeping reads the mapping alone."""
        pool: Any = object.__new__(self.imported.find_class("SWAKVPool", SWA_POOL))
        pool.full_kv_pool = pool.swa_kv_pool = pool.full_to_swa_index_mapping = None
        return pool

    def row_pool(self, rows: int, tokens: int) -> Any:
        """A ReqToTokenPool: the table of each request's slots."""
        return self._memory_pool.ReqToTokenPool(
            size=rows, max_context_len=tokens, device="cpu", enable_memory_saver=False
        )

    def row_pool_with_states(self, rows: int, tokens: int, states: int, buffers: TrackBuffers) -> Any:
        """A HybridReqToTokenPool: rows, and a pool of mamba states. The content of a state is one number."""
        state = StandIn(
            shape=StandIn(conv=[(1, 1)], temporal=(1, 1, 1)),
            dtype=StandIn(conv=torch.float32, temporal=torch.float32),
        )
        return self._memory_pool.HybridReqToTokenPool(
            size=rows,
            max_context_len=tokens,
            device="cpu",
            enable_memory_saver=False,
            mamba_size=states,
            mamba_spec_state_size=1,
            cache_params=state,
            mamba_layer_ids=[0],
            enable_overlap_schedule=buffers.doubled,
            **buffers.options,
        )

    @staticmethod
    def state_slots(rows: Any) -> Any:
        """The object that allocates state slots: part of the mamba pool until 0.5.12, an allocator of its own since."""
        return getattr(rows, "mamba_allocator", None) or getattr(rows, "mamba_pool", None)

    @staticmethod
    def has_state_groups(slots: Any) -> bool:
        """State slots can be set aside for a batch (``alloc_group_begin``)."""
        return hasattr(slots, "alloc_group_begin")

    @staticmethod
    def grouped_states(slots: Any) -> list[int]:
        """The state slots that are set aside for a batch and not handed out yet."""
        waiting = getattr(slots, "_alloc_iter", None)
        return [] if waiting is None else [int(slot) for slot in copy.copy(waiting)]

    # The tree and the cache of sessions.

    def tree(
        self,
        kind: str,
        components: Sequence[str],
        rows: Any,
        allocator: Any,
        page_size: int,
        window: int,
        buffers: TrackBuffers,
        core: str = DEFAULT,
    ) -> Any:
        """A tree of one of the kinds in TREES; a unified tree has these components and the core of this name (see
        ``cores``). EngineError: the release has no such core, or builds another one than it is asked for.
        """
        params = self.tree_params(rows, allocator, page_size, window, buffers)
        name, module = TREES[kind]
        build = self.imported.find_class(name, (module,))
        if kind != "unified":
            return build(params)
        params.tree_components = tuple(self.component(name) for name in components)
        return cores.build(self.imported, build, params, core)

    def tree_params(self, rows: Any, allocator: Any, page_size: int, window: int, buffers: TrackBuffers) -> Any:
        """The ``CacheInitParams`` of a tree."""
        self._hash_here()
        return self.imported.module("mem_cache.cache_init_params").CacheInitParams(
            disable=False,
            req_to_token_pool=rows,
            token_to_kv_pool_allocator=allocator,
            page_size=page_size,
            sliding_window_size=window,
            enable_kv_cache_events=self.publishing,
            **buffers.options,
        )

    @staticmethod
    def insert_frees(kind: str) -> bool:
        """An insert into a tree of this kind frees what the tree has already; others leave that to their callers."""
        return kind not in ONE_LOCK

    @staticmethod
    def publishes(tree: Any) -> bool:
        """The tree, or its core, keeps a queue of KV events; other trees say nothing of what they cache."""
        holders = [holder for holder in (tree, getattr(tree, "tree_core", None)) if holder is not None]
        return any(getattr(holder, name, None) is not None for holder in holders for name in EVENTS)

    @cached_property
    def media(self) -> Media:
        """How KV events name the memories of a server."""
        names = self.imported.module(EVENT_TYPES).StorageMedium
        return Media(str(names.GPU.value), str(names.CPU.value))

    def kind_of(self, tree: Any) -> str:
        """The kind of a tree that a server has built. Raises ``Unsupported`` for what a server without a prefix cache
        has in its place, and for the trees of servers with host memory before 0.5.19; ``EngineError`` for a tree that
        is not known.
        """
        name = type(tree).__name__
        if name in OLDER_WITH_HOST:
            raise Unsupported(f"sglang {self.imported.label}: its {name}, a tree with host memory, is not read")
        if name.endswith("ChunkCache"):
            raise Unsupported(f"sglang {self.imported.label}: its {name}, which keeps no prefix, is not read")
        found = next((kind for kind, (known, _) in TREES.items() if known == name), None)
        if found is None:
            raise EngineError(f"sglang {self.imported.label}: a server has built a {name}, which cannot be read")
        return found

    @staticmethod
    def tree_of(session_cache: Any) -> Any:
        """The tree that requests reach through a cache: the cache itself, or what it keeps sessions for."""
        return getattr(session_cache, "inner", session_cache)

    def nodes(self, tree: Any, kind: str, components: tuple[str, ...]) -> Nodes:
        """The nodes of a tree, to read them."""
        if kind in ONE_LOCK:
            return OneComponentNodes(tree)
        if kind != "unified":
            return OlderNodes(tree, components)
        keys = {name: self.component(name) for name in components}
        core = getattr(tree, "tree_core", None)
        if cores.of(tree) == cores.RUST:
            return RustNodes(core, keys, self.key)
        return UnifiedNodes(core or tree, keys, by_number=core is not None)

    def locks(self, tree: Any) -> Locks:
        """Locks on a tree, taken and given back as the release's callers do."""
        return self.locks_over(tree, whole=hasattr(tree, "release_swa"))

    def locks_over(self, tree: Any, whole: bool) -> Locks:
        """Locks on a tree. ``whole``: the tree returns a lock as one object, not as parts of a receipt."""
        if whole:
            return WholeLocks(tree)
        return Receipts(tree, self.tree_base.DecLockRefParams, self.session_slot, self._kept_of_lock)

    @cached_property
    def _kept_of_lock(self) -> frozenset[str]:
        """The fields that a request keeps of the result of ``inc_lock_ref``."""
        text = self.imported.text(REQUESTS)
        return frozenset(name for name in (MARK, SKIPS) if re.search(rf"\bself\.{name}\b", text))

    def component(self, name: str) -> Any:
        """The ``ComponentType`` of a component's name; tables of a unified tree have it as key."""
        return self._components.ComponentType[name.upper()]

    def session_cache(self, tree: Any, kind: str) -> Any:
        """The cache through which requests reach the tree. A unified tree has sessions itself; others are wrapped. A
        server whose model has only sliding-window layers refuses sessions.
        """
        return tree if kind in ("unified", "pure_swa") else self.session_keeper(tree)

    @staticmethod
    def session_slots(session_cache: Any, kind: str) -> dict[Any, Any]:
        """The slot of each session: what the session keeps between two of its requests."""
        owner = getattr(session_cache, "session", None) if kind == "unified" else session_cache
        found: dict[Any, Any] = getattr(owner, "slots", {})
        return found

    # Calls on the tree, whose parameters are objects.

    def match(self, tree: Any, tokens: Sequence[int], **more: Any) -> Any:
        """``match_prefix``."""
        key = self.key(tokens)
        return tree.match_prefix(self.tree_base.MatchPrefixParams(key=key, **more))

    @staticmethod
    def protected_length(match: Any) -> int:
        """How many tokens of a match belong to the tree: some releases say so, in others it is the whole match."""
        known = getattr(match, "cache_protected_len", None)
        return len(match.device_indices) if known is None else int(known)

    @staticmethod
    def matched_slots(tree: Any, match: Any) -> list[int]:
        """The full slots of a match; releases whose match does not name them read them off the path to its node."""
        named = getattr(match, "device_indices", None)
        slots = tree.path_device_indices(match.last_device_node) if named is None else named
        return [int(slot) for slot in slots]

    @staticmethod
    def matched_length(match: Any, slots: Sequence[int]) -> int:
        """How many tokens a match has on the device: some releases say so, in others it is the number of its slots."""
        return int(getattr(match, "device_prefix_len", len(slots)))

    def insert(self, tree: Any, tokens: Sequence[int], cursor: int, **more: Any) -> Any:
        """``insert`` of a row whose SWA slots before the token ``cursor`` were freed."""
        params = self.tree_base.InsertParams(key=self.key(tokens), **more)
        if hasattr(params, "set_evicted_seqlen"):
            params.set_evicted_seqlen(self.component("swa"), cursor)
        else:
            params.swa_evicted_seqlen = cursor
        return tree.insert(params)

    def evict(self, tree: Any, full: int, swa: int, states: int) -> None:
        """``evict``: so many tokens of each pool, and states."""
        tree.evict(self.tree_base.EvictParams(num_tokens=full, swa_num_tokens=swa, mamba_num=states))

    @cached_property
    def event_types(self) -> EventTypes | None:
        """The types of KV events of the release's trees; ``None`` for a release without the module that records them.

        What makes the hash of a page in a space is the release's own function, where it has one.
        """
        if not (self.imported.has(EVENT_TYPES) and self.imported.has(RECORDING)):
            return None
        types = self.imported.module(EVENT_TYPES)

        def apart(block: int, extra_key: str | None, salt: str | None) -> int:
            seed = types.kv_event_namespace_seed(extra_key=extra_key, cache_salt=salt)
            return int(types.namespaced_block_hash(block, namespace_seed=seed))

        return EventTypes(
            types.BlockStored,
            types.BlockRemoved,
            types.AllBlocksCleared,
            types.StorageMedium.GPU,
            grouped=hasattr(self.imported.module(RECORDING), "KVCacheEventRecorder"),
            salt=SALT,
            apart=apart if hasattr(types, "kv_event_namespace_seed") else None,
        )

    # Modules and classes that are used here alone.

    def _hash_here(self) -> None:
        """The hashes that name blocks in KV events are computed here, where the release compiles an extension for them
        when it needs the first one.
        """
        if self.imported.has(NATIVE_HASH):
            self.imported.module(NATIVE_HASH)._load_native_hash_module = lambda: native_hash

    @cached_property
    def _swa_class(self) -> Any:
        return self.imported.find_class("SWATokenToKVPoolAllocator", SWA_ALLOCATOR)

    @cached_property
    def _memory_pool(self) -> Any:
        return self.imported.module("mem_cache.memory_pool")

    @cached_property
    def session_slot(self) -> type[Any] | None:
        """The class of what a streaming session keeps between two of its requests; ``None``: there is none."""
        modules = [module for _, module in SESSION_CACHES if self.imported.has(module)]
        return self.imported.find_class("SessionSlot", modules) if modules else None

    @cached_property
    def session_keeper(self) -> Any:
        """The release's class that keeps the rows of sessions."""
        name, module = next(found for found in SESSION_CACHES if self.imported.has(found[1]))
        return self.imported.find_class(name, (module,))

    @cached_property
    def wraps_trees(self) -> bool:
        """The keeper of sessions is a tree itself, around another; in other releases it is a part of the tree."""
        return issubclass(self.session_keeper, self.tree_base.BasePrefixCache)

    @cached_property
    def _components(self) -> Any:
        name = next(found for found in TREE_COMPONENTS if self.imported.has(found))
        return self.imported.module(name)

    @cached_property
    def tree_base(self) -> Any:
        """``mem_cache.base_prefix_cache``: the interface of a tree, and the types of its parameters and results."""
        return self.imported.module("mem_cache.base_prefix_cache")

    @cached_property
    def tree_interface(self) -> Any:
        """The class that a tree is derived from; EngineError if requests reach it by calls that are not known."""
        interface = self.tree_base.BasePrefixCache
        if not any(call in interface.__abstractmethods__ for call in SERVED):
            raise EngineError(f"sglang {self.label}: a tree has none of the calls {', '.join(SERVED)}")
        return interface

    @cached_property
    def tree_results(self) -> dict[str, Any]:
        """The types of what a tree returns, see ``impl.prefix_cache.Types``; ``None`` for one that is not there."""
        return {field: getattr(self.tree_base, name, None) for field, name in RESULTS.items()}

    @staticmethod
    def kept_window(params: Any, window: int) -> int:
        """How many tokens a tree with these parameters keeps of a window of so many."""
        return int(getattr(params, "swa_retain_window", window))

    @cached_property
    def _radix_key(self) -> Any:
        return self.imported.module("mem_cache.radix_cache").RadixKey

    def _check_device(self, device: str) -> None:
        """Raises EngineError if the kernels of this process cannot read tensors of ``device``."""
        if torch.device(device).type == "cpu" and not self.interpreted:
            raise EngineError("CPU tensors need TRITON_INTERPRET=1 in the environment before the start")


@contextmanager
def building_unified(label: str) -> Iterator[None]:
    """What is done in this block needs a unified tree: EngineError if the release has none that can be built."""
    try:
        yield
    except (Misuse, Unsupported, AttributeError, ImportError) as error:
        raise EngineError(f"{label} has no unified radix tree that can be built: {error}") from error


@cache
def _release(imported: Imported) -> Release:
    return Release(imported)


def load(root: Path, label: str) -> Release:
    """The release whose ``sglang/`` lies below ``root``; EngineError if it cannot be imported into this process."""
    stubbed = STUBBED if has_context(root) else (*STUBBED, SERVER_ARGS)
    return _release(importing.load(root, label, stubbed, NEEDED, ANSWERS))

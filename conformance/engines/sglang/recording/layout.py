"""What a recorder asks a scheduler of SGLang: its pools, its rows and its tree, and what no recording says of it.

All that differs between releases, as far as a recorder needs it, is asked here of the scheduler itself.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

from conformance.engines.sglang.releases import cores, records

ENGINE, MODULES = "sglang", "sglang.srt"
TREES = ("UnifiedRadixCache",)
ALLOCATORS = ("TokenToKVPoolAllocator", "PagedTokenToKVPoolAllocator", "SWATokenToKVPoolAllocator")
NEEDED = ("tree_cache", "req_to_token_pool", "token_to_kv_pool_allocator", "waiting_queue", "running_batch")
POLLS = "ingest_requests"
# The functions that the event loop of a scheduler calls. What one of them raises ends the server.
LOOP = (POLLS, "get_next_batch_to_run", "run_batch", "process_batch_result", "on_idle")
# What no recording says: where an attribute of the scheduler is so, and how a message names it.
ATTRIBUTES = (
    ("is_hybrid_ssm", "recurrent layers"),
    ("enable_hisparse", "sparse attention with host memory"),
    ("enable_unified_memory", "pools that share one memory"),
    ("enable_pdmux", "prefill and decode on parts of one device"),
    ("enable_hierarchical_cache", "host memory"),
    ("dllm_config", "a diffusion model"),
)


class UnrecordableServer(ValueError):
    """A scheduler is no scheduler of SGLang that can be recorded. The message says what it lacks."""


class InstalledModules:
    """The engine's modules in this process, by the names that they have below its package."""

    label = "that runs"

    @staticmethod
    def has(name: str) -> bool:
        """There is such a module."""
        full = f"{MODULES}.{name}"
        return full in sys.modules or importlib.util.find_spec(full) is not None

    @staticmethod
    def module(name: str) -> Any:
        """The module."""
        return import_module(f"{MODULES}.{name}")


def must_be_recordable(scheduler: Any) -> None:
    """Raises ``UnrecordableServer`` if the scheduler has not what is recorded."""
    lacks = [name for name in (*NEEDED, *LOOP) if not hasattr(scheduler, name)]
    lacks += [] if hasattr(worker_of(scheduler), "forward_batch_generation") else ["model_worker"]
    if lacks:
        raise UnrecordableServer(f"scheduler: {type(scheduler).__name__} has no {', '.join(lacks)}")


def worker_of(scheduler: Any) -> Any:
    """Who computes the passes."""
    return getattr(scheduler, "model_worker", None)


def version() -> str:
    """The version of the engine, empty where the package does not say it."""
    return str(getattr(sys.modules.get(ENGINE), "__version__", ""))


def unknown(scheduler: Any) -> list[str]:
    """What no recording says of this scheduler, in words; empty where its recording can be judged."""
    return [*_unknown(scheduler)]


def _unknown(scheduler: Any) -> Iterator[str]:
    yield from (words for name, words in ATTRIBUTES if getattr(scheduler, name, False))
    tree, allocator = scheduler.tree_cache, scheduler.token_to_kv_pool_allocator
    if type(tree).__name__ not in TREES:
        yield f"a prefix cache of the kind {type(tree).__name__}"
    elif cores.of(tree) != cores.PYTHON:
        yield f"a tree with a {cores.of(tree).capitalize()} core ({cores.SWITCH}=python switches to the other one)"
    elif getattr(tree, "disable", False):
        yield "a server without a prefix cache"
    if getattr(scheduler, "is_hybrid_swa", False) and not scheduler.full_tokens_per_layer:
        yield "a model whose layers all have a sliding window"
    elif type(allocator).__name__ not in ALLOCATORS:
        yield f"an allocator of the kind {type(allocator).__name__}"
    if getattr(tree, "cache_controller", None) is not None and not getattr(
        scheduler, "enable_hierarchical_cache", False
    ):
        yield "host memory"
    if getattr(getattr(scheduler, "disaggregation_mode", None), "name", "NULL") != "NULL":
        yield "a server that computes prompts, or answers, for another one"
    algorithm = getattr(scheduler, "spec_algorithm", None)
    if algorithm is not None and not algorithm.is_none():
        yield "speculative decoding"
    if not getattr(scheduler, "is_generation", True):
        yield "a model that computes embeddings"
    if int(getattr(getattr(scheduler, "pp_group", None), "world_size", 1) or 1) > 1:
        yield "pipeline parallelism"


def config(scheduler: Any) -> dict[str, Any]:
    """As ``shape`` of ``ServerEngine``."""
    allocator, page = scheduler.token_to_kv_pool_allocator, int(scheduler.page_size)
    pages = [int(pool.size) // page for pool in pools(scheduler)]
    return {
        "page_size": page,
        "size": pages[0],
        "size_swa": pages[-1] if is_windowed(scheduler) else 1,
        "rows": int(scheduler.req_to_token_pool.size),
        "sessions": 0,
        "window": int(getattr(scheduler, "sliding_window_size", 1) or 1),
        "need_sort": bool(getattr(allocator, "need_sort", False)),
        "components": ["full", "swa"] if is_windowed(scheduler) else ["full"],
    }


def requests(scheduler: Any) -> tuple[list[Any], list[Any]]:
    """The requests that run, which have rows, and those that wait."""
    batches = [one.reqs for one in (scheduler.running_batch, scheduler.last_batch) if one is not None]
    chunked = getattr(scheduler, "chunked_req", None)
    found = {one.rid: one for reqs in (*batches, [] if chunked is None else [chunked]) for one in reqs}
    waiting = list(scheduler.waiting_queue)
    for one in waiting:
        found.pop(one.rid, None)
    return [one for one in found.values() if records.row(one) is not None], waiting


def is_windowed(scheduler: Any) -> bool:
    """Some layers have a sliding window, and others have none: there are two pools."""
    return bool(getattr(scheduler, "is_hybrid_swa", False)) and bool(scheduler.full_tokens_per_layer)


def pools(scheduler: Any) -> list[Any]:
    """The objects that have the lists of the full pool, and of that for windows."""
    allocator = scheduler.token_to_kv_pool_allocator
    return [allocator.full_attn_allocator, allocator.swa_attn_allocator] if is_windowed(scheduler) else [allocator]


def available(scheduler: Any) -> list[int]:
    """The tokens that each pool says are free."""
    allocator = scheduler.token_to_kv_pool_allocator
    if not is_windowed(scheduler):
        return [int(allocator.available_size())]
    return [int(allocator.full_available_size()), int(allocator.swa_available_size())]


def released_pages(allocator: Any) -> list[Any]:
    """The tensors of pages that are free and not sorted in yet."""
    staged = getattr(allocator, "staged_pages", None)
    return list(staged) if staged is not None else [allocator.release_pages]


# The tree.


def owner_of(tree: Any) -> Any:
    """The object that has the nodes of a tree, and its sizes."""
    return getattr(tree, "tree_core", None) or tree


def root_of(tree: Any) -> Any:
    """The root of a tree."""
    return owner_of(tree).root_node


def parts(scheduler: Any) -> list[Any]:
    """By what the tables of a tree know its components: that for full attention, and that for windows."""
    known = {part.name: part for part in scheduler.tree_cache.tree_components}
    return [known["FULL"], known["SWA"]] if is_windowed(scheduler) else [known["FULL"]]


def tree_sizes(tree: Any, parts_of: Iterable[Any]) -> list[tuple[int, int]]:
    """The evictable and the protected size of each component."""
    owner = owner_of(tree)
    evictable, protected = owner.component_evictable_size_, owner.component_protected_size_
    return [(int(evictable[part]), int(protected[part])) for part in parts_of]


def mark_of(data: Any) -> Any:
    """The mark of a node at which the window of a lock ends, from its data for windows."""
    return data.metadata.get("uuid")


def has_slots(slots: Any) -> bool:
    """A node has slots: a tensor that is not empty."""
    return hasattr(slots, "shape") and slots.numel() > 0


def namespace(holder: Any) -> tuple[Any, Any]:
    """What the KV cache of a request, or of a node's key, depends on beside the tokens: its adapter and its salt."""
    return getattr(holder, "extra_key", None), getattr(holder, "cache_salt", None) or None


def is_of_session(request: Any) -> bool:
    """The request is a turn of a session."""
    return getattr(request, "session", None) is not None


def ends_at(request: Any) -> int | None:
    """How many tokens of the answer of a request count; ``None`` while it has not ended."""
    if not request.finished():
        return None
    return len(request.output_ids) if request.finished_len is None else int(request.finished_len)


def is_turned_away(request: Any) -> bool:
    """The engine will abort the request."""
    return request.to_finish is not None


def node_number(handle: Any) -> int | None:
    """The engine's number of the node that a handle names; ``None`` for what names none."""
    if isinstance(handle, int):
        return handle
    return int(handle.id) if hasattr(handle, "id") else None

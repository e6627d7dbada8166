"""What a release has of the parts by which its server is launched and watched: names of modules, calls of objects."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from conformance.driver.protocol import EngineError

if TYPE_CHECKING:
    from conformance.engines.importing import Imported

# The ranks of a scheduler's process that is alone, as a launcher gives them to it.
BY_WORKER = "set_global_server_args_for_scheduler"  # how the worker of some releases publishes
BUILDER, COPIES = "mem_cache.kv_cache_builder", "mem_cache.l2_transfer"
SPAWN_RANKS = {"world_rank": 0, "dp_rank": None, "gpu_id": 0}
RANKS = {
    "gpu_id": 0,
    "tp_rank": 0,
    "moe_ep_rank": 0,
    "pp_rank": 0,
    "attn_cp_rank": 0,
    "moe_dp_rank": 0,
    "dp_rank": None,
}


def modules_with(name: str) -> list[Any]:
    """The imported modules of the release that have this name."""
    known = [module for full, module in list(sys.modules.items()) if full.startswith("sglang.")]
    return [module for module in known if name in vars(module)]


def has_name(module: Any, name: str) -> bool:
    """A module has this name."""
    return name in vars(module)


def function(imported: Imported, places: Sequence[tuple[str, str]]) -> tuple[Any, str, Callable[..., Any]]:
    """Where a function or a method is defined, its name there, and the function. ``places``: module and name, with the
    class of a method before a dot; the first that the release has counts. ``EngineError`` where it has none.
    """
    for module, name in places:
        if not imported.has(module):
            continue
        home = imported.module(module)
        *owner, last = name.split(".")
        for one in owner:
            home = getattr(home, one, None)
        if home is not None and last in vars(home):
            return home, last, vars(home)[last]
    names = " or ".join(name for _, name in places)
    raise EngineError(f"sglang {imported.label} has no {names}, by which a server is watched")


def has_function(imported: Imported, places: Sequence[tuple[str, str]]) -> bool:
    """Whether the release has a function or method at one of these places (see ``function``)."""
    try:
        function(imported, places)
    except EngineError:
        return False
    return True


def part(thing: Any, names: str) -> Any:
    """What an object has by an attribute of an attribute, with dots between their names; ``None`` where it has not."""
    for name in names.split("."):
        thing = getattr(thing, name, None)
    return thing


def names_tree(given: Iterable[Any], tree: Any) -> bool:
    """One of the arguments of a call is this tree, or has it: a scheduler, a batch, or who puts one together."""
    return any(one is tree or getattr(one, "tree_cache", None) is tree for one in given)


def calls(thing: Any, names: Iterable[str]) -> dict[str, Callable[..., Any]]:
    """Those of these calls that an object has."""
    return {name: getattr(thing, name) for name in names if hasattr(thing, name)}


def publishes_events(scheduler: Any) -> bool:
    """A scheduler has been told to publish the KV events of its tree."""
    return bool(scheduler.kv_events_publisher.enable_kv_cache_events)


class Releases(NamedTuple):
    """Some releases: those whose ``module`` has ``name`` (see ``function``), and with ``lacking`` the others. An empty
    ``name``: those that have the module; each release has the module without a name, its package.
    """

    module: str = ""
    name: str = ""
    lacking: bool = False

    def include(self, imported: Imported) -> bool:
        """A release is one of them."""
        there = imported.has(self.module) and (not self.name or has_function(imported, ((self.module, self.name),)))
        return there is not self.lacking

    def text(self) -> str:
        """Which they are, for a reader."""
        thing = f"`{self.name}` of `{self.module}`" if self.name else f"`{self.module}`"
        return f"with{'out' if self.lacking else ''} {thing}"


ALL = Releases()


def resolve(imported: Imported, settings: Any) -> None:
    """Resolves the settings of a server; older releases have done so when they were made."""
    if hasattr(settings, "resolve_once"):
        settings.resolve_once()
    elif not hasattr(settings, "_handle_load_format"):
        raise EngineError(f"sglang {imported.label}: ServerArgs has no resolve_once, by which settings are resolved")


def publish(imported: Imported, settings: Any) -> None:
    """Publishes the configuration of a scheduler's process, and its ranks where the release publishes these. Where the
    process publishes nothing before it makes its scheduler, the scheduler's worker will.
    """
    runtime = imported.module("runtime_context")
    if hasattr(runtime, "publish"):
        ranks = {"ranks": runtime.SpawnRanks(**SPAWN_RANKS)} if hasattr(runtime, "SpawnRanks") else {}
        runtime.publish(settings, role="scheduler", **ranks)
    elif not has_name(imported.module("managers.tp_worker"), BY_WORKER) and not has_name(
        imported.module("model_executor.model_runner"), BY_WORKER
    ):
        raise EngineError(f"sglang {imported.label}: runtime_context has no publish, and its worker no {BY_WORKER}")


def new_scheduler(imported: Imported, settings: Any, ports: Any) -> Any:
    """A ``Scheduler``, with its ranks where the release does not publish these."""
    cls = imported.module("managers.scheduler").Scheduler
    asked = list(inspect.signature(cls.__init__).parameters)[len(("self", "settings", "ports")) :]
    if unknown := sorted({*asked} - RANKS.keys()):
        raise EngineError(
            f"sglang {imported.label}: its scheduler asks for {', '.join(unknown)}, which nobody gives it"
        )
    return cls(settings, ports, **{name: RANKS[name] for name in asked})


def attention_fields(imported: Imported, runner: Any) -> dict[str, Any]:
    """The fields that a model runner gives to its backends of attention."""
    if imported.has("mem_cache.kv_index_translator"):
        return {"kv_index_translator": runner.kv_index_translator}
    return {}


def published_fields(thing: Any) -> dict[str, Any]:
    """The fields of an object of the release's runtime context; tables are copied."""
    names = [name for name in type(thing).__slots__ if hasattr(thing, name)]
    values = {name: getattr(thing, name) for name in names}
    return {name: dict(value) if isinstance(value, dict) else value for name, value in values.items()}


def sorts_freed_pages(allocator: Any) -> bool:
    """The allocator keeps what is freed apart, and sorts it in before it is handed out."""
    return bool(getattr(allocator, "need_sort", False))


def asks_draft_runners(imported: Imported) -> bool:
    """A server asks the runner of its draft model for a pool even where its draft worker has none: up to 0.5.17."""
    if not has_function(imported, ((BUILDER, "get_draft_kv_pool"),)):
        return False
    algorithm = imported.module("speculative.spec_info").SpeculativeAlgorithm.from_string("STANDALONE")
    without, settings = SimpleNamespace(draft_worker=None), SimpleNamespace(enable_multi_layer_eagle=False)
    asked = {"draft_worker": without, "spec_algorithm": algorithm, "server_args": settings}
    try:
        imported.module(BUILDER).get_draft_kv_pool(**asked)
    except AttributeError:
        return True
    return False


def says_tracked_lengths(imported: Imported) -> bool:
    """A forward pass says, since 0.5.20, of which length of a text the states are that it tracks."""
    module, name = "model_executor.forward_batch_info", "ForwardBatch.mamba_track_aligned_lens"
    return has_function(imported, ((module, name),))


# Host memory.


def copies_by_engine(imported: Imported) -> bool:
    """The release has an engine of its own for copies to and from host memory (from 0.5.18 on)."""
    return imported.has(COPIES)


def has_host_memory(scheduler: Any) -> bool:
    """A server has host memory."""
    return getattr(scheduler.tree_cache, "cache_controller", None) is not None


def has_storage(controller: Any) -> bool:
    """There is a storage behind the host memory of this controller."""
    return bool(getattr(controller, "enable_storage", False))


def says_where_fetches_begin(tree: Any) -> bool:
    """An operation that fetches from a storage says at which token of the text it begins (from 0.5.20 on)."""
    return hasattr(tree, "prefetch_loaded_storage_start_by_reqid")


def orders_loads(controller: Any) -> bool:
    """The copies from host memory of this controller wait for forward passes (from 0.5.19 on)."""
    return hasattr(controller, "load_fence_stream")


def marks_of(pool: Any) -> Any | None:
    """Which places of a host pool are in use by its own marks; ``None`` where it keeps none, as a pool of states."""
    return getattr(pool, "slot_used", None)


def recurrent_layers(rows: Any) -> Mapping[int, int]:
    """The recurrent layers of a model, with their places in the pool of states."""
    return getattr(rows, "mamba_map", None) or {}

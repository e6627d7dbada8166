"""What a model with mamba states has in a loaded SGLang release, at a tiny size on CPU: its rows, and who names what.

Stood in for are the server's arguments that these classes read, and the shape of a state (one number).
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from conformance.subjects.sglang import SGLang
from conformance.subjects.stateview import Named, Three

COMPONENTS = "mem_cache.unified_cache_components"
UNIFIED = "unified_radix_cache.UnifiedRadixCache"
COMPONENT = f"{COMPONENTS}.mamba_component"


class Buffers(NamedTuple):
    """What a request's track buffer is: of one slot or ``doubled``, the second one ``lazy``."""

    buffered: bool = False
    doubled: bool = True
    lazy: bool = False

    @property
    def options(self) -> dict[str, bool]:
        """What is asked for by name; releases without lazy buffers do not know that word."""
        return {"enable_mamba_extra_buffer": self.buffered} | (
            {"enable_mamba_extra_buffer_lazy": True} if self.lazy else {}
        )


def lacks(engine: SGLang, buffers: Buffers, unified: bool) -> str:
    """What the release lacks for such buffers, in such a tree."""
    if unified and not (engine.root / "sglang/srt/mem_cache/unified_radix_cache.py").is_file():
        return "the release has no unified tree"
    known = inspect.signature(engine.module("mem_cache.memory_pool").HybridReqToTokenPool.__init__).parameters
    if buffers.lazy and not (buffers.buffered and buffers.doubled):
        return "a lazy buffer has two slots"
    if buffers.lazy and "enable_mamba_extra_buffer_lazy" not in known:
        return "the release has no lazy buffer"
    return ""


def state_rows(engine: SGLang, rows: int, tokens: int, states: int, buffers: Buffers) -> Any:
    """The rows of requests that have states."""
    state = SimpleNamespace(
        shape=SimpleNamespace(conv=[(1, 1)], temporal=(1, 1, 1)),
        dtype=SimpleNamespace(conv=torch.float32, temporal=torch.float32),
    )
    module: Any = engine.module("mem_cache.memory_pool")
    return module.HybridReqToTokenPool(
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


def server(page_size: int, buffers: Buffers) -> SimpleNamespace:
    """The server's arguments that are read."""
    return SimpleNamespace(
        attention_backend="torch_native",  # rows are then written by plain torch
        page_size=page_size,
        mamba_cache_chunk_size=page_size,
        mamba_track_interval=page_size,
        enable_int8_mamba_checkpoint=False,
        enable_mamba_extra_buffer=lambda: buffers.buffered,
        enable_mamba_extra_buffer_lazy=lambda: buffers.lazy,
        speculative_algorithm=None,
        strip_thinking_cache=False,
        chunked_prefill_size=-1,
        disaggregation_mode="null",
    )


def serve(engine: SGLang, names: tuple[str, ...], arguments: SimpleNamespace) -> None:
    """These modules read these arguments."""
    for name in names:
        engine.module(name).get_global_server_args = lambda: arguments  # type: ignore[attr-defined]


def radix_tree(
    engine: SGLang, name: str, components: Sequence[str], rows: Any, pool: Any, window: int, buffers: Buffers
) -> Any:
    """A tree of the release: ``name`` is its module and its class; the unified one has these components."""
    params = engine.module("mem_cache.cache_init_params").CacheInitParams(
        disable=False,
        req_to_token_pool=rows,
        token_to_kv_pool_allocator=pool.engine,
        page_size=pool.page_size,
        sliding_window_size=window,
        **buffers.options,
    )
    module, kind = name.split(".")
    if name == UNIFIED:
        kinds = engine.module(COMPONENTS).ComponentType
        params.tree_components = tuple(kinds[component.upper()] for component in components)
    return getattr(engine.module(f"mem_cache.{module}"), kind)(params)


# What a scheduler does with a track buffer.


def track(rows: Any, request: Any, page_size: int, lazy: bool) -> None:
    """A boundary: the state is written to the next track, and (unless it is lazy) the other one is next."""
    request.mamba_last_track_seqlen = request.kv_committed_len // page_size * page_size
    if not lazy:
        request.mamba_next_track_idx = rows.get_mamba_ping_pong_other_idx(request.mamba_next_track_idx)


def before_boundary(engine: SGLang, rows: Any, tree: Any, request: Any, page_size: int) -> None:
    """A lazy buffer gets its second slot before a step that tracks, if there is room."""
    batch = SimpleNamespace(
        req_to_token_pool=rows, reqs=[request], seq_lens_cpu=torch.tensor([page_size]), tree_cache=tree
    )
    engine.module("managers.schedule_batch").ScheduleBatch.mamba_lazy_prealloc_at_boundary(batch, page_size)


def after_boundary(engine: SGLang, rows: Any, request: Any) -> None:
    """A lazy buffer gives one slot back after the step."""
    after = "mamba_lazy_post_decode_at_boundary"
    module = engine.module("managers.scheduler_components.batch_result_processor")
    kind = next(c for c in vars(module).values() if isinstance(c, type) and hasattr(c, after))
    getattr(kind, after)(None, request, SimpleNamespace(req_to_token_pool=rows))


# What can be seen.


def named(holder: Any) -> Named:
    """What a request's record, or a session's, names."""
    buffer = holder.mamba_ping_pong_track_buffer
    slots = _three(holder.mamba_pool_idx, None if buffer is None else buffer.tolist())
    return Named(slots, holder.mamba_next_track_idx or 0)


def row_names(rows: Any, row: int, buffered: bool) -> Three:
    """What the kernels read."""
    own = int(rows.req_index_to_mamba_index_mapping[row : row + 1].sum())  # 0 where the table has no such row
    if not buffered:
        return own, 0, 0
    return _three(own, rows.req_index_to_mamba_ping_pong_track_buffer_mapping[row : row + 1].view(-1).tolist())


def set_aside(slots: Any) -> list[int]:
    """The slots that wait in a group."""
    aside = getattr(slots, "_alloc_iter", None)
    return [] if aside is None else [int(slot) for slot in copy.copy(aside)]


def _three(own: Any, buffer: Any) -> Three:
    """0 for what an engine writes as None or -1."""
    one = 0 if own is None else int(own)
    first, second, *_ = [*(max(0, int(slot)) for slot in (buffer if buffer is not None else ())), 0, 0]
    return one, first, second

"""What of an SGLang release keeps mamba state slots, built at a tiny size on CPU, and what can be seen of it.

Everything is the release's own: the slot pool, the rows, the tree, the streaming session. Stood in for are the server's
arguments and the shape of a state (one number).
"""

from __future__ import annotations

import copy
import inspect
from array import array
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from conformance.machine import Json
from conformance.subjects.adapter import PoolSubject, SwaSubject, Traits
from conformance.subjects.engine_request import Request, Session
from conformance.subjects.sglang import SGLang
from conformance.subjects.stateview import Key, Named, Seen, Three

TOKENS, WINDOW = 512, 4
TREES = {"mamba_radix": (), "unified": ("full", "mamba"), "unified_swa": ("full", "swa", "mamba")}
SERVER = ("server_args", "mem_cache.mamba_radix_cache", "mem_cache.common")
COMPONENTS = "mem_cache.unified_cache_components"
UNIFIED = (f"{COMPONENTS}.mamba_component", f"{COMPONENTS}.swa_component")


class EngineParts:
    """One pool of a release with its rows, tree and sessions."""

    traits = Traits("sglang", fragile=True)

    def __init__(self, engine: SGLang, config: Json) -> None:
        self.engine, self.config = engine, config
        self.buffered, self.doubled, self.lazy = (bool(config[name]) for name in ("buffered", "doubled", "lazy"))
        self.parts, self.page_size = TREES[config["tree"]], 2 if config["buffered"] else 1
        self.memory = engine.module("mem_cache.memory_pool")
        self.missing = self._missing()
        self.requests: dict[int, Request] = {}
        self.sessions = {s: Session(s) for s in range(1, config["sessions"] + 1)}
        if not self.missing:
            self._build()

    def _missing(self) -> str:
        """What the release lacks for this configuration."""
        if self.parts and not (self.engine.root / "sglang/srt/mem_cache/unified_radix_cache.py").is_file():
            return "the release has no unified tree"
        known = inspect.signature(self.memory.HybridReqToTokenPool.__init__).parameters
        if self.lazy and not (self.buffered and self.doubled):
            return "a lazy buffer has two slots"
        if self.lazy and "enable_mamba_extra_buffer_lazy" not in known:
            return "the release has no lazy buffer"
        return ""

    def offers(self, name: str) -> bool:
        """What there is to do depends on the release and on the kind of buffer."""
        slides = "swa" in self.parts
        return {"begin": hasattr(self.slots, "alloc_group_begin"), "slide": slides}.get(name, True)

    # What it is made of.

    def _build(self) -> None:
        self._stand_in()
        # The session imports it on its first use, when nothing is stood in for any more.
        self.batch = self.engine.module("managers.schedule_batch")
        lazily = {"enable_mamba_extra_buffer_lazy": True} if self.lazy else {}
        self.pool, self.rows = self._pool(), self._rows(lazily)
        self.slots = getattr(self.rows, "mamba_allocator", None) or self.rows.mamba_pool
        self.base = self.engine.module("mem_cache.base_prefix_cache")
        self.keys = self.engine.module("mem_cache.radix_cache").RadixKey
        self.inner = self._tree(lazily)
        self.tree = self.inner if self.parts else self._session_class()(self.inner)
        self.arrays = not isinstance(self.inner.root_node.key.token_ids, list)

    def _stand_in(self) -> None:
        arguments = SimpleNamespace(
            mamba_cache_chunk_size=self.page_size,
            mamba_track_interval=self.page_size,
            page_size=self.page_size,
            enable_int8_mamba_checkpoint=False,
            speculative_algorithm=None,
            strip_thinking_cache=False,
            enable_mamba_extra_buffer=lambda: self.buffered,
            disaggregation_mode="null",
        )
        for name in (*SERVER, *(UNIFIED if self.parts else ())):
            self.engine.module(name).get_global_server_args = lambda: arguments  # type: ignore[attr-defined]

    def _pool(self) -> PoolSubject:
        if "swa" in self.parts:
            pools = self.engine.swa_allocator(TOKENS, TOKENS, self.page_size, need_sort=False)
            return SwaSubject(pools, self.page_size, "cpu", self.traits)
        pool = self.engine.allocator(TOKENS, self.page_size, need_sort=False)
        return PoolSubject(pool, self.page_size, "cpu", self.traits)

    def _rows(self, lazily: Json) -> Any:
        state = SimpleNamespace(
            shape=SimpleNamespace(conv=[(1, 1)], temporal=(1, 1, 1)),
            dtype=SimpleNamespace(conv=torch.float32, temporal=torch.float32),
        )
        return self.memory.HybridReqToTokenPool(
            size=self.config["requests"] + self.config["sessions"],
            max_context_len=TOKENS,
            device="cpu",
            enable_memory_saver=False,
            mamba_size=self.config["size"],
            mamba_spec_state_size=1,
            cache_params=state,
            mamba_layer_ids=[0],
            enable_mamba_extra_buffer=self.buffered,
            enable_overlap_schedule=self.doubled,
            **lazily,
        )

    def _tree(self, lazily: Json) -> Any:
        params = self.engine.module("mem_cache.cache_init_params").CacheInitParams(
            disable=False,
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.pool.engine,
            page_size=self.page_size,
            sliding_window_size=WINDOW,
            enable_mamba_extra_buffer=self.buffered,
            **lazily,
        )
        if not self.parts:
            return self.engine.module("mem_cache.mamba_radix_cache").MambaRadixCache(params)
        kinds = self.engine.module(COMPONENTS).ComponentType
        params.tree_components = tuple(kinds[name.upper()] for name in self.parts)
        return self.engine.module("mem_cache.unified_radix_cache").UnifiedRadixCache(params)

    def _session_class(self) -> Any:
        places = ("session.streaming_session", "mem_cache.session_aware_cache")
        name = "StreamingSession"
        file = self.engine.root / "sglang/srt/session/streaming_session.py"
        return self.engine.find_class(*((name, places[:1]) if file.is_file() else ("SessionAwareCache", places[1:])))

    # What can be seen.

    def observe(self) -> Seen:
        """The lists, the tables, and what everybody names."""
        requests = {n: _named(r) for n, r in self.requests.items()}
        rows = {n: self._row(r.req_pool_idx) for n, r in self.requests.items() if r.req_pool_idx is not None}
        holder = self.tree if not self.parts else getattr(self.tree, "session", None)
        sessions = {s: _named(slot) for s, slot in getattr(holder, "slots", {}).items()}
        aside = getattr(self.slots, "_alloc_iter", None)
        waiting = [] if aside is None else [int(slot) for slot in copy.copy(aside)]
        free = self.slots.free_slots.tolist()
        return Seen(free, int(self.slots.available_size()), waiting, requests, rows, sessions, self._states())

    def _row(self, row: int) -> Three:
        own = int(self.rows.req_index_to_mamba_index_mapping[row : row + 1].sum())  # 0 where the table has no such row
        if not self.buffered:
            return own, 0, 0
        tracks = self.rows.req_index_to_mamba_ping_pong_track_buffer_mapping[row : row + 1].view(-1)
        return _three(own, tracks.tolist())

    def _states(self) -> dict[Key, int]:
        found, waiting = {}, [self.inner.root_node]
        while waiting:
            node = waiting.pop()
            waiting += node.children.values()
            state = self._state(node)
            if state is not None:
                found[self.path(node)] = int(state[0])
        return found

    def _state(self, node: Any) -> Any:
        if not self.parts:
            return node.mamba_value
        return node.component_data[self.engine.module(COMPONENTS).ComponentType.MAMBA].value

    @staticmethod
    def path(node: Any) -> Key:
        tokens: list[int] = []
        while node.parent is not None:
            tokens = [*(int(token) for token in node.key), *tokens]
            node = node.parent
        return tuple(tokens)

    def key(self, tokens: Sequence[int]) -> Any:
        return self.keys(array("q", tokens) if self.arrays else list(tokens), None)


def _three(own: Any, buffer: Any) -> Three:
    """0 for what an engine writes as None or -1."""
    one = 0 if own is None else int(own)
    first, second, *_ = [*(max(0, int(slot)) for slot in (buffer if buffer is not None else ())), 0, 0]
    return one, first, second


def _named(holder: Any) -> Named:
    buffer = holder.mamba_ping_pong_track_buffer
    slots = _three(holder.mamba_pool_idx, None if buffer is None else buffer.tolist())
    return Named(slots, holder.mamba_next_track_idx or 0)

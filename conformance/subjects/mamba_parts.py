"""What of an SGLang release keeps mamba state slots, built at a tiny size on CPU, and what can be seen of it.

Everything is the release's own: the slot pool, the rows, the tree, the streaming session. Stood in for are the server's
arguments and the shape of a state (one number).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from conformance.machine import Json
from conformance.subjects.adapter import PoolSubject, SwaSubject, Traits
from conformance.subjects.engine_request import Request, Session
from conformance.subjects.hybrid import (
    COMPONENT,
    COMPONENTS,
    UNIFIED,
    Buffers,
    lacks,
    named,
    radix_tree,
    row_names,
    serve,
    server,
    set_aside,
    state_rows,
)
from conformance.subjects.sglang import SGLang
from conformance.subjects.stateview import Key, Seen

TOKENS, WINDOW = 512, 4
TREES = {"mamba_radix": (), "unified": ("full", "mamba"), "unified_swa": ("full", "swa", "mamba")}
SERVER = ("server_args", "mem_cache.mamba_radix_cache", "mem_cache.common")
SERVED = (COMPONENT, f"{COMPONENTS}.swa_component")  # by a unified tree


class EngineParts:
    """One pool of a release with its rows, tree and sessions."""

    traits = Traits("sglang", fragile=True)

    def __init__(self, engine: SGLang, config: Json) -> None:
        self.engine, self.config = engine, config
        self.buffers = Buffers(*(bool(config[name]) for name in Buffers._fields))
        self.buffered, self.doubled, self.lazy = self.buffers
        self.parts, self.page_size = TREES[config["tree"]], 2 if config["buffered"] else 1
        self.memory = engine.module("mem_cache.memory_pool")
        self.missing = self._missing()
        self.requests: dict[int, Request] = {}
        self.sessions = {s: Session(s) for s in range(1, config["sessions"] + 1)}
        if not self.missing:
            self._build()

    def _missing(self) -> str:
        """What the release lacks for this configuration."""
        return lacks(self.engine, self.buffers, bool(self.parts))

    def offers(self, name: str) -> bool:
        """What there is to do depends on the release and on the kind of buffer."""
        slides = "swa" in self.parts
        return {"begin": hasattr(self.slots, "alloc_group_begin"), "slide": slides}.get(name, True)

    # What it is made of.

    def _build(self) -> None:
        self._stand_in()
        # The session imports it on its first use, when nothing is stood in for any more.
        self.batch = self.engine.module("managers.schedule_batch")
        self.pool, self.rows = self._pool(), self._rows()
        self.slots = getattr(self.rows, "mamba_allocator", None) or self.rows.mamba_pool
        self.base = self.engine.module("mem_cache.base_prefix_cache")
        self.keys = self.engine.module("mem_cache.radix_cache").RadixKey
        self.inner = self._tree()
        self.tree = self.inner if self.parts else self._session_class()(self.inner)
        self.arrays = not isinstance(self.inner.root_node.key.token_ids, list)

    def _stand_in(self) -> None:
        names = (*SERVER, *(SERVED if self.parts else ()))
        serve(self.engine, names, server(self.page_size, self.buffers))

    def _pool(self) -> PoolSubject:
        if "swa" in self.parts:
            pools = self.engine.swa_allocator(TOKENS, TOKENS, self.page_size, need_sort=False)
            return SwaSubject(pools, self.page_size, "cpu", self.traits)
        pool = self.engine.allocator(TOKENS, self.page_size, need_sort=False)
        return PoolSubject(pool, self.page_size, "cpu", self.traits)

    def _rows(self) -> Any:
        rows = self.config["requests"] + self.config["sessions"]
        return state_rows(self.engine, rows, TOKENS, self.config["size"], self.buffers)

    def _tree(self) -> Any:
        name = UNIFIED if self.parts else "mamba_radix_cache.MambaRadixCache"
        return radix_tree(self.engine, name, self.parts, self.rows, self.pool, WINDOW, self.buffers)

    def _session_class(self) -> Any:
        places = ("session.streaming_session", "mem_cache.session_aware_cache")
        name = "StreamingSession"
        file = self.engine.root / "sglang/srt/session/streaming_session.py"
        return self.engine.find_class(*((name, places[:1]) if file.is_file() else ("SessionAwareCache", places[1:])))

    # What can be seen.

    def observe(self) -> Seen:
        """The lists, the tables, and what everybody names."""
        requests = {n: named(r) for n, r in self.requests.items()}
        rows = {
            n: row_names(self.rows, r.req_pool_idx, self.buffered)
            for n, r in self.requests.items()
            if r.req_pool_idx is not None
        }
        holder = self.tree if not self.parts else getattr(self.tree, "session", None)
        sessions = {s: named(slot) for s, slot in getattr(holder, "slots", {}).items()}
        free, waiting = self.slots.free_slots.tolist(), set_aside(self.slots)
        return Seen(free, int(self.slots.available_size()), waiting, requests, rows, sessions, self._states())

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

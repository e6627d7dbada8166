"""The radix trees of a loaded SGLang release, at a tiny size on CPU, driven and observed by plain numbers.

Everything that decides is the release's own: the tree, its allocators, its request and mamba pools. Stood in for
are only the server's arguments (two of them are read) and the shape of a mamba state (one number). A ``Tree`` does
what the callers do around a call of the tree: allocate the slots of the tokens that the caller does not share,
free the SWA side below the cursor, free what the tree has not taken.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from conformance.machine import Misuse
from conformance.subjects.adapter import PoolSubject, SwaSubject, Traits
from conformance.subjects.hybrid import COMPONENT, UNIFIED, Buffers, radix_tree, serve, server, state_rows
from conformance.subjects.sglang import SGLang
from conformance.subjects.treeview import Inserted, Match, Seen, View
from spec.lengths import pages_needed

COMPONENTS = ("full", "swa", "mamba")
# Who releases a handle, and what of the lock's result it has kept by then.
# request: the window token, and whether the SWA part went early (cache_finished_req); session: the window token
# alone (a streaming session's release); temporary: everything (a lock around an admission).
CALLERS = ("request", "session", "temporary")


@dataclass
class _Handle:
    node: Any
    result: Any
    early: bool = False


@dataclass
class Tree:
    """One tree of a release: ``kind`` is unified, or swa_radix (the older tree of full and SWA)."""

    engine: SGLang
    kind: str = "unified"
    components: tuple[str, ...] = ("full", "swa")
    page_size: int = 1
    size: int = 16
    size_swa: int = 16
    window: int = 4
    size_mamba: int = 4
    limit: int = 1  # rows of requests
    kinds: Buffers | None = None  # what their track buffers are
    _handles: dict[int, _Handle] = field(default_factory=dict, init=False)
    _count: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.components[0] != "full" or set(self.components) - set(COMPONENTS):
            raise Misuse(f"a tree has the component full first, and none beside {COMPONENTS}")
        allowed = {"unified": self.components, "swa_radix": COMPONENTS[:2]}
        if allowed.get(self.kind) != self.components:
            raise Misuse("a tree is unified, or swa_radix with full and swa")
        self.pool = self._pool()
        self.rows = self._rows()
        # 0.5.13 split the mamba pool into its states and the list of its free slots.
        self.slots: Any = getattr(self.rows, "mamba_allocator", None) or getattr(self.rows, "mamba_pool", None)
        self.base = self.engine.module("mem_cache.base_prefix_cache")
        self.tree = self._tree()
        self._key = self.engine.module("mem_cache.radix_cache").RadixKey
        kinds = dict(zip(self.components, getattr(self.tree, "tree_components", ()), strict=False))
        self.view = View(self.tree, kinds, self.components, self.pool, self.slots)
        self.view.number(self.tree.root_node)

    @property
    def buffers(self) -> Buffers:
        """Without a word requests track their states where pages are larger than a token."""
        return Buffers(self.page_size > 1) if self.kinds is None else self.kinds

    # What the tree is made of.

    def _pool(self) -> PoolSubject:
        traits = Traits("sglang", self.engine.label, fragile=True)
        if "swa" in self.components:
            pools = self.engine.swa_allocator(self.size, self.size_swa, self.page_size, need_sort=False)
            return SwaSubject(pools, self.page_size, "cpu", traits)
        return PoolSubject(self.engine.allocator(self.size, self.page_size, False), self.page_size, "cpu", traits)

    def _rows(self) -> Any:
        if "mamba" in self.components:
            serve(self.engine, ("server_args", COMPONENT), server(self.page_size, self.buffers))
            return state_rows(self.engine, self.limit, self.size, self.size_mamba, self.buffers)
        pool: Any = self.engine.module("mem_cache.memory_pool")
        return pool.ReqToTokenPool(size=self.limit, max_context_len=self.size, device="cpu", enable_memory_saver=False)

    def _tree(self) -> Any:
        name = {"swa_radix": "swa_radix_cache.SWARadixCache"}.get(self.kind, UNIFIED)
        return radix_tree(self.engine, name, self.components, self.rows, self.pool, self.window, self.buffers)

    # Calls.

    def insert(self, tokens: list[int], cursor: int = 0, protected: int = 0) -> Inserted | None:
        """Caches a row: its first ``protected`` slots are the tree's, the others new; ``None``: out of memory."""
        if cursor % self.page_size or protected % self.page_size or max(cursor, protected) > len(tokens):
            raise Misuse("cursor and protected prefix are whole pages of the row")
        row = self._shared(tokens, protected)
        mamba = self.take_mamba() if "mamba" in self.components else None
        fresh = self._fresh(row, len(tokens)) if mamba is not None or "mamba" not in self.components else None
        if fresh is None:
            self._give_mamba(mamba)
            return None
        if "swa" in self.components:
            self.pool.engine.free_swa(torch.tensor(fresh[: max(0, cursor - protected)], dtype=torch.int64))
        row += fresh
        whole = len(tokens) // self.page_size * self.page_size
        answer = self.tree.insert(
            self.base.InsertParams(
                key=self._radix_key(tokens[:whole]),
                value=torch.tensor(row[:whole], dtype=torch.int64),
                prev_prefix_len=protected,
                swa_evicted_seqlen=cursor,
                mamba_value=None if mamba is None else torch.tensor([mamba]),
            )
        )
        self.pool.free(row[whole:])
        freed = mamba is not None and bool(answer.mamba_exist)
        self._give_mamba(mamba if freed else None)
        return Inserted(int(answer.prefix_len), fresh, mamba, freed)

    def match(self, tokens: list[int]) -> Match:
        """The longest prefix in the tree that a request may use."""
        return self._matched(key=self._radix_key(tokens))

    def copy_on_write(self, tokens: list[int]) -> Match:
        """Matches for a request that wants a copy of the mamba state, for which the tree may lock and evict."""
        request = SimpleNamespace(mamba_pool_idx=None, session=None)
        found = self._matched(key=self._radix_key(tokens), cow_mamba=True, req=request)
        slot = request.mamba_pool_idx
        return Match(found.length, found.node, found.slots, None if slot is None else int(slot))

    def acquire(self, node: int) -> int:
        """Locks a node for a caller; the number of its handle."""
        locked = self.view.find(node)
        if locked is None:
            raise Misuse(f"the tree has no node {node}")
        result = self.tree.inc_lock_ref(locked)
        self._count += 1
        self._handles[self._count] = _Handle(locked, result)
        return self._count

    def token(self, handle: int) -> int | None:
        """The window token that a handle was given, ``None`` if its SWA part reaches the root."""
        return self.view.token(self._held(handle).result.swa_uuid_for_lock)

    def release(self, handle: int, caller: str = "request") -> None:
        """Gives a handle back with what its caller has kept of the lock's result (see CALLERS)."""
        if caller not in CALLERS:
            raise Misuse(f"no caller {caller!r}: there are {CALLERS}")
        held = self._held(handle)
        params = self._params(held, caller)
        early = {"skip_swa": True} if held.early and caller == "request" else {}
        del self._handles[handle]
        self.tree.dec_lock_ref(held.node, params, **early)

    def release_swa(self, handle: int) -> None:
        """Gives back the SWA part of a handle that has filled its window, as a long decode does."""
        held = self._held(handle)
        if not self.releases_early or held.early or held.result.swa_uuid_for_lock is None:
            raise Misuse("nothing that this release's callers would give back early")
        self.tree.dec_swa_lock_only(held.node, held.result.swa_uuid_for_lock)
        held.early = True

    @property
    def releases_early(self) -> bool:
        """This tree knows the early release of the SWA part."""
        return "swa" in self.components and hasattr(self.tree, "dec_swa_lock_only")

    def evict(self, full: int = 0, swa: int = 0, mamba: int = 0) -> None:
        """Asks the tree to free at least so many tokens and states."""
        self.tree.evict(self.base.EvictParams(num_tokens=full, swa_num_tokens=swa, mamba_num=mamba))

    def take_mamba(self) -> int | None:
        """A mamba slot for a running request, ``None`` if there is none."""
        slot = self.slots.alloc(1)
        return None if slot is None else int(slot)

    def _give_mamba(self, slot: int | None) -> None:
        if slot is not None:
            self.slots.free(torch.tensor([slot]))

    # What callers see.

    def observe(self) -> Seen:
        """Everything that can be read off the tree and its pools."""
        return self.view.seen()

    def window_token(self, node: Any) -> int | None:
        """The tree's own token of the node where windows end, as locks carry it."""
        kinds = self.view.kinds
        token: int | None = node.component_data[kinds["swa"]].metadata.get("uuid") if kinds else node.swa_uuid
        return token

    # Helpers.

    def _matched(self, **asked: Any) -> Match:
        found = self.tree.match_prefix(self.base.MatchPrefixParams(**asked))
        slots = [int(slot) for slot in found.device_indices]
        return Match(len(slots), self.view.number(found.last_device_node), slots)

    def _radix_key(self, tokens: Sequence[int]) -> Any:
        # From 0.5.13 on a request's tokens are an array.
        plain = isinstance(self.tree.root_node.key, list) or isinstance(self.tree.root_node.key.token_ids, list)
        return self._key(list(tokens) if plain else array("q", tokens))

    def _shared(self, tokens: list[int], protected: int) -> list[int]:
        """The tree's slots of the first tokens, which the caller has since its match (and holds)."""
        row: list[int] = []
        node = self.tree.root_node
        while len(row) < protected:
            rest = tokens[len(row) : protected]
            step = (c for c in node.children.values() if list(c.key) == rest[: len(c.key)])
            if (node := next(step, None)) is None:
                raise Misuse(f"no node of the tree ends after {protected} of these tokens")
            row += self.view.full_slots(node)
        return row

    def _fresh(self, row: list[int], length: int) -> list[int] | None:
        if length == len(row):
            return []
        if self.page_size == 1:
            return self.pool.alloc(length - len(row))
        # What an empty free list does to this call is a finding of the allocator; callers make room before it.
        short = pages_needed(len(row), length, self.page_size) * self.page_size > self.pool.engine.available_size()
        return None if short else self.pool.extend([len(row)], [length], row[-1:] or [-1])

    def _held(self, handle: int) -> _Handle:
        if handle not in self._handles:
            raise Misuse(f"handle {handle} is not held")
        return self._handles[handle]

    def _params(self, held: _Handle, caller: str) -> Any:
        if caller == "temporary" and hasattr(held.result, "to_dec_params"):
            return held.result.to_dec_params()
        return self.base.DecLockRefParams(swa_uuid_for_lock=held.result.swa_uuid_for_lock)

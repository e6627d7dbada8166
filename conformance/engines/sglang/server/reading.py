"""Reads a server's memory: the objects are those of its scheduler, and ``driving`` knows how each is read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from conformance.driver.protocol import Json, Key, Unsupported
from conformance.engines.adapters import PairAdapter, PoolAdapter
from conformance.engines.sglang.driving.reading import (
    TreeReader,
    cached_pages,
    mapping_of,
    slot_names,
    slots_in_row,
    text,
    tree_states,
)
from conformance.engines.sglang.driving.windows import Windows
from conformance.engines.sglang.releases import cores, records
from conformance.engines.sglang.releases.nodes import TreeNode, is_handle
from conformance.engines.sglang.releases.release import Release
from conformance.engines.sglang.releases.server_parts import publishes_events, says_tracked_lengths, sorts_freed_pages
from conformance.engines.sglang.releases.states import CopiesOfStates, StateMarks, track_buffers
from conformance.engines.sglang.releases.tiers import Tiers
from conformance.stems.cache.protocol import CacheSnapshot, LockHold
from conformance.stems.lock_ref.protocol import LockRefSnapshot
from conformance.stems.mamba_slots.protocol import MambaSlotsSnapshot
from conformance.stems.session_trim.protocol import Lengths, RowSnapshot, SessionTrimSnapshot
from conformance.stems.swa_mapping.protocol import SwaMappingSnapshot


class Requests(Protocol):
    """The requests of a server by number, those that have a row, and those that have a lock and no row yet."""

    requests: dict[int, Any]
    running: set[int]
    admitted: set[int]


class ServerReader:
    """Reads one server."""

    def __init__(self, release: Release, scheduler: Any, known: Requests) -> None:
        self._release, self._scheduler, self._known = release, scheduler, known
        self.tree, self.rows = scheduler.tree_cache, scheduler.req_to_token_pool
        self.page_size = int(scheduler.page_size)
        allocator = scheduler.token_to_kv_pool_allocator
        self.all_sliding = bool(scheduler.is_hybrid_swa) and not scheduler.full_tokens_per_layer
        self.windowed = bool(scheduler.is_hybrid_swa) and not self.all_sliding
        self._inner = release.tree_of(self.tree)
        self._kind = release.kind_of(self._inner)
        self.stateful = bool(scheduler.is_hybrid_ssm)
        if self.stateful and not says_tracked_lengths(release.imported):
            raise Unsupported(f"sglang {release.imported.label}: its passes do not say which states they track")
        self.components = ("full", *(["swa"] if self.windowed else []), *(["mamba"] if self.stateful else []))
        self._states: Any = release.state_slots(self.rows) if self.stateful else None
        self.buffers = track_buffers(self.rows)
        pool = self.rows.mamba_pool if self.stateful else None
        self.copies, self.marks = CopiesOfStates(pool), StateMarks(pool)
        adapter = PairAdapter if self.windowed else PoolAdapter
        self._pools = adapter(allocator, self.page_size, released=release.release_list)
        self.begin()
        self.publishes = publishes_events(scheduler) and release.publishes(self._inner)
        self._media = release.media if self.publishes else None
        self._tiers: Tiers | None = None

    def begin(self) -> None:
        """The tree is new: it was built, or emptied. Its nodes get numbers from 0 on."""
        self._tree = TreeReader(
            self._release.nodes(self._inner, self._kind, self.components), self.components, self._states
        )
        self._windows = Windows(int(self._scheduler.sliding_window_size or 0))

    @property
    def ran(self) -> dict[str, str]:
        """What runs: the core of a unified tree."""
        return {"core": cores.of(self.tree)} if self._kind == "unified" else {}

    def shape(self, config: Json) -> Json:
        """A configuration of the stem ``cache`` for what the server has built."""
        seen, page = self.read_pools(), self.page_size
        return {
            "page_size": page,
            "size": len(seen.full.free) + len(seen.full.released),
            "size_swa": len(seen.swa.free) + len(seen.swa.released) if self.windowed else 1,
            "rows": len(self.rows.free_slots),
            "sessions": config["sessions"],
            "window": int(self._scheduler.sliding_window_size or 1),
            "need_sort": sorts_freed_pages(self._scheduler.token_to_kv_pool_allocator),
            "components": ["swa"] if self.all_sliding else list(self.components),
            **({"size_mamba": len(self._states.free_slots), **self.buffers._asdict()} if self.stateful else {}),
        }

    def read(self) -> CacheSnapshot:
        """Pools, rows, the tree, and who holds what of it."""
        pools = self.read_pools()
        nodes = self._tree.nodes.read(mapping_of(pools))
        tree = self._tree.of_nodes(nodes, pools)
        states = self._read_states(tree) if self.stateful else None
        return CacheSnapshot(self._rows(pools), tree, self._holds(nodes), states)

    def read_tree(self) -> LockRefSnapshot:
        """The tree."""
        return self._tree.read(self.read_pools())

    def cached(self, whole: Callable[[Collection[Key]], list[Key]] | None) -> dict[str, list[Key]]:
        """The pages that are cached, by medium. ``whole``: those of the pages with slots on the host that are copied
        there; ``None``: the server has no host memory.
        """
        assert self._media is not None, "the tree publishes no events"
        if whole is None:
            return {self._media.device: cached_pages(self._nodes(), self.page_size)}
        pages = self._of_tiers.read()
        return {self._media.device: pages.device, self._media.host: whole(pages.host)}

    def pages_of(self, node: int) -> list[Key]:
        """The pages of a node of a tree with host memory, which is on the device."""
        return self._of_tiers.of(node)

    @property
    def _of_tiers(self) -> Tiers:
        if self._tiers is None:
            self._tiers = Tiers(self._inner, self._nodes, self.page_size)
        return self._tiers

    def _nodes(self) -> list[TreeNode]:
        return self._tree.nodes.read(mapping_of(self.read_pools()))

    def state_slot(self, row: int) -> int:
        """The state slot that the kernels read and write for a row; 0 where a model has no states."""
        return slots_in_row(self.rows, row, self.buffers.buffered)[0] if self.stateful else 0

    def read_pools(self) -> SwaMappingSnapshot:
        """The pools of the device."""
        found = self._pools.snapshot()
        return found if isinstance(found, SwaMappingSnapshot) else SwaMappingSnapshot.without_swa(found)

    @property
    def _slots(self) -> dict[str, Any]:
        """The slots of sessions, by name."""
        found: dict[str, Any] = self._release.session_slots(self.tree, self._kind)
        return found

    def _read_states(self, tree: LockRefSnapshot) -> MambaSlotsSnapshot:
        """The state slots. What a turn names that runs on the record of its session's slot is the turn's; what one
        names that waits is its session's.
        """
        requests, running = self._known.requests, self._known.running
        lent = {name for name, slot in self._slots.items() if any(records.shared(requests[n], slot) for n in running)}
        shown = {n: known for n, known in requests.items() if n in running or records.row(known) is None}
        rows = {n: row for n in running if (row := records.row(requests[n])) is not None}
        return MambaSlotsSnapshot(
            free=self._states.free_slots.tolist(),
            available=int(self._states.available_size()),
            waiting=self._release.grouped_states(self._states),
            requests={number: slot_names(request) for number, request in shown.items()},
            rows={n: slots_in_row(self.rows, row, self.buffers.buffered) for n, row in rows.items()},
            sessions={int(name): slot_names(slot) for name, slot in self._slots.items() if name not in lent},
            nodes=tree_states(tree),
            **self.copies.taken()._asdict(),
        )

    def _rows(self, pools: SwaMappingSnapshot) -> SessionTrimSnapshot:
        requests = {n: self._row(self._known.requests[n]) for n in sorted(self._known.running)}
        lent = {row.row for row in requests.values()}
        sessions = {
            int(name): self._row(slot)
            for name, slot in self._slots.items()
            if records.row(slot) is not None and records.row(slot) not in lent
        }
        free = [int(row) for row in self.rows.free_slots]
        return SessionTrimSnapshot({n: row for n, row in requests.items() if row.row >= 0}, sessions, free, pools)

    def _row(self, holder: Any) -> RowSnapshot:
        row, lengths = records.row(holder), records.lengths(holder)
        if row is None:
            return RowSnapshot(-1, Lengths(*lengths), [])
        slots = self.rows.req_to_token[row, : lengths.allocated].tolist()
        return RowSnapshot(row, Lengths(*lengths), slots, records.gap(holder) if self.all_sliding else 0)

    def _holds(self, nodes: Sequence[TreeNode]) -> dict[tuple[str, int], LockHold]:
        slots = {("session", int(n)): slot for n, slot in self._slots.items() if records.row(slot) is not None}
        here = self._known.running | self._known.admitted
        holders = {("request", n): self._holder(self._known.requests[n], nodes) for n in here}
        self._windows.forget([records.receipt(holder) for holder in (slots | holders).values()])
        found = {who: self._hold(holder, nodes) for who, holder in (slots | holders).items()}
        return {who: hold for who, hold in found.items() if hold is not None}

    def _holder(self, request: Any, nodes: Sequence[TreeNode]) -> Any:
        """Who has the lock of a request: the slot of its session, where the request runs on its record. In older
        releases it runs on a copy of the record, and names an object that is no node of the tree.
        """
        found = next((slot for slot in self._slots.values() if records.shared(request, slot)), None)
        if found is not None:
            return found
        slot = None if request.session is None else self._slots.get(request.session.session_id)
        borrows = slot is not None and records.row(slot) == records.row(request) is not None
        return slot if borrows and not self._tree.path(records.locked_node(request), nodes) else request

    def _hold(self, holder: Any, tree: Sequence[TreeNode]) -> LockHold | None:
        node = records.locked_node(holder)
        if not is_handle(node) or not self._tree.number(node):
            return None  # the turn of a session that is gone names what is no node of a tree
        nodes = self._tree.path(node, tree)
        there = self.stateful and bool(nodes) and nodes[0].parts["mamba"].slots is not None
        state = there and not records.leaves_state(holder)
        if not self.windowed or records.window_released(holder):
            return LockHold(self._tree.number(node), None, text(nodes), state)
        mark = records.window_token(holder)
        tops = nodes[-1:] if mark is None else [n for n in nodes if n.mark == mark]
        if mark is not None and self.ran.get("core") == cores.RUST:
            tops = self._windows.tops(records.receipt(holder), nodes)
        return LockHold(self._tree.number(node), self._tree.number(tops[0].handle) if tops else -1, text(nodes), state)

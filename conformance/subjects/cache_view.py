"""What can be seen of our session cache: its rows and pools, its tree, its states, and who holds what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from conformance.subjects import stateview, treeview
from conformance.subjects.adapter import SwaSubject
from conformance.subjects.rowview import Lengths, RowSeen, Seen, TreePage
from conformance.subjects.stateview import Named, Three
from impl.cache import SessionCache
from impl.lock_ref import LockHandle
from impl.mamba_slots import Holder
from impl.radix import ROOT
from impl.rows import IDLE


@dataclass
class Running:
    """A request that runs: its session, its text so far, how much of that is its prompt, and its row."""

    session: int
    tokens: list[int]
    prompt: int
    row: int


class Hold(NamedTuple):
    """What a request or a slot holds: a node and where its SWA part ends (numbers as in ``nodes``), the node's text,
    and whether it holds the node's state. Of a node that is not in the tree any more there is the number alone.
    """

    node: int
    top: int
    text: list[int]
    state: bool = False


class CacheView:
    """The cache, and the requests that run on it, by number."""

    missing = ""  # there is nothing that it lacks

    def __init__(self, engine: SessionCache, pools: SwaSubject) -> None:
        self.engine, self.pools, self.rows, self.tree = engine, pools, engine.rows, engine.tree
        self.page_size = engine.page_size
        self.sides = ("full", "swa", "mamba") if self.tree.stateful else ("full", "swa")
        self.running: dict[int, Running] = {}

    def observe(self) -> Seen:
        """Rows, slots, pools and the tree's pages."""
        return Seen(
            requests={request: self._seen(one.row) for request, one in self.running.items()},
            sessions={session: self._seen(row) for session, row in self._saved().items()},
            free_rows=[row for row, phase in enumerate(self.rows.phase.tolist()) if phase == IDLE],
            full=self.pools.lists(),
            swa=self.pools.swa_lists(),
            mapping=self.pools.mapping(),
            tree=self._pages(),
        )

    def _saved(self) -> dict[int, int]:
        """The rows in the slots of sessions of which no request runs."""
        busy = {one.session for one in self.running.values()}
        return {int(s): row for s, row in self.rows.slot.items() if s not in busy}  # type: ignore[call-overload]

    def _seen(self, row: int) -> RowSeen:
        lengths = Lengths(*self.rows.lengths[:4, row].tolist())
        return RowSeen(row, lengths, self.rows.req_to_token[row, : lengths.allocated].tolist())

    def _pages(self) -> dict[int, TreePage]:
        size, mapping = self.page_size, self.pools.mapping()
        return {
            slot // size: TreePage(entry.start // size + i, mapping[slot] != 0)
            for entry in self.tree.entries.values()
            for i, slot in enumerate(entry.slots.tolist()[::size])
        }

    # The tree.

    def nodes(self) -> treeview.Seen:
        """The tree: its nodes, parents first, their slots and locks, what could be evicted and what is held."""
        order = sorted((n for n in self.tree.entries if n != ROOT), key=lambda n: self.tree.entries[n].stop)
        evictable, protected = (
            {side: int(getattr(self.engine.locks, f"{side}_{which}_size")()) for side in self.sides}
            for which in ("evictable", "protected")
        )
        root = treeview.Node(ROOT, None, [], {side: treeview.Part(None, 0) for side in self.sides})
        return treeview.Seen([root, *map(self._node, order)], evictable, protected, self._free())

    def _free(self) -> dict[str, list[int]]:
        pools = {"full": self.pools.lists(), "swa": self.pools.swa_lists()}
        free = {side: [*lists.free, *lists.released] for side, lists in pools.items()}
        states = self.engine.carried.states
        return free if states is None else free | {"mamba": states.mamba_allocator.free_slots.tolist()}

    def _node(self, node: int) -> treeview.Node:
        locks, entry = self.engine.locks, self.tree.entries[node]
        slots = self.engine.allocator.translate_loc_from_full_to_swa(entry.slots).tolist() if locks.swa[node] else None
        parts = {
            "full": treeview.Part(entry.slots.tolist(), int(locks.full_ref[node])),
            "swa": treeview.Part(slots, int(locks.swa_ref[node])),
        }
        if self.tree.stateful:
            state = None if entry.state is None or not locks.mamba[node] else [int(entry.state)]
            parts["mamba"] = treeview.Part(state, int(locks.mamba_ref[node]))
        return treeview.Node(node, entry.above, list(entry.key), parts)

    def holds(self) -> dict[tuple[str, int], Hold]:
        """What each request that runs (``request``) and each slot with a row (``session``) holds, if anything."""
        rows = {("request", request): one.row for request, one in self.running.items()}
        rows |= {("session", session): row for session, row in self._saved().items()}
        held = {who: self.engine.handles[row] for who, row in rows.items() if row in self.engine.handles}
        return {who: self._hold(handle) for who, handle in held.items()}

    def _hold(self, handle: LockHandle) -> Hold:
        node = handle.node
        if node not in self.tree.entries:
            return Hold(node, -1, [])
        return Hold(node, handle.top, self.tree.tokens(node), handle.state)

    # The states.

    def states(self) -> stateview.Seen:
        """The states: the free list, what waits in a group, what everybody names. ValueError for a cache without."""
        states = self.engine.carried.states
        if states is None:
            raise ValueError("the cache has no states")
        pool, of = states.mamba_allocator, self.engine.carried.of
        requests = {request: _named(of[one.row]) for request, one in self.running.items()}
        rows = {request: self._table(one.row) for request, one in self.running.items()}
        sessions = {session: _named(of[row]) for session, row in self._saved().items()}
        entries = self.tree.entries.items()
        nodes = {tuple(self.tree.tokens(n)): int(entry.state) for n, entry in entries if entry.state is not None}
        free, waiting = pool.free_slots.tolist(), pool.group_slots.tolist()
        return stateview.Seen(free, pool.available_size(), waiting, requests, rows, sessions, nodes)

    def _table(self, row: int) -> Three:
        """What the kernels read."""
        states = self.engine.carried.states
        assert states is not None
        own = int(states.req_index_to_mamba_index_mapping[row + 1])
        first, second = states.req_index_to_mamba_ping_pong_track_buffer_mapping[row + 1].tolist()
        return own, first, second


def _named(holder: Holder) -> Named:
    slots = (holder.mamba_pool_idx, *(holder.mamba_ping_pong_track_buffer or ()), None, None)
    own, first, second = (0 if slot is None else int(slot) for slot in slots[:3])
    return Named((own, first, second), holder.mamba_next_track_idx or 0)

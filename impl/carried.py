"""What the requests of a session cache carry beside their pages: recurrent states, and how far each was tracked.

A row's states stay with the row: while its request runs, in its session's slot, and for the next turn. So nobody is
left behind with a slot's name when a turn ends. A node of the tree has its state in its entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from impl.mamba_slots import MambaStates, StateHolder
from impl.radix import ROOT, RadixTree
from impl.rows import IDLE, same
from impl.session_trim import RequestRows

CopyState = Callable[[Tensor, Tensor], object]


@dataclass(eq=False)
class Carrier(StateHolder):
    """What one row has; ``tracked``: after so many tokens the newest state of its buffer was written, 0 for none."""

    tracked: int = 0


class CarriedStates:
    """``of``: what each row has that is not idle; none without ``states``. Read; only the calls write.

    The row ``r`` has the row ``r + 1`` of the tables of ``states``, whose row 0 is padding; nobody else takes rows
    there. ``copy``: called with two ``[n]`` int64 tensors of slots; it copies the contents of the first to the second.
    """

    def __init__(self, states: MambaStates | None, rows: RequestRows, tree: RadixTree, copy: CopyState | None) -> None:
        if states is not None and (states.size < rows.rows or states.device != rows.device):
            raise ValueError(
                f"states must have {rows.rows} rows on {rows.device}, got {states.size} on {states.device}"
            )
        self.states, self.rows, self.tree, self._copy = states, rows, tree, copy
        self.of: dict[int, Carrier] = {}

    # Room.

    def lacks(self, slots: int) -> int:
        """How many slots more must become free for so many to be handed out."""
        return 0 if self.states is None else max(slots - self.states.mamba_allocator.available_size(), 0)

    def need(self, requests: int) -> int:
        """The slots of so many requests that come: each its own state, a copy of a node's or not, and its buffer."""
        if self.states is None:
            return 0
        return requests * (1 + (1 if self.states.lazy else self.states.buffer_size))

    # A request comes.

    def begin(self, rows: Sequence[int], nodes: dict[int, int]) -> None:
        """Rows get their states, those in ``nodes`` (by row) a copy of the node's. The caller has made room."""
        if self.states is None:
            return
        self.of.update((row, Carrier(req_pool_idx=row + 1)) for row in rows)
        copies = {row: node for row, node in nodes.items() if node != ROOT}
        pool = self.states.mamba_allocator
        pool.alloc_group_begin(len(copies))
        for row in copies:
            self.states.alloc_for_match(self.of[row])
        pool.alloc_group_end()
        self.states.alloc([self.of[row] for row in rows])
        self._copied([(self.tree.entries[node].state, self.of[row].mamba_pool_idx) for row, node in copies.items()])

    def _copied(self, pairs: Iterable[tuple[Tensor | None, Tensor | None]]) -> None:
        known = [(source, to) for source, to in pairs if source is not None and to is not None]
        if known and self._copy is not None:
            self._copy(torch.stack([source for source, _ in known]), torch.stack([to for _, to in known]))

    # It works.

    def upto(self, row: int, whole: int) -> int:
        """So much of the row's committed whole pages can go to the tree: as far as a state was tracked, or, without a
        buffer, all if the row's own state is the one after them.
        """
        if self.states is None:
            return whole
        return self.of[row].tracked if self.states.buffer_size else whole * (whole == int(self.rows.committed[row]))

    def track(self, row: int, at: int) -> None:
        """The state after ``at`` tokens was written to the next track."""
        if self.states is not None:
            self.states.track(self.of[row])
            self.of[row].tracked = at

    def bound(self, row: int) -> bool:
        """Before a boundary: the second track is there. What was tracked is given up, the next state replaces it."""
        self.of[row].tracked = 0
        return self.states is not None and self.states.alloc_second(self.of[row])

    def settle(self, row: int) -> None:
        """After a boundary: the older track is given back."""
        if self.states is not None:
            self.states.give_second(self.of[row])

    def has_second(self, row: int) -> bool:
        """Both tracks of the row are there."""
        return all(slot is not None for slot in self.of[row].mamba_ping_pong_track_buffer or ())

    # The tree.

    def share(self, row: int, node: int) -> None:
        """A node without a state gets the newest of a request that goes on. The caller has made room for one."""
        if self.states is None or self.tree.entries[node].state is not None:
            return
        new = self.states.mamba_allocator.alloc(1)
        if new is None:
            raise AssertionError("there is room for a state")
        if self.states.buffer_size:
            self.tree.give_state(node, self.states.donate_mamba_ping_pong_slot(self.of[row], new))
        else:
            self._copied([(self.of[row].mamba_pool_idx, new[0])])
            self.tree.give_state(node, new[0])

    def bequeath(self, row: int, node: int) -> None:
        """A node without a state gets the newest of a request that ends."""
        if self.states is not None and self.tree.entries[node].state is None:
            self.tree.give_state(node, self.states.donate(self.of[row]))

    def drop(self, slots: list[Tensor]) -> None:
        """States that left the tree are given back."""
        if self.states is not None and slots:
            self.states.mamba_allocator.free(torch.stack(slots))

    # It leaves, or goes back.

    def release(self, rows: Iterable[int]) -> None:
        """The rows give back what they have, if anything."""
        for row in rows:
            if self.states is not None and row in self.of:
                self.states.free_mamba_cache(self.of.pop(row))

    def newest(self, row: int, most: int) -> int:
        """After how many tokens, at most so many, there is a state for the row: tracked, or the tree's."""
        protected, tracked = int(self.rows.protected[row]), self.of[row].tracked
        return tracked if protected < tracked <= most else protected

    def rewind(self, row: int, at: int, node: int) -> None:
        """The row goes on after ``at`` tokens, from its track or the node that it holds; after none, from nothing."""
        one = self.of[row]
        if self.states is not None and int(self.rows.protected[row]) < at == one.tracked:
            kept = (one.mamba_ping_pong_track_buffer or ())[self.states.get_mamba_ping_pong_keep_idx(one)]
            self._copied([(kept, one.mamba_pool_idx)])
            return
        one.tracked = 0
        self._copied([(self.tree.entries[node].state, one.mamba_pool_idx)])

    # Looking for errors.

    def check(self) -> None:
        """Recounts every slot (the host waits). AssertionError says what differs."""
        if self.states is None:
            return
        pool, phases = self.states.mamba_allocator, self.rows.phase.tolist()
        same("rows with states", sorted(self.of), [row for row, phase in enumerate(phases) if phase != IDLE])
        for row, one in self.of.items():
            tracks = one.mamba_ping_pong_track_buffer or ()
            named = [0 if slot is None else int(slot) for slot in (one.mamba_pool_idx, *tracks, None, None)][:3]
            own = int(self.states.req_index_to_mamba_index_mapping[row + 1])
            table = self.states.req_index_to_mamba_ping_pong_track_buffer_mapping[row + 1].tolist()
            same(f"row {row}: its states", [own, *table], named)
            same(f"row {row}: tracked whole pages, at most committed", self._fine(row), True)
        found = [int(slot) for one in self.of.values() for slot in self.states.named(one)]
        found += [int(entry.state) for entry in self.tree.entries.values() if entry.state is not None]
        found += [*pool.group_slots.tolist(), *pool.free_slots.tolist()]
        same("states, each with one owner, set aside or free", sorted(found), list(range(1, pool.size + 1)))

    def _fine(self, row: int) -> bool:
        tracked = self.of[row].tracked
        return tracked % self.rows.page_size == 0 and tracked <= int(self.rows.committed[row])

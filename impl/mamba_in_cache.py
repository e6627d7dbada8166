"""The recurrent states of the requests in a session cache, and how far the states in their track buffers reach.

The states belong to the row: while a request runs on it, in its session's slot, and for the next turn. So when a turn
ends, no request is left that still names a slot. The state of a tree node is in the node's ``Entry``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from impl.checks import expect
from impl.mamba_slots import MambaStates, TrackBuffer
from impl.radix import ROOT, RadixTree
from impl.rows import IDLE
from impl.session_trim import RequestRows

__all__ = ["CopyState", "MambaInCache", "RowStates"]

# Called with two ``[n]`` int64 tensors of slots; it copies the contents of the first to the second.
CopyState = Callable[[Tensor, Tensor], object]


@dataclass(eq=False)
class RowStates:
    """What a row has: a ``Holder`` for ``MambaStates``.

    ``tracked``: the newest state in its buffer is the one after so many tokens; 0 if there is none (SGLang's
    ``mamba_last_track_seqlen``).
    """

    req_pool_idx: int | None
    mamba_pool_idx: Tensor | None = None
    mamba_ping_pong_track_buffer: TrackBuffer | None = None
    mamba_next_track_idx: int | None = None
    tracked: int = 0


class MambaInCache:
    """The states of ``rows`` and of the nodes of ``tree``, in the slots of ``states``.

    ``states``: None for a model without recurrent layers; then the methods do nothing. Otherwise it has at least as
    many rows as ``rows``, on the same device (ValueError), and nobody else takes rows there. Row ``r`` has row ``r +
    1`` of its tables, whose row 0 is padding. ``copy``: copies states, see ``CopyState``. ``of``: what each row has
    that is not idle. Read ``of``; only the calls write.
    """

    def __init__(self, states: MambaStates | None, rows: RequestRows, tree: RadixTree, copy: CopyState | None) -> None:
        if states is not None and (states.size < rows.rows or states.device != rows.device):
            raise ValueError(
                f"states must have {rows.rows} rows on {rows.device}, got {states.size} on {states.device}"
            )
        self.states, self.rows, self.tree, self._copy = states, rows, tree, copy
        self.of: dict[int, RowStates] = {}

    # Room.

    def lacks(self, slots: int) -> int:
        """How many more slots must become free before ``slots`` of them can be handed out."""
        return 0 if self.states is None else max(slots - self.states.mamba_allocator.available_size(), 0)

    def need(self, requests: int) -> int:
        """How many slots so many new requests take: for each its own state and its buffer."""
        if self.states is None:
            return 0
        return requests * (1 + (1 if self.states.lazy else self.states.buffer_size))

    # A request comes.

    def begin(self, rows: Sequence[int], nodes: dict[int, int]) -> None:
        """Give rows their states. A row in ``nodes`` (row: node) gets a copy of the node's state as its own.

        The caller has made room.
        """
        if self.states is None:
            return
        self.of.update((row, RowStates(req_pool_idx=row + 1)) for row in rows)
        copies = {row: node for row, node in nodes.items() if node != ROOT}
        pool = self.states.mamba_allocator
        pool.alloc_group_begin(len(copies))
        try:
            for row in copies:
                self.states.alloc_for_match(self.of[row])
        finally:
            pool.alloc_group_end()
        self.states.alloc([self.of[row] for row in rows])
        self._copy_states(
            [(self.tree.entries[node].state, self.of[row].mamba_pool_idx) for row, node in copies.items()]
        )

    def _copy_states(self, pairs: Iterable[tuple[Tensor | None, Tensor | None]]) -> None:
        known = [(source, to) for source, to in pairs if source is not None and to is not None]
        if known and self._copy is not None:
            self._copy(torch.stack([source for source, _ in known]), torch.stack([to for _, to in known]))

    # It works.

    def upto(self, row: int, whole: int) -> int:
        """How much of the row the tree can get, in tokens; ``whole``: the row's committed whole pages.

        The tree gets only what ends with a state: as far as was tracked; without a buffer, all of it if the row's own
        state is the one after it, otherwise nothing.
        """
        if self.states is None:
            return whole
        return self.of[row].tracked if self.states.buffer_size else whole * (whole == int(self.rows.committed[row]))

    def track(self, row: int, at: int) -> None:
        """The state after ``at`` tokens was written to the row's next track."""
        if self.states is not None:
            self.states.track(self.of[row])
            self.of[row].tracked = at

    def begin_boundary(self, row: int) -> bool:
        """Before a tracking boundary of a lazy buffer: give the row its second track. False if no slot is free.

        What was tracked before is not given to the tree any more, since the next state may overwrite it.
        """
        self.of[row].tracked = 0
        return self.states is not None and self.states.alloc_second(self.of[row])

    def end_boundary(self, row: int) -> None:
        """After a tracking boundary of a lazy buffer: give back the older track."""
        if self.states is not None:
            self.states.give_second(self.of[row])

    def has_second(self, row: int) -> bool:
        """No track of the row's buffer is absent."""
        return all(slot is not None for slot in self.of[row].mamba_ping_pong_track_buffer or ())

    # The tree.

    def share(self, row: int, node: int) -> None:
        """Give the newest state of a request that goes on to a node, unless the node has one.

        A track is given away and replaced; without a buffer the own state is copied. The caller has made room for one.
        """
        if self.states is None or self.tree.entries[node].state is not None:
            return
        new = self.states.mamba_allocator.alloc(1)
        if new is None:
            raise AssertionError("a free state slot, which the caller has made sure of: there is none")
        if self.states.buffer_size:
            self.tree.give_state(node, self.states.donate_mamba_ping_pong_slot(self.of[row], new))
        else:
            self._copy_states([(self.of[row].mamba_pool_idx, new[0])])
            self.tree.give_state(node, new[0])

    def bequeath(self, row: int, node: int) -> None:
        """Give the newest state of a request that ends to a node, unless the node has one."""
        if self.states is not None and self.tree.entries[node].state is None:
            self.tree.give_state(node, self.states.donate(self.of[row]))

    def drop(self, slots: list[Tensor]) -> None:
        """Free the slots of states that left the tree."""
        if self.states is not None and slots:
            self.states.mamba_allocator.free(torch.stack(slots))

    # It leaves, or goes back.

    def release(self, rows: Iterable[int]) -> None:
        """Free all slots of the rows; rows that have none are skipped."""
        for row in rows:
            if self.states is not None and row in self.of:
                self.states.free_mamba_cache(self.of.pop(row))

    def newest(self, row: int, most: int) -> int:
        """The largest length, at most ``most`` tokens, after which there is a state: as tracked, or the tree's part."""
        protected, tracked = int(self.rows.protected[row]), self.of[row].tracked
        return tracked if protected < tracked <= most else protected

    def rewind(self, row: int, at: int, node: int) -> None:
        """The row goes on after ``at`` tokens, one of its ``newest`` lengths: copy that state to the row's own.

        It is in the row's buffer, or in the tree's ``node`` that the row holds (0: it begins anew).
        """
        one = self.of[row]
        if self.states is not None and int(self.rows.protected[row]) < at == one.tracked:
            kept = (one.mamba_ping_pong_track_buffer or ())[self.states.get_mamba_ping_pong_keep_idx(one)]
            self._copy_states([(kept, one.mamba_pool_idx)])
            return
        one.tracked = 0
        self._copy_states([(self.tree.entries[node].state, one.mamba_pool_idx)])

    # Looking for errors.

    def check(self) -> None:
        """Count every slot again (on CUDA the host waits). AssertionError says what differs."""
        if self.states is None:
            return
        pool, phases = self.states.mamba_allocator, self.rows.phase.tolist()
        expect("rows with states", sorted(self.of), [row for row, phase in enumerate(phases) if phase != IDLE])
        for row, one in self.of.items():
            tracks = one.mamba_ping_pong_track_buffer or ()
            named = [0 if slot is None else int(slot) for slot in (one.mamba_pool_idx, *tracks, None, None)][:3]
            own = int(self.states.req_index_to_mamba_index_mapping[row + 1])
            table = self.states.req_index_to_mamba_ping_pong_track_buffer_mapping[row + 1].tolist()
            expect(f"row {row}: its slots in the table", [own, *table], named)
            valid = one.tracked % self.rows.page_size == 0 and one.tracked <= int(self.rows.committed[row])
            expect(f"row {row}: tracked is whole pages, at most committed", valid, True)
        found = [int(slot) for one in self.of.values() for slot in self.states.named(one)]
        found += [int(entry.state) for entry in self.tree.entries.values() if entry.state is not None]
        found += [*pool.group_slots.tolist(), *pool.free_slots.tolist()]
        expect("slots that are somebody's, set aside or free", sorted(found), list(range(1, pool.size + 1)))

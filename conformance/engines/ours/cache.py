"""Our session cache as an engine: a scheduler's calls on it, and snapshots of its rows, pools, tree, locks and states.

It serves the stems ``session_trim`` (rows, sessions and the tree's pages) and ``cache`` (everything).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from conformance.driver.protocol import Json, Unsupported
from conformance.engines.adapters import PairAdapter, PoolAdapter
from conformance.engines.ours.allocator import single
from conformance.engines.ours.swa_mapping import pair
from conformance.stems.cache.protocol import CacheSnapshot, LockHold
from conformance.stems.configs import is_all_sliding, is_prefill_aware, is_windowed
from conformance.stems.lock_ref.protocol import LockRefSnapshot, NodePart, NodeSnapshot
from conformance.stems.mamba_slots.protocol import MambaSlotsSnapshot, SlotNames, Three
from conformance.stems.session_trim.protocol import (
    Admission,
    Arrival,
    Lengths,
    RowSnapshot,
    SessionTrimSnapshot,
    TreePage,
)
from conformance.stems.swa_mapping.projection import swa_slot
from conformance.stems.swa_mapping.protocol import SwaMappingSnapshot
from impl.allocator import SlotAllocator
from impl.cache import SessionCache
from impl.lock_ref import LockHandle, LockTree
from impl.mamba_in_cache import MambaInCache
from impl.mamba_slots import Holder, MambaStates
from impl.radix import ROOT, RadixTree
from impl.rows import IDLE, TokenSlots
from impl.session_trim import RequestRows
from impl.swa_mapping import SWATokenToKVPoolAllocator


class StepInterruption(Exception):
    """What ends a step between the allocation of slots and their use."""


@dataclass
class Running:
    """A request that runs: its session (0: none), its text so far, the length of its prompt in tokens, and its row."""

    session: int
    tokens: list[int]
    prompt: int
    row: int


class OurCache:
    """A ``SessionTrimEngine`` and a ``CacheEngine``. ``engine``: the cache. ``running``: the requests that run on it,
    by number.

    ``copied``: the list to which the cache adds each copy of a state, as the slots read and written; ``None`` where
    nobody keeps the copies.
    """

    fragile = False

    def __init__(
        self, engine: SessionCache, lacks: Collection[str] = (), copied: list[tuple[int, int]] | None = None
    ) -> None:
        self.copied = copied
        self.engine, self.rows, self.tree, self.locks = engine, engine.rows, engine.tree, engine.locks
        self.page_size = engine.page_size
        adapter = PairAdapter if engine.allocator.windowed else PoolAdapter
        self.pools = adapter(engine.allocator, engine.page_size, str(engine.rows.device))
        self.states: MambaStates | None = engine.mamba.states
        has = {"full": True, "swa": self.tree.windowed, "mamba": self.tree.stateful}
        self.sides = [side for side, there in has.items() if there]
        self.running: dict[int, Running] = {}
        untracked = {"track"} if self.states is None or not self.states.buffer_size else set()
        windowless = set() if self.tree.windowed else {"admit_tail", "release_swa"}
        not_lazy = {"boundary", "settle"} if self.states is None or not self.states.lazy else set()
        # A session has one turn at a time. To turn other requests away is the task of a server, which we do not have.
        self.lacks = frozenset({*lacks, *windowless, *untracked, *not_lazy, "overlapping_turn", "close_running"})

    # A request arrives.

    def look(self, request: int, session: int, tokens: list[int]) -> int:
        """Matches the session's slot, or the tree. Where the tree has all tokens of a turn, its row is given up: the
        last token is computed again, and that must not be in a page of the tree.
        """
        del request
        if self.rows.begins_anew(session, len(tokens)):
            self.engine.close([session])
        if session not in self.rows.slot:
            return self.engine.match_prefix(tokens[:-1]).slots.numel()
        committed = int(self.rows.committed[self.rows.slot[session]])
        return int(self.engine.restore([session], [min(committed, len(tokens) - 1)])[0])

    def admit(self, request: int, session: int, tokens: list[int], most: int) -> Admission:
        """Runs on the row of the session's slot, or on a new row after the cached prefix."""
        prefix = self.look(request, session, tokens)
        upto = min(prefix + most, len(tokens))
        row = self._resumed(session, tokens, upto) if session in self.rows.slot else self._begun(session, tokens, upto)
        if row is None:
            return Admission(prefix, False)
        self.running[request] = Running(session, list(tokens), len(tokens), row)
        return Admission(prefix, True)

    def _resumed(self, session: int, tokens: list[int], upto: int) -> int | None:
        """The slot's row with slots up to ``upto`` tokens, ``None`` if out of memory.

        Room is made first, since a turn that runs cannot go back to its slot unchanged.
        """
        before, size = int(self.rows.committed[self.rows.slot[session]]), self.page_size
        room = (-(-upto // size) - -(-before // size)) * size
        if not self.engine.make_room(room, room if self.tree.windowed else 0):
            return None
        text = int(self.rows.text[self.rows.slot[session]])
        (row,) = self.engine.resume([session], [len(tokens)])
        try:
            assert self.engine.extend([row], [upto]) is not None, "there is room"
        except StepInterruption:
            self.engine.save([row], [text])
            raise
        return row

    def _begun(self, session: int, tokens: list[int], upto: int) -> int | None:
        """A new row with slots up to ``upto`` tokens, ``None`` if out of memory. A request that gets no slots gives up
        its row and lock.
        """
        rows = self.engine.admit([tokens], [session or None])
        if rows is None:
            return None
        granted = False
        try:
            granted = self.engine.extend(rows, [upto]) is not None
        finally:
            if not granted:
                self.engine.abort(rows)
        return rows[0] if granted else None

    def admit_tail(self, request: int, session: int, tokens: list[int]) -> Admission:
        """A new row after the cached prefix, with slots for the whole input, whose tail alone gets SWA slots."""
        row = self.engine.admit_tail(tokens, session or None)
        if row is None:
            return Admission(0, False)
        self.running[request] = Running(session, list(tokens), len(tokens), row)
        return Admission(int(self.rows.protected[row]), True)

    def interrupted_admit(self, request: int, session: int, tokens: list[int], most: int) -> int:
        """Admits while the last write of slots into a row raises."""
        prefix = self.look(request, session, tokens)
        with self._interrupted(first=int(session not in self.rows.slot and prefix > 0)):
            self.admit(request, session, tokens, most)
        return prefix

    def interrupted_chunk(self, request: int, most: int) -> None:
        """Allocates the next chunk while the write of the slots raises."""
        with self._interrupted():
            self.chunk(request, most)

    def interrupted_decode(self, requests: list[int]) -> None:
        """Allocates the slots of a decode step while their write raises."""
        with self._interrupted():
            self.engine.decode([self.running[request].row for request in requests])

    @contextmanager
    def _interrupted(self, first: int = 0) -> Iterator[None]:
        """The write of slots into a row raises an exception, but not the ``first`` ones; the exception ends here."""
        table: Any = self.rows.token_slots
        left = iter([True] * first)

        def write(places: Tensor, slots: Tensor) -> None:
            if not next(left, False):
                raise StepInterruption
            TokenSlots.write(table, places, slots)

        table.write = write
        try:
            with suppress(StepInterruption):
                yield
        finally:
            del table.write

    def overlapping_turn(self, request: int, session: int, new: list[int], unsupported: bool) -> Arrival:
        """Lacking: our cache has no server that receives requests of clients."""
        del request, session, new, unsupported
        raise Unsupported("our cache has no server that receives requests of clients")

    # A request grows.

    def chunk(self, request: int, most: int) -> bool:
        """Allocates the next chunk."""
        one = self.running[request]
        upto = min(int(self.rows.allocated[one.row]) + most, one.prompt)
        return self.engine.extend([one.row], [upto]) is not None

    def cache(self, request: int, sampled: int | None) -> None:
        """Inserts the computed part of the prompt into the tree."""
        one = self.running[request]
        self.engine.cache_unfinished([one.row], [one.tokens])
        one.tokens += [] if sampled is None else [sampled]

    def decode(self, requests: list[int], sampled: list[int]) -> bool:
        """One decode step of a batch."""
        if self.engine.decode([self.running[request].row for request in requests]) is None:
            return False
        for request, token in zip(requests, sampled, strict=True):
            self.running[request].tokens.append(token)
        return True

    def reserve(self, request: int, more: int) -> bool:
        """Allocates slots for a draft."""
        row = self.running[request].row
        return self.engine.reserve([row], [int(self.rows.allocated[row]) + more]) is not None

    def roll_back(self, request: int, count: int) -> None:
        """Gives draft slots back."""
        row = self.running[request].row
        self.engine.roll_back([row], [int(self.rows.allocated[row]) - count])

    def checkpoint(self, request: int, upto: int) -> None:
        """Inserts what is computed, up to ``upto`` tokens."""
        one = self.running[request]
        self.engine.cache_unfinished([one.row], [one.tokens], [upto])

    def commit(self, request: int, accepted: list[int]) -> None:
        """Commits verified tokens."""
        one = self.running[request]
        self.engine.commit([one.row], [int(self.rows.committed[one.row]) + len(accepted)])
        one.tokens += accepted

    def slide(self, request: int) -> None:
        """Moves the window as the cache itself does, which leaves a page of margin, and then as far as the window
        allows. A cache without a window moves nothing.
        """
        row, size = self.running[request].row, self.page_size
        self.engine.slide([row])
        if not self.rows.slides:
            return
        reach = (int(self.rows.committed[row]) - self.rows.window) // size * size
        if reach >= max(int(self.rows.cursor[row]), int(self.rows.protected[row])):
            self.engine.slide_to([row], [reach])

    def release_swa(self, request: int) -> None:
        """Gives back the SWA part of the lock, if the window has left the cached prefix."""
        self.engine.release_swa([self.running[request].row])

    # The state of a request, where the cache has states.

    def track(self, request: int) -> None:
        """Writes the state at the last page boundary to the track buffer."""
        row = self.running[request].row
        self.engine.track([row], [int(self.rows.committed[row]) // self.page_size * self.page_size])

    def boundary(self, request: int) -> None:
        """A lazy track buffer gets its second slot, if one is free."""
        self.engine.boundary([self.running[request].row])

    def settle(self, request: int) -> None:
        """A lazy track buffer gives back the slot that is not written next."""
        self.engine.settle([self.running[request].row])

    # A request leaves.

    def finish(self, request: int, sent: int) -> None:
        """Saves the row in the session's slot, or gives it to tree and pools."""
        one = self.running.pop(request)
        if one.session:
            self.engine.save([one.row], [one.prompt + sent])
        else:
            self.engine.cache_finished([one.row], [one.tokens])

    def abort(self, request: int) -> None:
        """Frees everything that the request has; its session then begins anew."""
        self.engine.abort([self.running.pop(request).row])

    def retract(self, request: int, sent: int) -> None:
        """Saves the row in the session's slot, or frees it."""
        one = self.running.pop(request)
        if one.session:
            self.engine.save([one.row], [one.prompt + sent])
        else:
            self.engine.abort([one.row])

    def cancel(self, request: int) -> None:
        """Does nothing, since the cache keeps nothing of a request that waits."""
        del request

    def close(self, session: int) -> bool:
        """Frees the row in the session's slot. Never put off."""
        if session in self.rows.slot:
            self.engine.close([session])
        return True

    def begin_group(self) -> None:
        """Opens a free group."""
        self.engine.free_group_begin()

    def end_group(self) -> None:
        """Ends the free group."""
        self.engine.free_group_end()

    def evict(self, full: int, swa: int, states: int = 0) -> None:
        """The tree frees what nobody has locked."""
        self.engine.evict(full, swa, states)

    def compact(self) -> None:
        """The tree merges chains of nodes."""
        self.engine.compact()

    def bad(self, kind: str) -> None:
        """Sends bad input; the kinds are ``BAD`` in conformance/stems/requests/rules.py."""
        outside, most = self.rows.rows, self.rows.max_tokens
        rows = [one.row for one in self.running.values()]
        texts = [one.tokens for one in self.running.values()]
        calls: dict[str, Callable[[], Any]] = {
            "row_outside": lambda: self.engine.decode([*rows, outside]),
            "row_twice": lambda: self.engine.cache_finished([*(rows or [0]), *(rows or [0])], [*texts, *texts]),
            "longer_than_a_row": lambda: self.engine.reserve(rows or [0], [most + 1] * max(len(rows), 1)),
            "shrinks": lambda: self.engine.extend(rows or [0], [-1] * max(len(rows), 1)),
            "nobodys_slot": lambda: self.engine.restore(["nobody"], [0]),
            "not_finished": lambda: self.engine.cache_finished(rows or [0], texts[1:]),
            "empty_prompt": lambda: self.engine.admit([[]]),
            "tracks_what_is_not_computed": lambda: self.engine.track(rows or [0], [most + 1] * max(len(rows), 1)),
        }
        calls[kind]()

    # Snapshots of rows and pools.

    def snapshot(self) -> SessionTrimSnapshot:
        """Rows, slots, pools and the tree's pages."""
        rows = self._rows()
        size, mapping = self.page_size, rows.pools.mapping
        tree = {
            slot // size: TreePage(entry.start // size + i, swa_slot(mapping, slot) != 0)
            for entry in self.tree.entries.values()
            for i, slot in enumerate(entry.slots.tolist()[::size])
        }
        return SessionTrimSnapshot(rows.requests, rows.sessions, rows.free_rows, rows.pools, tree)

    def _rows(self) -> SessionTrimSnapshot:
        lengths: list[list[int]] = self.rows.lengths[:4].T.tolist()
        gaps: list[int] = self.rows.gap.tolist()
        table: list[list[int]] = self.rows.req_to_token.tolist()
        seen = self.pools.snapshot()

        def row_snapshot(row: int) -> RowSnapshot:
            known = Lengths(*lengths[row])
            return RowSnapshot(row, known, table[row][: known.allocated], gaps[row])

        return SessionTrimSnapshot(
            requests={request: row_snapshot(one.row) for request, one in self.running.items()},
            sessions={session: row_snapshot(row) for session, row in self._saved().items()},
            free_rows=[row for row, phase in enumerate(self.rows.phase.tolist()) if phase == IDLE],
            pools=seen if isinstance(seen, SwaMappingSnapshot) else SwaMappingSnapshot.without_swa(seen),
        )

    def _saved(self) -> dict[int, int]:
        """The rows in the slots of sessions of which no request runs, by session."""
        busy = {one.session for one in self.running.values()}
        return {int(s): row for s, row in self.rows.slot.items() if s not in busy}  # type: ignore[call-overload]

    # Snapshots of the tree, the locks and the states.

    def cache_snapshot(self) -> CacheSnapshot:
        """Rows, pools, tree, locks and states."""
        rows = self._rows()
        return CacheSnapshot(rows, self._tree(rows), self._holds(), self._states())

    def _tree(self, rows: SessionTrimSnapshot) -> LockRefSnapshot:
        locks, mapping = self.locks, rows.pools.mapping
        flags = {side: getattr(locks, side).tolist() for side in self.sides if side != "full"}
        refs = {side: getattr(locks, f"{side}_ref").tolist() for side in self.sides}
        nodes = [NodeSnapshot(ROOT, None, [], {side: NodePart(None, 0) for side in self.sides})]
        for node in sorted((n for n in self.tree.entries if n != ROOT), key=lambda n: self.tree.entries[n].stop):
            entry = self.tree.entries[node]
            slots = entry.slots.tolist()
            there: dict[str, list[int] | None] = {"full": slots}
            if self.tree.windowed:
                there["swa"] = [mapping[slot] for slot in slots] if flags["swa"][node] else None
            if self.tree.stateful:
                there["mamba"] = None if entry.state is None or not flags["mamba"][node] else [int(entry.state)]
            parts = {side: NodePart(there[side], refs[side][node]) for side in self.sides}
            nodes.append(NodeSnapshot(node, entry.above, list(entry.key), parts))
        evictable, protected = (
            {side: int(getattr(locks, f"{side}_{which}_size")()) for side in self.sides}
            for which in ("evictable", "protected")
        )
        pools = {side: getattr(rows.pools, side) for side in self.sides if side != "mamba"}
        return LockRefSnapshot(nodes, evictable, protected, {n: [*p.free, *p.released] for n, p in pools.items()})

    def _holds(self) -> dict[tuple[str, int], LockHold]:
        rows = {("request", request): one.row for request, one in self.running.items()}
        rows |= {("session", session): row for session, row in self._saved().items()}
        held = {who: self.engine.handles[row] for who, row in rows.items() if row in self.engine.handles}
        return {who: self._hold(handle) for who, handle in held.items()}

    def _hold(self, handle: LockHandle) -> LockHold:
        node = handle.node
        if node not in self.tree.entries:
            return LockHold(node, -1, [])
        return LockHold(node, handle.top if handle.holds_swa else None, self.tree.tokens(node), handle.state)

    def _states(self) -> MambaSlotsSnapshot | None:
        if self.states is None:
            return None
        pool, of = self.states.mamba_allocator, self.engine.mamba.of
        own = self.states.req_index_to_mamba_index_mapping.tolist()
        tracks = self.states.req_index_to_mamba_ping_pong_track_buffer_mapping.tolist()
        copies = None if self.copied is None else self.copied.copy()
        if self.copied is not None:
            self.copied.clear()
        rows: dict[int, Three] = {r: (own[one.row + 1], *tracks[one.row + 1]) for r, one in self.running.items()}
        entries = self.tree.entries.items()
        return MambaSlotsSnapshot(
            pool.free_slots.tolist(),
            pool.available_size(),
            pool.group_slots.tolist(),
            {request: _named(of[one.row]) for request, one in self.running.items()},
            rows,
            {session: _named(of[row]) for session, row in self._saved().items()},
            {tuple(self.tree.tokens(n)): int(entry.state) for n, entry in entries if entry.state is not None},
            copies,
        )


def _named(holder: Holder) -> SlotNames:
    slots = (holder.mamba_pool_idx, *(holder.mamba_ping_pong_track_buffer or ()), None, None)
    own, first, second = (0 if slot is None else int(slot) for slot in slots[:3])
    return SlotNames((own, first, second), holder.mamba_next_track_idx or 0)


def cache(
    config: Json,
    device: str = "cpu",
    lacks: Collection[str] = (),
    allocator: Callable[..., Any] = SWATokenToKVPoolAllocator,
    rows: Callable[..., RequestRows] = RequestRows,
    locks: Callable[..., LockTree] = LockTree,
    tree: Callable[..., RadixTree] = RadixTree,
    mamba: Callable[..., MambaInCache] = MambaInCache,
    **options: Any,
) -> OurCache:
    """The session cache. Sizes count pages, the window counts tokens.

    ``allocator``, ``rows``, ``locks``, ``tree`` and ``mamba`` make its parts, which may be faulty variants. With
    ``mamba`` among the ``components`` it has ``size_mamba`` states, and ``buffered``, ``doubled`` and ``lazy`` say what
    track buffer a request has. With ``full`` or ``swa`` alone it has one pool, and ``allocator`` is not asked.
    """
    if is_prefill_aware(config):
        raise Unsupported("our rows keep no prompt that has left the window")
    windowed = is_windowed(config)
    tokens = config["size"] * config["page_size"]
    window = config["window"] if windowed or is_all_sliding(config) else 0
    pools: SlotAllocator = pair(config, device, allocator, **options) if windowed else single(config, device, **options)
    states = _mamba(config, device, **options) if "mamba" in config.get("components", ()) else None
    of_nodes = window if windowed else 0
    shape = {"window": of_nodes, "windowed": windowed, "stateful": states is not None}
    pages, stateful = pools.full_pool.num_pages, states is not None
    held = locks(pages, **shape, debug=pools.debug)
    copied: list[tuple[int, int]] = []

    def copy(sources: Tensor, targets: Tensor) -> None:
        copied.extend(zip(sources.tolist(), targets.tolist(), strict=True))

    engine = SessionCache(
        *(pools, config["rows"], tokens, window, states),
        copy_state=copy,
        tree=tree(pages, pools.page_size, of_nodes, pools.device, stateful=stateful, debug=pools.debug, locks=held),
        request_rows=rows(pools, config["rows"], tokens, window, pools.device),
    )
    engine.mamba = mamba(states, engine.rows, engine.tree, copy)
    return OurCache(engine, lacks, copied)


def _mamba(config: Json, device: str, **options: Any) -> MambaStates:
    known = {"buffered": True, "doubled": True, "lazy": False, **config}
    tracks = 0 if not known["buffered"] else 2 if known["doubled"] else 1
    lazy = known["lazy"] and tracks == 2
    return MambaStates(config["rows"], config["size_mamba"], buffer_size=tracks, lazy=lazy, device=device, **options)

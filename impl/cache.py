"""A session cache: request rows, the slots of streaming sessions, and a radix tree over one ownership of pages.

Every page belongs to one row or to one tree node, and so does every recurrent state. A request begins with the prefix
of its prompt that the tree has, and holds it by a lock. What it computes goes to the tree together with the pages; of
what the tree has already the request frees its own copies. A turn of a session leaves its row in the session's slot,
with the lock and the states, and the next turn goes on there. In a model with recurrent layers a request begins with a
copy of its node's state, and the tree gets only what ends with a state.

The host knows lengths, texts and locks; the slots stay on the device, and no call waits for them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from impl import checks
from impl.allocator import BaseTokenToKVPoolAllocator, SlotAllocator
from impl.checks import expect
from impl.host import numbers, require
from impl.lock_ref import LockHandle, LockTree
from impl.mamba_in_cache import CopyState, MambaInCache
from impl.mamba_slots import MambaStates
from impl.radix import ROOT, RadixTree, Span, reach
from impl.rows import RUNNING, Numbers
from impl.session_trim import RequestRows
from impl.swa_mapping import SWATokenToKVPoolAllocator
from impl.tree_insert import TreeInsert

__all__ = ["CopyState", "Match", "SessionCache", "Texts"]

Texts = Sequence[Sequence[int]]  # token ids on the host
T = TypeVar("T")


class Match(NamedTuple):
    """``slots``: ``[n]`` int64 on the device, full slots of whole pages. ``node``: it ends there; 0 for nothing."""

    slots: Tensor
    node: int


class SessionCache:
    """What an engine has in place of its prefix cache, its session slots and its ``req_to_token`` bookkeeping.

    ``allocator``: both pools, or the one pool of a model without sliding window attention, or of one that has no other
    layers. ``rows``, ``max_tokens``, ``window``: as for ``RequestRows``; with both pools the window has at least one
    token. ``states``: for a model with
    recurrent layers, the states of these rows and of the tree, for this cache alone. ``copy_state``: called with two
    ``[n]`` int64 tensors of state slots; it copies the contents of the first to the second.

    Parts that the caller has made; each must fit the arguments above, otherwise ValueError. ``request_rows``: idle rows
    over this allocator. ``tree``: an empty tree with a node for each page of the full pool, at least. ``locks``: the
    locks of the tree that is made here (see ``RadixTree``), if no ``tree`` is given.

    Read, but do not change: ``rows`` (the ``RequestRows``), ``tree`` (the ``RadixTree``), ``locks`` (the tree's),
    ``mamba`` (the ``MambaInCache``), ``handles`` (the lock of each row that holds a node).

    In the methods, ``rows`` and lengths are as for ``RequestRows``: sequences of ints or ``[n]`` integer tensors on the
    host. Bad input is a ValueError (TypeError for what is not an integer) that names the argument. An error leaves
    everything as it was, and so does the answer None for want of memory. With the allocator's ``debug`` every call ends
    with ``check``.
    """

    def __init__(
        self, allocator: SlotAllocator, rows: int, max_tokens: int, window: int,
        states: MambaStates | None = None, copy_state: CopyState | None = None, *,
        request_rows: RequestRows | None = None, tree: RadixTree | None = None, locks: LockTree | None = None,
    ) -> None:  # fmt: skip
        checks.integer("window", window, int(allocator.windowed))
        self.allocator, self.page_size, self.debug = allocator, allocator.page_size, allocator.debug
        self.rows = request_rows or RequestRows(allocator, rows, max_tokens, window, allocator.device)
        if request_rows is not None:
            self._check_rows(request_rows, rows, max_tokens, window)
        # A node has at least one page, so the tree cannot be full before the pool is.
        nodes, stateful = allocator.full_pool.num_pages, states is not None
        if stateful and self.rows.has_gaps:
            raise ValueError("states must be None where every layer has a sliding window: no layer is recurrent there")
        window = window if allocator.windowed else 0  # over one pool a node has one part, held up to the root
        if tree is not None and locks is not None:
            raise ValueError("locks must be the given tree's own: give either tree or locks")
        self.tree = tree or RadixTree(
            nodes, self.page_size, window, allocator.device, stateful=stateful, debug=self.debug, locks=locks
        )
        if tree is not None:
            self._check_tree(tree, nodes, window, stateful)
        self.locks = self.tree.locks
        self.mamba = MambaInCache(states, self.rows, self.tree, copy_state)
        self.handles: dict[int, LockHandle] = {}
        self._insert = TreeInsert(self.rows, self.tree)

    @property
    def pools(self) -> SWATokenToKVPoolAllocator:
        """The allocator of both pools. ValueError where the model has no SWA pool."""
        return self.rows.pools

    def _check_rows(self, made: RequestRows, rows: int, max_tokens: int, window: int) -> None:
        if made.allocator is not self.allocator:
            raise ValueError("request_rows must have this cache's allocator, got rows over another one")
        checks.part(
            "request_rows",
            rows=(made.rows, rows),
            max_tokens=(made.max_tokens, max_tokens),
            window=(made.window, window),
            available_size=(made.available_size(), rows),
        )

    def _check_tree(self, made: RadixTree, nodes: int, window: int, stateful: bool) -> None:
        checks.part(
            "tree",
            page_size=(made.page_size, self.page_size),
            window=(made.window, window),
            stateful=(made.stateful, stateful),
            device=(made.device, torch.device(self.allocator.device)),
            nodes=(len(made.entries) - 1, 0),
        )
        if made.locks.capacity < nodes:
            raise ValueError(f"tree must have room for {nodes} nodes, one for each page, got {made.locks.capacity}")

    # Finding.

    def match_prefix(self, tokens: Sequence[int]) -> Match:
        """The longest prefix of a text in the tree that a request can go on from, its window intact.

        The tree is cut where the prefix ends, so a node ends there. The node stays until something is evicted.
        """
        spans = self.tree.prefix(list(tokens))
        return Match(self.tree.slots(spans), self._node_at_end(spans))

    def _node_at_end(self, spans: list[Span]) -> int:
        node = self.tree.upto(spans[-1].node, spans[-1].stop) if spans else ROOT
        self.tree.touch(node)
        return node

    # Room.

    def make_room(self, full: int, swa: int, states: int = 0) -> bool:
        """Evict until ``full`` tokens, ``swa`` SWA tokens and ``states`` states are available.

        False, with nothing evicted, if the tree cannot give so much, or if the pages would wait for the end of a free
        group.
        """
        pools, locks = self.allocator, self.locks
        tokens = max(full - pools.full_available_size(), 0), max(swa - pools.swa_available_size(), 0)
        lacks = (*tokens, self.mamba.lacks(states))
        if lacks == (0, 0, 0):
            return True
        spare = locks.full_evictable_size(), locks.swa_evictable_size(), locks.mamba_evictable_size()
        enough = all(lack <= most for lack, most in zip(lacks, spare, strict=True))
        if not enough or (any(tokens) and not pools.is_not_in_free_group):
            return False
        self._evict(*lacks)
        return True

    def evict(self, full: int = 0, swa: int = 0, states: int = 0) -> tuple[int, int, int]:
        """The tree gives back ``full`` tokens, ``swa`` SWA tokens and ``states`` states, as far as nobody holds them.

        The least recently used nodes go first; all pages go in one free for each pool. Returns how many tokens, SWA
        tokens and states were given back; there can be more than asked, since nodes go as a whole.
        """
        least = checks.integer("full", full, 0), checks.integer("swa", swa, 0), checks.integer("states", states, 0)
        return self._checked(self._evict(*least))

    def _evict(self, full: int, swa: int, states: int) -> tuple[int, int, int]:
        gone = self.tree.evict(full, swa, states)
        self.mamba.drop(gone.states)
        # The SWA sides first: a node that became a tombstone may have left the tree afterwards.
        if gone.buried and isinstance(self.allocator, SWATokenToKVPoolAllocator):
            lens = [slots.numel() for slots in gone.buried]
            self.allocator.free_swa(torch.cat(gone.buried), row_lens=lens)
        if gone.dropped:
            lens = [slots.numel() for slots, _ in gone.dropped]
            live = [n * live for n, (_, live) in zip(lens, gone.dropped, strict=True)]
            self.allocator.free(torch.cat([slots for slots, _ in gone.dropped]), row_lens=lens, swa_lens=live)
        return gone.full, gone.swa, len(gone.states)

    def compact(self) -> None:
        """The tree merges chains of nodes that requests hold alike, so that it has fewer nodes. No page moves."""
        self.tree.compact()
        self._checked(None)

    @contextmanager
    def _one_free(self) -> Iterator[None]:
        """Pages that are given back inside are freed together at the end."""
        self.allocator.free_group_begin()
        try:
            yield
        finally:
            self.allocator.free_group_end()

    # A request.

    def admit(self, prompts: Texts, sessions: Sequence[Hashable] | None = None) -> list[int] | None:
        """A row for each request, or None if too few rows are idle, or too few states can be had.

        A row begins with what the tree has of its prompt, without the prompt's last token, which is to be computed. The
        row holds it by a lock; ``rows.committed`` tells how long it is. ``sessions``: for each request its session,
        None for a request without one; a session that has a row already is refused (its next turn calls ``resume``).
        ValueError for a prompt without tokens.
        """
        for i, prompt in enumerate(prompts):
            if not len(prompt):
                raise ValueError(f"prompts[{i}]: expected a token to compute, got none")
        found = [self.tree.prefix(list(prompt)[:-1]) for prompt in prompts]
        rows = self.rows.admit([self.tree.slots(spans) for spans in found], sessions)
        if rows is None:
            return None
        begun = {row: self._node_at_end(spans) for row, spans in zip(rows, found, strict=True) if spans}
        if begun:
            self.handles.update(zip(begun, self.locks.acquire(list(begun.values())), strict=True))
        return self._checked(rows if self._equipped(rows, begun) else None)

    def _equipped(self, rows: list[int], nodes: dict[int, int]) -> bool:
        """Give new rows their states. Where there is no room, or after an error, the rows are idle again."""
        granted = False
        try:
            granted = self.make_room(0, 0, self.mamba.need(len(rows)))
            if granted:
                self.mamba.begin(rows, nodes)
        except BaseException:
            granted = False
            raise
        finally:
            if not granted:
                self._leave(rows[::-1])  # in this order the idle rows are handed out again as before
        return granted

    def admit_tail(self, prompt: Sequence[int], session: Hashable = None) -> int | None:
        """A row for a request whose prompt is computed elsewhere, as in disaggregated decode; None if memory is short.

        The row begins with what the tree has of the prompt before the tail, whose tokens alone get SWA slots. The tail
        holds a window before the last page boundary, so that the tree can take all whole pages. The row holds its
        prefix by a lock, without an SWA part as far as ``release_swa`` says so. ``rows.req_to_token`` says where
        the tokens are to be sent. ValueError for a prompt without tokens, for a session that has a row already, and in
        a cache without an SWA pool, where ``admit`` and ``extend`` do that.
        """
        if not self.allocator.windowed:
            raise ValueError("prompt: a cache without an SWA pool has no tail; call admit and extend")
        if not len(prompt):
            raise ValueError("prompt: expected a token, got none")
        to, text = len(prompt), list(prompt)
        start = max(to // self.page_size * self.page_size - self.rows.window, 0) // self.page_size * self.page_size
        spans = self.tree.prefix(text[:start])
        slots, node = self.tree.slots(spans), self._node_at_end(spans)
        handles = self.locks.acquire([node]) if spans else []
        begun = None
        try:
            if self.make_room(0, 0, self.mamba.need(1)):  # before the slots, which would not go back to where they were
                begun = self._begun_tail(slots, to, start, session)
        finally:
            if begun is None:
                self.locks.release(handles)
        if begun is None:
            return self._checked(None)
        self.handles.update(zip([begun] * len(handles), handles, strict=True))
        if not self._equipped([begun], {begun: node} if spans else {}):
            return self._checked(None)
        self.release_swa([begun])
        return self._checked(begun)

    def _begun_tail(self, slots: Tensor, to: int, start: int, session: Hashable) -> int | None:
        """A row with slots up to ``to``, whose SWA part begins at ``start``; the tree makes room if need be."""
        end = -(-to // self.page_size) * self.page_size
        found = self.rows.admit_tail(slots, to, start, session)
        if found is None and self.rows.available_size() and self.make_room(end - slots.numel(), end - start):
            found = self.rows.admit_tail(slots, to, start, session)
        return None if found is None else found[0]

    def release_swa(self, rows: Numbers) -> list[bool]:
        """Requests whose window has left the tree's part of their rows give back the SWA part of their locks.

        Returns for each row whether its lock has no SWA part now. A turn of a session keeps it, since a cut of the row
        may bring the window back into the tree's part.
        """
        batch = self.rows.batch(rows, RUNNING)
        own = self.rows.window_is_own(batch).tolist()
        past = [row for row, is_own in zip(batch.tolist(), own, strict=True) if is_own]
        past = [row for row in past if row in self.handles and self.rows.session[row] is None]
        held = [self.handles[row] for row in past if self.handles[row].holds_swa]
        if held:
            self.locks.release_swa(held)
        return self._checked(self._bare(batch))

    def _bare(self, rows: Numbers) -> list[bool]:
        """Whether each row has a lock without an SWA part."""
        held = [self.handles.get(row) for row in numbers("rows", rows).tolist()]
        return [handle is not None and not handle.holds_swa for handle in held]

    def extend(self, rows: Numbers, to: Numbers) -> Tensor | None:
        """Allocate slots up to the length ``to`` for tokens that are computed now; the tree makes room if need be.

        Returns ``[sum(to - allocated)]`` int64 slots, or None. See ``RequestRows.extend``.
        """
        return self._granted(lambda: self.rows.extend(rows, to), rows, to)

    def decode(self, rows: Numbers) -> Tensor | None:
        """Allocate a slot for each row, for a token that is computed now; the tree makes room if need be.

        Returns ``[n]`` int64 slots, or None. See ``RequestRows.decode``.
        """
        return self._granted(lambda: self.rows.decode(rows), rows, None)

    def reserve(self, rows: Numbers, to: Numbers) -> Tensor | None:
        """Allocate slots up to the length ``to`` without computing them; the tree makes room if need be.

        Returns ``[sum(to - allocated)]`` int64 slots, or None. See ``RequestRows.reserve``.
        """
        return self._granted(lambda: self.rows.reserve(rows, to), rows, to)

    def _granted(self, grow: Callable[[], Tensor | None], rows: Numbers, to: Numbers | None) -> Tensor | None:
        slots = grow()
        if slots is None:  # the arguments are valid: only memory is short
            before = self.rows.allocated[numbers("rows", rows)]
            after = before + 1 if to is None else numbers("to", to)
            pages = sum((before // -self.page_size - after // -self.page_size).tolist())
            tokens = pages * self.page_size
            room = self.make_room(tokens, tokens if self.allocator.windowed else 0)
            slots = grow() if room else None
        return self._checked(slots)

    def commit(self, rows: Numbers, to: Numbers) -> None:
        """The allocated tokens up to the length ``to`` are computed. See ``RequestRows.commit``."""
        self.rows.commit(rows, to)
        self._checked(None)

    def roll_back(self, rows: Numbers, to: Numbers) -> None:
        """Slots after ``to`` are not used after all: they are given back. See ``RequestRows.roll_back``.

        ValueError also where a row has given back the SWA part of its lock and would read it again, and in a cache with
        states for a length that is less than what is committed, since a recurrent state cannot be cut.
        """
        batch = self.rows.batch(rows, RUNNING)
        least = self.rows.committed[batch] if self.tree.stateful else self.rows.protected[batch] + self.rows.window
        bare = [self.tree.stateful or (self.tree.windowed and b) for b in self._bare(batch)]
        cut = torch.minimum(numbers("to", to, batch.numel()), self.rows.committed[batch])
        valid = ~torch.tensor(bare, dtype=torch.bool) | (least <= cut)
        require(valid, "to", lambda i: f"expected at least {int(least[i])} tokens of row {int(batch[i])}", cut)
        self.rows.roll_back(batch, to)
        self._checked(None)

    def slide(self, rows: Numbers) -> Tensor:
        """Move the attention window on as far as it can, less a page. See ``RequestRows.slide``.

        Returns ``[n]`` int64 on the host, the new cursors.
        """
        return self._checked(self.rows.slide(rows))

    def slide_to(self, rows: Numbers, to: Numbers) -> Tensor:
        """Move the attention window on to ``to``, whole pages. See ``RequestRows.slide_to``.

        Returns ``[n]`` int64 on the host, the new cursors.
        """
        return self._checked(self.rows.slide_to(rows, to))

    def cache_unfinished(self, rows: Numbers, texts: Texts, upto: Numbers | None = None) -> None:
        """Requests go on, after a chunk of a prompt or while they decode: what they have computed goes to the tree.

        They hold it there and go on reading it. ``texts``: the tokens of each row, at least the committed ones in whole
        pages. ``upto``: for each row a length after which nothing goes to the tree; None for all that is committed. A
        row keeps pages of its own that it could not lock in the tree: those less than a window behind tombstones that
        have left the row's window, and those for whose state there is no room.
        """
        given = self._given(rows, texts)
        ends = [self.rows.max_tokens] * len(given) if upto is None else numbers("upto", upto, len(given)).tolist()
        with self._one_free():
            for (row, text), end in zip(given, ends, strict=True):
                self._share(row, text, end)
        self._checked(None)

    def _share(self, row: int, text: list[int], end: int) -> None:
        plan = self._sharable(row, text, end)
        if not plan:
            return
        node = self.tree.upto(self._insert.insert(row, text, plan), plan[-1].stop)
        self.mamba.share(row, node)
        # Locked at once: the next row of the batch might revive a tombstone that this row reads now.
        (handle,) = self.locks.acquire([node])
        self._release_locks([row])
        self.handles[row] = handle

    def _sharable(self, row: int, text: list[int], most: int) -> list[Span]:
        """What a request that goes on can lock of its plan, up to ``most``; empty unless it holds less now.

        With states it is all of the plan or nothing, since it must end with a state, for which there is room.
        """
        upto, most = self._upto(row), most // self.page_size * self.page_size
        if self.tree.stateful and most < upto:
            return []
        upto = min(upto, most)
        plan = self._insert.plan(row, text, upto)
        end = reach(plan, self.rows.window)
        short = self.tree.stateful and end < upto
        if short or end <= int(self.rows.protected[row]):
            return []
        plan = [span for span in plan if span.stop <= end]
        has_state = plan[-1].node != ROOT and self.tree.usable(plan[-1])
        if has_state or not self.mamba.lacks(1):
            return plan
        # What makes room may have been part of the plan.
        return self._sharable(row, text, most) if self.make_room(0, 0, 1) else []

    def cache_finished(self, rows: Numbers, texts: Texts) -> None:
        """Requests end: what they have computed goes to the tree, in whole pages; the rest is freed at once.

        ``texts``: the tokens of each row, at least the committed ones in whole pages. If the request was a turn of a
        session, the session's slot ends too; ``save`` keeps it.
        """
        given = self._given(rows, texts)
        self.rows.finish(rows)
        with self._one_free():
            for row, text in given:
                upto = self._upto(row)
                plan = self._insert.plan(row, text, upto)
                node = self._insert.insert(row, text, plan)
                if self.tree.stateful and plan and plan[-1].stop == upto:
                    self.mamba.bequeath(row, self.tree.upto(node, upto))
                self.mamba.release([row])
                self._release_locks([row])
            self.rows.release(rows)
        self._checked(None)

    def abort(self, rows: Numbers) -> None:
        """Requests are aborted, or retracted for want of memory: all that they own is freed at once."""
        self._leave(rows)
        self._checked(None)

    def _leave(self, rows: Numbers) -> None:
        self.rows.finish(rows)
        batch = numbers("rows", rows).tolist()
        self.mamba.release(batch)
        self.rows.release(rows)
        self._release_locks(batch)

    def _release_locks(self, rows: Sequence[int]) -> None:
        held = [self.handles.pop(row) for row in rows if row in self.handles]
        if held:
            self.locks.release(held)

    def _given(self, rows: Numbers, texts: Texts) -> list[tuple[int, list[int]]]:
        """Running rows, each with its text, which begins with what the row holds of the tree."""
        batch = self.rows.batch(rows, RUNNING).tolist()
        if len(texts) != len(batch):
            raise ValueError(f"texts must be as many as rows, {len(batch)}, got {len(texts)}")
        given = [(row, list(text)) for row, text in zip(batch, texts, strict=True)]
        for i, (row, text) in enumerate(given):
            whole, protected = self._whole(row), int(self.rows.protected[row])
            if len(text) < whole:
                raise ValueError(f"texts[{i}]: expected at least row {row}'s {whole} committed tokens, got {len(text)}")
            if row in self.handles and text[:protected] != self.tree.tokens(self.handles[row].node):
                raise ValueError(f"texts[{i}]: expected a text that begins with the {protected} tokens row {row} holds")
        return given

    def _whole(self, row: int) -> int:
        """The committed tokens of the row, in whole pages."""
        return int(self.rows.committed[row]) // self.page_size * self.page_size

    def _upto(self, row: int) -> int:
        """How many tokens of the row the tree can get."""
        return self.mamba.upto(row, int(self.rows.donatable(torch.tensor([row]))[0]))

    # The states of running requests.

    def track(self, rows: Numbers, at: Numbers) -> None:
        """The state of each row after ``at`` tokens was written to its next track.

        ``at``: whole pages, past the tree's part, committed. So far the tree gets what the requests have computed.
        ValueError for a cache without track buffers.
        """
        batch = self._tracking(rows)
        to = numbers("at", at, batch.numel())
        valid = (self.rows.protected[batch] <= to) & (to <= self.rows.committed[batch]) & (to % self.page_size == 0)
        require(valid, "at", lambda i: f"expected committed whole pages of row {int(batch[i])}, past the tree's", to)
        for row, length in zip(batch.tolist(), to.tolist(), strict=True):
            self.mamba.track(row, length)
        self._checked(None)

    def boundary(self, rows: Numbers) -> list[bool]:
        """Before a step that tracks, with lazy buffers: give each row its second track, which is written next.

        Returns whether each row has it; where no slot is free, the row goes on with one. What was tracked before is not
        given to the tree any more. ValueError for a cache without lazy buffers.
        """
        batch = self._tracking(rows, lazy=True).tolist()
        for row in batch:
            if not self.mamba.has_second(row):
                self.make_room(0, 0, 1)
            self.mamba.begin_boundary(row)
        return self._checked([self.mamba.has_second(row) for row in batch])

    def settle(self, rows: Numbers) -> None:
        """After a step that tracks, with lazy buffers: give back the older tracks.

        ValueError for a cache without lazy buffers.
        """
        for row in self._tracking(rows, lazy=True).tolist():
            self.mamba.end_boundary(row)
        self._checked(None)

    def _tracking(self, rows: Numbers, *, lazy: bool = False) -> Tensor:
        states = self.mamba.states
        if states is None or not states.buffer_size or (lazy and not states.lazy):
            raise ValueError(f"rows: expected a cache whose rows have {'lazy ' * lazy}track buffers")
        return self.rows.batch(rows, RUNNING)

    # A streaming session. A row in a slot keeps the lock and the states of its request.

    def save(self, rows: Numbers, agreed: Numbers) -> None:
        """Turns end: each row goes to its session's slot, cut to ``agreed`` tokens. See ``RequestRows.save``.

        A row that is cut goes back to a length after which it has a state, as for ``restore``.
        """
        batch = self.rows.batch(rows, RUNNING)
        before = self.rows.committed[batch].tolist()
        self.rows.save(rows, agreed)
        self._rewind([self.rows.session[row] for row in batch.tolist()], before, self.rows.committed[batch])
        self._checked(None)

    def restore(self, sessions: Sequence[Hashable], prefix: Numbers) -> Tensor:
        """The next turns of saved sessions are to go on after ``prefix`` tokens: the rest is freed at once.

        Returns ``[n]`` int64 on the host: the lengths after which they do go on, see ``RequestRows.restore``. A
        recurrent state cannot be cut: with states, a row that is cut goes on after what was tracked, or after the
        tree's part.
        """
        slots = self.rows.slot
        before = [int(self.rows.committed[slots[session]]) for session in sessions if session in slots]
        return self._checked(self._rewind(sessions, before, self.rows.restore(sessions, prefix)))

    def _rewind(self, sessions: Sequence[Hashable], before: list[int], now: Tensor) -> Tensor:
        """Cut saved rows that got shorter further back, to where they have a state; returns all lengths then."""
        if not self.tree.stateful:
            return now
        for i in [i for i, length in enumerate(now.tolist()) if length < before[i]]:
            row = self.rows.slot[sessions[i]]
            now[i] = self.rows.restore([sessions[i]], [self.mamba.newest(row, int(now[i]))])[0]
            self.mamba.rewind(row, int(now[i]), self.handles[row].node if row in self.handles else ROOT)
        return now

    def resume(self, sessions: Sequence[Hashable], given: Numbers) -> list[int]:
        """The next turns of saved sessions run on the rows in their slots, which are returned.

        ``given``: the lengths of their inputs. See ``RequestRows.resume``.
        """
        return self._checked(self.rows.resume(sessions, given))

    def close(self, sessions: Sequence[Hashable]) -> None:
        """Sessions end between turns: all that the rows in their slots own is freed at once, and their locks too."""
        rows = [self.rows.slot[session] for session in sessions if session in self.rows.slot]
        self.rows.close(sessions)
        self.mamba.release(rows)
        self._release_locks(rows)
        self._checked(None)

    # Free groups.

    def free_group_begin(self) -> None:
        """Let freed pages wait for the end of the group. See ``SlotAllocator.free_group_begin``."""
        self.allocator.free_group_begin()

    def free_group_end(self) -> None:
        """End a free group. See ``SlotAllocator.free_group_end``."""
        self.allocator.free_group_end()

    # Looking for errors.

    def check(self) -> None:
        """Count everything again: rows, tree, locks, states, and that each page has one owner. On CUDA the host waits.

        AssertionError says what differs. It follows that without rows, nodes and open groups both pools are full.
        """
        self.rows.check()
        self.tree.check()
        self.mamba.check()
        expect("active handles", self.locks.active, set(self.handles.values()))
        rows = [self._row_pages(row) for row in range(self.rows.rows)]
        nodes = [self._node_pages(node) for node in self.tree.entries if node != ROOT]
        owned = torch.cat([*rows, *nodes])
        waiting = torch.cat([owned[:0], *(slots // self.page_size for slots in self.allocator.free_group)])
        self._check_pages("pages", self.allocator.full_pool, [owned, waiting])
        if isinstance(self.allocator, SWATokenToKVPoolAllocator):
            swa = [self.allocator.translate_loc_from_full_to_swa(p * self.page_size) for p in (owned, waiting)]
            mapped = [slots[slots > 0] // self.page_size for slots in swa]
            self._check_pages("SWA pages", self.allocator.swa_attn_allocator, mapped)

    @staticmethod
    def _check_pages(name: str, pool: BaseTokenToKVPoolAllocator, parts: list[Tensor]) -> None:
        found = torch.cat([*parts, pool.all_free()]).tolist()
        expect(f"{name} with an owner, waiting or free", sorted(found), list(range(1, pool.num_pages + 1)))

    def _row_pages(self, row: int) -> Tensor:
        """The pages that the row owns. What it reads of the tree must be the slots of the node that it holds."""
        protected, cursor, _, allocated, _, gap = self.rows.lengths[:, row].tolist()
        slots = self.rows.req_to_token[row, :allocated].to(torch.int64)
        node = self.handles[row].node if row in self.handles else ROOT
        expect(f"row {row}: length of the tree's part", protected, self.tree.entries[node].stop)
        path = torch.cat([slots[:0], *(self.tree.entries[n].slots for n in self.tree.path(node))])
        expect(f"row {row}: slots of the tree's part", slots[:protected].tolist(), path.tolist())
        own = slots[protected:]
        if self.rows.has_gaps and gap < cursor:
            own = torch.cat([slots[protected:gap], slots[cursor:]])
        return own[:: self.page_size] // self.page_size

    def _node_pages(self, node: int) -> Tensor:
        """The pages that the node owns: whole ones, with their SWA slots unless the node is a tombstone."""
        slots = self.tree.entries[node].slots
        pages = slots[:: self.page_size] // self.page_size
        expect(f"node {node}: slots", slots.tolist(), self.allocator.full_pool.slots(pages).tolist())
        if isinstance(self.allocator, SWATokenToKVPoolAllocator):
            mapped = self.allocator.translate_loc_from_full_to_swa(slots) > 0
            expect(f"node {node}: tokens with SWA slots", mapped.tolist(), [self.tree.live(node)] * slots.numel())
        return pages

    def _checked(self, answer: T) -> T:
        if self.debug:
            self.check()
        return answer

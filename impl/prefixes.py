"""What request rows have in the radix tree: matching, handing pages over, giving copies back, evicting, one ownership.

The noun of ``impl.cache``. Every page belongs to one row or to one node. The host knows lengths, texts and locks; slots
stay on the device, and nothing waits for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from impl import checks
from impl.carried import CarriedStates, CopyState
from impl.lock_ref import LockHandle
from impl.mamba_slots import MambaStates
from impl.radix import ROOT, RadixTree, Span, reach
from impl.rows import RUNNING, Numbers, same
from impl.session_trim import RequestRows
from impl.swa_mapping import SWATokenToKVPoolAllocator

Texts = Sequence[Sequence[int]]
T = TypeVar("T")


class Match(NamedTuple):
    """``slots``: ``[n]`` int64 on the device, of whole pages; ``node`` ends there, 0 where nothing is found."""

    slots: Tensor
    node: int


class PrefixCache:
    """Rows, a radix tree, what each row's request (or session slot) holds of it: ``handles``, by row, and ``carried``.

    ``rows`` and ``max_tokens`` as for ``RequestRows``; the window has a token at least. ``states``: those of a model
    that has recurrent layers too, for these rows alone; ``copy_state`` as ``copy`` of ``CarriedStates``.
    """

    def __init__(
        self, allocator: SWATokenToKVPoolAllocator, rows: int, max_tokens: int, window: int,
        states: MambaStates | None = None, copy_state: CopyState | None = None,
    ) -> None:  # fmt: skip
        checks.whole("window", window, 1)
        self.allocator, self.page_size, self.debug = allocator, allocator.page_size, allocator.debug
        self.rows = RequestRows(allocator, rows, max_tokens, window, allocator.device)
        # A node has a page at least, so the tree cannot be full before the pool is.
        nodes = allocator.full_attn_allocator.num_pages
        stateful = states is not None
        self.tree = RadixTree(nodes, self.page_size, window, allocator.device, stateful=stateful, debug=self.debug)
        self.locks = self.tree.locks
        self.carried = CarriedStates(states, self.rows, self.tree, copy_state)
        self.handles: dict[int, LockHandle] = {}

    # Finding.

    def match_prefix(self, tokens: Sequence[int]) -> Match:
        """The longest prefix in the tree that a request can go on from, its window intact; the tree is cut where it
        ends. The node stays until something is evicted.
        """
        spans = self.tree.prefix(list(tokens))
        return Match(self.tree.slots(spans), self._end(spans))

    def _end(self, spans: list[Span]) -> int:
        node = self.tree.upto(spans[-1].node, spans[-1].stop) if spans else ROOT
        self.tree.touch(node)
        return node

    # Room.

    def make_room(self, full: int, swa: int, states: int = 0) -> bool:
        """The tree gives back until so many tokens are available in each pool, and so many states. False, and nothing
        is evicted, where it cannot give that much, or what it gives would wait for the end of a free group.
        """
        pools, locks = self.allocator, self.locks
        tokens = max(full - pools.full_available_size(), 0), max(swa - pools.swa_available_size(), 0)
        lacks = (*tokens, self.carried.lacks(states))
        if lacks == (0, 0, 0):
            return True
        spare = locks.full_evictable_size(), locks.swa_evictable_size(), locks.mamba_evictable_size()
        enough = all(lack <= most for lack, most in zip(lacks, spare, strict=True))
        if not enough or (any(tokens) and not pools.is_not_in_free_group):
            return False
        self._evict(*lacks)
        return True

    def evict(self, full: int = 0, swa: int = 0, states: int = 0) -> tuple[int, int, int]:
        """The tree gives back so many tokens of each side, and states, as far as nobody holds them, the least recently
        used first, in one free each; how many it gave.
        """
        least = checks.whole("full", full, 0), checks.whole("swa", swa, 0), checks.whole("states", states, 0)
        return self._checked(self._evict(*least))

    def _evict(self, full: int, swa: int, states: int) -> tuple[int, int, int]:
        gone = self.tree.evict(full, swa, states)
        self.carried.drop(gone.states)
        # First the windows: a new tombstone may have left the tree after all.
        if gone.buried:
            lens = [slots.numel() for slots in gone.buried]
            self.allocator.free_swa(torch.cat(gone.buried), row_lens=lens)
        if gone.dropped:
            lens = [slots.numel() for slots, _ in gone.dropped]
            live = [n * live for n, (_, live) in zip(lens, gone.dropped, strict=True)]
            self.allocator.free(torch.cat([slots for slots, _ in gone.dropped]), row_lens=lens, swa_lens=live)
        return gone.full, gone.swa, len(gone.states)

    @contextmanager
    def _one_free(self) -> Iterator[None]:
        """What is given back in the meantime is given back together."""
        self.allocator.free_group_begin()
        try:
            yield
        finally:
            self.allocator.free_group_end()

    # What goes to the tree.

    def _given(self, rows: Numbers, texts: Texts) -> list[tuple[int, list[int]]]:
        """Running rows and their texts, which begin with what the rows hold."""
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
        return int(self.rows.committed[row]) // self.page_size * self.page_size

    def _sharable(self, row: int, text: list[int]) -> list[Span]:
        """What a request that goes on can hold of its plan, if it is more than it holds now. With states all of it or
        nothing: it ends with a state, for which there is room.
        """
        plan = self._plan(row, text)
        end = reach(plan, self.rows.window)
        short = self.tree.stateful and end < self._upto(row)
        if short or end <= int(self.rows.protected[row]):
            return []
        plan = [span for span in plan if span.stop <= end]
        if not self.carried.lacks(1) or self._ends(plan[-1]):
            return plan
        # What makes room may have been part of the plan.
        return self._sharable(row, text) if self.make_room(0, 0, 1) else []

    def _ends(self, span: Span) -> bool:
        return span.node != ROOT and self.tree.usable(span)

    def _upto(self, row: int) -> int:
        return self.carried.upto(row, self._whole(row))

    def _plan(self, row: int, text: list[int]) -> list[Span]:
        """The row's text as the tree can have it: what is there, tombstones come to life, and new leaves (node 0)."""
        cursor, whole = int(self.rows.cursor[row]), self._upto(row)
        spans = self.tree.walk(text[:whole])
        plan = [part for span in spans for part in self._revived(span, cursor)]
        end = spans[-1].stop if spans else 0
        if max(end, cursor) >= whole:  # what has left the window alone is of no use to a match
            return plan
        tombstone = [Span(ROOT, end, cursor, False)] if end < cursor else []
        return [*plan, *tombstone, Span(ROOT, max(end, cursor), whole, True)]

    def _revived(self, span: Span, cursor: int) -> list[Span]:
        """A tombstone that nobody reads, the row itself included, comes to life from the row's cursor on."""
        if span.live or span.stop <= cursor or self.tree.held(span.node):
            return [span]
        first = max(span.start, cursor)
        dead = [span._replace(stop=first)] if span.start < first else []
        return [*dead, span._replace(start=first, live=True)]

    def _insert(self, row: int, text: list[int], plan: list[Span]) -> int:
        """Piece by piece the row's pages become the tree's, or are given back; the node in which the plan ends."""
        node = ROOT
        for span in plan:
            known = span.stop <= int(self.rows.protected[row])
            node = span.node if known else self._pass_on(row, text, span, node)
        self.tree.touch(node)
        return node

    def _pass_on(self, row: int, text: list[int], span: Span, above: int) -> int:
        if span.node == ROOT:
            under = self.tree.upto(above, span.start)
            slots = self.rows.donate(row, span.stop)
            return self.tree.add(under, text[span.start : span.stop], slots, live=span.live)
        if span.live == self.tree.live(span.node):
            self.rows.dedupe(row, self.tree.slots([span]), span.stop)
            return span.node
        node = self.tree.upto(span.node, span.stop)
        if self.tree.entries[node].start < span.start:
            self.tree.cut(node, span.start)
        old = self.tree.revive(node, self.rows.donate(row, span.stop))
        self.allocator.free(old, row_lens=[old.numel()], swa_lens=[0])
        return node

    def _bequeath(self, row: int, node: int, plan: list[Span]) -> None:
        """The state of a request that ends is that of the node where its plan does, if that is where it was tracked."""
        if self.tree.stateful and plan and plan[-1].stop == self._upto(row):
            self.carried.bequeath(row, self.tree.upto(node, plan[-1].stop))

    def _let_go(self, rows: Sequence[int]) -> None:
        self.locks.release([self.handles.pop(row) for row in rows if row in self.handles])

    # Looking for errors.

    def check(self) -> None:
        """Recounts everything (the host waits): rows, tree and locks, who holds what, and whose each page is.

        AssertionError says what differs. So with no row, no node and no open group both pools are full.
        """
        self.rows.check()
        self.tree.check()
        self.carried.check()
        same("handles", self.locks.active, set(self.handles.values()))
        rows = [self._row_pages(row) for row in range(self.rows.rows)]
        nodes = [self._node_pages(node) for node in self.tree.entries if node != ROOT]
        owned = torch.cat([*rows, *nodes])
        waiting = torch.cat([owned[:0], *(slots // self.page_size for slots in self.allocator.free_group)])
        swa = [self.allocator.translate_loc_from_full_to_swa(p * self.page_size) for p in (owned, waiting)]
        mapped = [slots[slots > 0] // self.page_size for slots in swa]
        for name, pool, parts in (
            ("pages", self.allocator.full_attn_allocator, (owned, waiting)),
            ("SWA pages", self.allocator.swa_attn_allocator, mapped),
        ):
            found = torch.cat([*parts, pool.all_free()]).tolist()
            same(f"{name}, each with one owner, waiting or free", sorted(found), list(range(1, pool.num_pages + 1)))

    def _row_pages(self, row: int) -> Tensor:
        """The row's own pages; what it reads of the tree is there, and held."""
        protected, _, _, allocated, _ = self.rows.lengths[:, row].tolist()
        slots = self.rows.req_to_token[row, :allocated].to(torch.int64)
        node = self.handles[row].node if row in self.handles else ROOT
        same(f"row {row}: the tree's part", protected, self.tree.entries[node].stop)
        path = torch.cat([slots[:0], *(self.tree.entries[n].slots for n in self.tree.path(node))])
        same(f"row {row}: slots of the tree's part", slots[:protected].tolist(), path.tolist())
        return slots[protected :: self.page_size] // self.page_size

    def _node_pages(self, node: int) -> Tensor:
        """The node's pages, whole, with their SWA side unless it is a tombstone."""
        slots = self.tree.entries[node].slots
        pages = slots[:: self.page_size] // self.page_size
        same(f"node {node}: slots", slots.tolist(), self.allocator.full_attn_allocator.slots(pages).tolist())
        mapped = self.allocator.translate_loc_from_full_to_swa(slots) > 0
        same(f"node {node}: tokens with SWA slots", mapped.tolist(), [self.tree.live(node)] * slots.numel())
        return pages

    def _checked(self, answer: T) -> T:
        if self.debug:
            self.check()
        return answer

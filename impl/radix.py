"""A radix tree of cached prefixes: the text of each node, its slots, its state, and how recently it was used.

Keys are whole pages. Which nodes there are, who holds them and which have lost their SWA side, ``locks`` says; it lies
on the host beside the keys, so that only the slots are on the device and nothing here waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import torch
from torch import Tensor

from impl.lock_ref import LockTree
from impl.rows import same

ROOT = 0
HOST = torch.device("cpu")


class Span(NamedTuple):
    """Tokens ``start..stop`` of a text and the node that has them; ``live``: with their SWA side."""

    node: int
    start: int
    stop: int
    live: bool


def reach(spans: Iterable[Span], window: int, usable: Callable[[Span], bool] = lambda _: True) -> int:
    """Where the last usable span ends before which a whole window (or all of the text) is live; 0 for none."""
    end = begin = 0
    for span in spans:
        if not span.live:
            begin = span.stop
        elif (begin == 0 or span.stop - begin >= window) and usable(span):
            end = span.stop
    return end


@dataclass(slots=True)
class Entry:
    """A node: its own tokens, which begin at ``start`` of the text, and their slots (``[len(key)]`` int64).

    ``state``: the slot of the recurrent state after its last token (0-dimensional int64), None where it has none.
    """

    key: list[int]
    slots: Tensor
    above: int
    start: int
    used: int
    children: dict[tuple[int, ...], int] = field(default_factory=dict)
    state: Tensor | None = None

    @property
    def stop(self) -> int:
        return self.start + len(self.key)


@dataclass(frozen=True)
class Evicted:
    """What an eviction gives back: the slots of nodes that left (and whether they were live), those of new tombstones,
    and the slots of states.
    """

    dropped: list[tuple[Tensor, bool]] = field(default_factory=list)
    buried: list[Tensor] = field(default_factory=list)
    states: list[Tensor] = field(default_factory=list)

    @property
    def full(self) -> int:
        """Tokens that lose their full slots."""
        return sum(slots.numel() for slots, _ in self.dropped)

    @property
    def swa(self) -> int:
        """Tokens that lose their SWA slots."""
        return sum(slots.numel() for slots, live in self.dropped if live) + sum(map(Tensor.numel, self.buried))


class RadixTree:
    """Up to ``nodes`` nodes. Read ``entries`` (by node) and ``locks``; only the calls write.

    ``stateful``: a request can go on only from a node with a state.
    """

    def __init__(
        self, nodes: int, page_size: int, window: int, device: str | torch.device, *,
        stateful: bool = False, debug: bool = False,
    ) -> None:  # fmt: skip
        self.page_size, self.window, self.stateful = page_size, window, stateful
        self.locks = LockTree(nodes, window=window, stateful=stateful, device=HOST, debug=debug)
        self.entries = {ROOT: Entry([], torch.zeros(0, dtype=torch.int64, device=device), ROOT, 0, 0)}
        self._clock = 0

    # Looking.

    def live(self, node: int) -> bool:
        """The node has its SWA side."""
        return bool(self.locks.swa[node])

    def held(self, node: int) -> bool:
        """Somebody reads the node's full slots."""
        return int(self.locks.full_ref[node]) > 0

    def walk(self, tokens: list[int]) -> list[Span]:
        """The nodes that a text goes through, from the root down; the last may have more tokens than the text."""
        spans: list[Span] = []
        node = at = 0
        while (child := self.entries[node].children.get(self._first(tokens[at : at + self.page_size]))) is not None:
            key = self.entries[child].key
            shared = common(key, tokens[at : at + len(key)], self.page_size)
            spans.append(Span(child, at, at + shared, self.live(child)))
            if shared < len(key):
                break
            node, at = child, at + shared
        return spans

    def prefix(self, tokens: list[int]) -> list[Span]:
        """As ``walk``, up to the longest prefix that can be locked."""
        spans = self.walk(tokens)
        end = reach(spans, self.window, self.usable)
        return [span for span in spans if span.stop <= end]

    def usable(self, span: Span) -> bool:
        """A request can go on from where the span ends: the state after that token is there, where one is needed."""
        entry = self.entries[span.node]
        return not self.stateful or (span.stop == entry.stop and entry.state is not None)

    def slots(self, spans: Sequence[Span]) -> Tensor:
        """``[n]`` int64: the slots of the tokens in these spans."""
        found = [self.entries[ROOT].slots]
        for node, start, stop, _ in spans:
            entry = self.entries[node]
            found.append(entry.slots[start - entry.start : stop - entry.start])
        return torch.cat(found)

    def path(self, node: int) -> list[int]:
        """The nodes from below the root down to this one."""
        found = []
        while node != ROOT:
            found.append(node)
            node = self.entries[node].above
        return found[::-1]

    def tokens(self, node: int) -> list[int]:
        """The text from the root to the node's end."""
        return [token for n in self.path(node) for token in self.entries[n].key]

    # Growing.

    def upto(self, node: int, stop: int) -> int:
        """The node on the path to ``node`` that ends at ``stop``; one that goes on beyond is cut there."""
        while stop <= self.entries[node].start and node != ROOT:
            node = self.entries[node].above
        return node if self.entries[node].stop == stop else self.cut(node, stop)

    def cut(self, child: int, at: int) -> int:
        """Splits a node at ``at`` tokens of its text; the new node above, which has the upper part."""
        new, entry = self.locks.split(child, at), self.entries[child]
        upper, lower = entry.key[: at - entry.start], entry.key[at - entry.start :]
        self.entries[new] = Entry(upper, entry.slots[: len(upper)], entry.above, entry.start, entry.used)
        self.entries[new].children[self._first(lower)] = child
        self.entries[entry.above].children[self._first(upper)] = new
        entry.key, entry.slots, entry.above, entry.start = lower, entry.slots[len(upper) :], new, at
        return new

    def add(self, under: int, key: list[int], slots: Tensor, *, live: bool) -> int:
        """A new leaf, which has ``slots`` from now on."""
        start = self.entries[under].stop
        leaf = self.locks.add_leaf(under, start + len(key), swa=live)
        self.entries[leaf] = Entry(key, slots, under, start, self._clock)
        self.entries[under].children[self._first(key)] = leaf
        return leaf

    def revive(self, node: int, slots: Tensor) -> Tensor:
        """A tombstone that nobody holds has live ``slots`` from now on; its old ones, to be given back."""
        self.locks.restore(node)
        old, self.entries[node].slots = self.entries[node].slots, slots
        return old

    def give_state(self, node: int, slot: Tensor) -> None:
        """A node without a state has this one from now on."""
        self.locks.set_mamba(node)
        self.entries[node].state = slot

    def touch(self, node: int) -> None:
        """The path to a node is used now."""
        self._clock += 1
        for n in self.path(node):
            self.entries[n].used = self._clock

    # Shrinking.

    def evict(self, full: int, swa: int, states: int = 0) -> Evicted:
        """At least so many tokens of each side, and states, leave, as far as nobody holds them, the least recently used
        first. Leaves go as a whole; inner or held nodes become tombstones for the SWA side, or lose their state.
        """
        gone = Evicted()
        leaves = self._oldest((n for n, e in self.entries.items() if n and not e.children), self.locks.full_ref)
        while leaves and gone.full < full:
            above = self._drop(heappop(leaves)[-1], gone)
            if self._spare(above):
                heappush(leaves, self._age(above))
        windows = self._oldest(map(int, self.locks.swa.nonzero()[:, 0]), self.locks.swa_ref) if gone.swa < swa else []
        while windows and gone.swa < swa:
            self._lose(heappop(windows)[-1], gone, self._lose_window)
        spare = self._oldest(map(int, self.locks.mamba.nonzero()[:, 0]), self.locks.mamba_ref) if states else []
        while spare and len(gone.states) < states:
            self._lose(heappop(spare)[-1], gone, self._lose_state)
        return gone

    def _lose(self, node: int, gone: Evicted, part: Callable[[int, Evicted], None]) -> None:
        """A node loses a part, a leaf all of itself; some have left already, with a node below used less recently."""
        if node in self.entries:
            (self._drop if self._spare(node) else part)(node, gone)

    def _oldest(self, nodes: Iterable[int], ref: Tensor) -> list[tuple[int, int, int]]:
        """A heap of those that nobody holds. Of nodes used together the upper one goes first: the window lies below."""
        found = list(nodes)
        heap = [self._age(n) for n, held in zip(found, ref[found].tolist(), strict=True) if not held]
        heapify(heap)
        return heap

    def _age(self, node: int) -> tuple[int, int, int]:
        return self.entries[node].used, self.entries[node].start, node

    def _spare(self, node: int) -> bool:
        return node != ROOT and not self.entries[node].children and not self.held(node)

    def _drop(self, node: int, gone: Evicted) -> int:
        """A leaf leaves, and those above that would be leaves without a window or a state, of no use to a match; the
        node above.
        """
        while True:
            live, entry = self.live(node), self.entries[node]
            self.locks.evict_leaf(node)
            del self.entries[node], self.entries[entry.above].children[self._first(entry.key)]
            gone.dropped.append((entry.slots, live))
            self._orphan(entry, gone)
            node = entry.above
            if self._of_use(node) or not self._spare(node):
                return node

    def _of_use(self, node: int) -> bool:
        return self.live(node) and (not self.stateful or self.entries[node].state is not None)

    def _lose_window(self, node: int, gone: Evicted) -> None:
        self.locks.evict_swa(node)
        gone.buried.append(self.entries[node].slots)

    def _lose_state(self, node: int, gone: Evicted) -> None:
        self.locks.evict_mamba(node)
        self._orphan(self.entries[node], gone)

    @staticmethod
    def _orphan(entry: Entry, gone: Evicted) -> None:
        gone.states.extend([] if entry.state is None else [entry.state])
        entry.state = None

    def _first(self, key: list[int]) -> tuple[int, ...]:
        return tuple(key[: self.page_size])

    # Looking for errors.

    def check(self) -> None:
        """Compares the keys with what ``locks`` says, which it recounts. AssertionError says what differs."""
        self.locks.check()
        same("nodes", sorted(self.entries), [ROOT, *self.locks.alive.nonzero()[:, 0].tolist()])
        for node, entry in self._below_root():
            table = [int(t[node]) for t in (self.locks.parent, self.locks.start, self.locks.stop)]
            same(f"node {node}: parent, start, stop", table, [entry.above, entry.start, entry.stop])
            whole = len(entry.key) % self.page_size == 0 and entry.slots.numel() == len(entry.key) > 0
            same(f"node {node} has whole pages of tokens and slots", whole, True)
            same(f"node {node} has a state", entry.state is not None, bool(self.locks.mamba[node]))
            children = self.entries[entry.above].children
            same(f"node {node} is found by its first page", children.get(self._first(entry.key)), node)
        links = sum(len(entry.children) for entry in self.entries.values())
        same("links to nodes", links, len(self.entries) - 1)

    def _below_root(self) -> Iterator[tuple[int, Entry]]:
        return ((node, entry) for node, entry in self.entries.items() if node != ROOT)


def common(key: list[int], tokens: list[int], page_size: int) -> int:
    """How many tokens, in whole pages, both begin with."""
    most = min(len(key), len(tokens)) // page_size * page_size
    if key[:most] == tokens[:most]:
        return most
    return next(i for i in range(0, most, page_size) if key[i : i + page_size] != tokens[i : i + page_size])

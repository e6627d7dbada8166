"""A radix tree of cached prefixes: the text of each node, its slots, its state, and when it was used last.

Keys are whole pages. Which nodes there are, who holds them and which are tombstones is kept in ``locks``, a
``LockTree`` on the host, beside the keys. Only the slots lie on the device, and nothing here waits for them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import compress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from impl import checks
from impl.checks import expect
from impl.eviction import Order, Usage, least_recently_used
from impl.lock_ref import LockTree

__all__ = ["ROOT", "Entry", "Evicted", "RadixTree", "Span", "reach"]

ROOT = 0


class Span(NamedTuple):
    """The tokens ``start..stop`` of a text, and the node that has them; ``live``: with their SWA part."""

    node: int
    start: int
    stop: int
    live: bool


def reach(spans: Iterable[Span], window: int, usable: Callable[[Span], bool] = lambda _: True) -> int:
    """After how many tokens of a text a request can go on, 0 if nowhere: the end of the last such span.

    ``spans`` follow each other from the beginning of the text. A span's end counts if the span is ``usable`` and the
    ``window`` tokens before the end (or all, if there are fewer) are live.
    """
    end = begin = 0
    for span in spans:
        if not span.live:
            begin = span.stop
        elif (begin == 0 or span.stop - begin >= window) and usable(span):
            end = span.stop
    return end


@dataclass(slots=True)
class Entry:
    """A node: the tokens of its key, and their full slots (``[len(key)]`` int64 on the device).

    ``above``: its parent. ``start``: how many tokens come before its key. ``used``: when it was used last.
    ``children``: by their space and the first page of their keys. ``state``: the slot of the recurrent state after its
    last token (int64 without dimensions, on the device), None if it has none. ``space``: texts of two spaces share no
    node; the whole path of a node has its space. ``usage``: what policies of eviction ask beside ``used``. ``names``:
    what the caller names each page of the node by; empty if it names none.
    """

    key: list[int]
    slots: Tensor
    above: int
    start: int
    used: int
    children: dict[tuple[Hashable, ...], int] = field(default_factory=dict)
    state: Tensor | None = None
    space: Hashable = None
    usage: Usage = field(default_factory=Usage)
    names: list[Any] = field(default_factory=list)

    @property
    def stop(self) -> int:
        """How many tokens there are up to the end of its key."""
        return self.start + len(self.key)


@dataclass(frozen=True)
class Evicted:
    """What an eviction gives back.

    ``dropped``: for each node that left the tree its slots, and whether they had SWA slots. ``buried``: for each new
    tombstone its slots, which lose their SWA slots. ``states``: state slots. ``names``: for each node that left the
    tree the names of its pages.
    """

    dropped: list[tuple[Tensor, bool]] = field(default_factory=list)
    buried: list[Tensor] = field(default_factory=list)
    states: list[Tensor] = field(default_factory=list)
    names: list[list[Any]] = field(default_factory=list)

    @property
    def full(self) -> int:
        """How many tokens lose their full slots."""
        return sum(slots.numel() for slots, _ in self.dropped)

    @property
    def swa(self) -> int:
        """How many tokens lose their SWA slots."""
        return sum(slots.numel() for slots, live in self.dropped if live) + sum(map(Tensor.numel, self.buried))


class RadixTree:
    """A tree of up to ``nodes`` nodes. Read ``entries`` (by node number) and ``locks``; only the calls write.

    ``page_size``, ``window``: in tokens; a window of 0 makes a tree whose nodes have no SWA part. ``stateful``: a
    request can go on only from a node with a recurrent state. ``locks``: the lock counts, if the caller has made them;
    a ``LockTree`` on the host without nodes, with this window and ``stateful``, and with room for at least ``nodes``
    nodes. Otherwise ValueError. ``order``: which nodes are evicted first, see ``eviction``.
    """

    def __init__(
        self, nodes: int, page_size: int, window: int, device: str | torch.device, *,
        stateful: bool = False, debug: bool = False, locks: LockTree | None = None,
        order: Order = least_recently_used,
    ) -> None:  # fmt: skip
        self.page_size, self.window, self.stateful, self.order = page_size, window, stateful, order
        self.windowed = window > 0
        self.device = torch.device(device)
        self.locks = locks or LockTree(
            nodes, window=window, windowed=self.windowed, stateful=stateful, device=checks.HOST, debug=debug
        )
        if locks is not None:
            self._check_locks(locks, nodes)
        self.entries = {ROOT: Entry([], torch.zeros(0, dtype=torch.int64, device=device), ROOT, 0, 0)}
        self._clock = 0

    def _check_locks(self, locks: LockTree, nodes: int) -> None:
        checks.part(
            "locks",
            window=(locks.window, self.window),
            windowed=(locks.windowed, self.windowed),
            stateful=(locks.stateful, self.stateful),
            device=(locks.device, checks.HOST),
            nodes=(int(locks.alive.sum()), 0),
        )
        if locks.capacity < nodes:
            raise ValueError(f"locks must have a capacity of at least {nodes} nodes, got {locks.capacity}")

    # Looking.

    def live(self, node: int) -> bool:
        """The node is not a tombstone: a request can read it. In a tree with SWA parts it has its own."""
        return not self.windowed or bool(self.locks.swa[node])

    def held(self, node: int) -> bool:
        """A handle holds the node: somebody reads its full slots."""
        return int(self.locks.full_ref[node]) > 0

    def walk(self, tokens: list[int], space: Hashable = None) -> list[Span]:
        """The nodes that a text goes through, from the root down. The last one may have more tokens than the text."""
        spans: list[Span] = []
        node = at = 0
        while (child := self._below(node, tokens[at : at + self.page_size], space)) is not None:
            key = self.entries[child].key
            shared = common(key, tokens[at : at + len(key)], self.page_size)
            spans.append(Span(child, at, at + shared, self.live(child)))
            if shared < len(key):
                break
            node, at = child, at + shared
        return spans

    def prefix(self, tokens: list[int], space: Hashable = None) -> list[Span]:
        """The spans of the longest prefix of a text that a request can lock and go on from."""
        spans = self.walk(tokens, space)
        end = reach(spans, self.window, self.usable)
        return [span for span in spans if span.stop <= end]

    def usable(self, span: Span) -> bool:
        """A request can go on after the span: a stateful tree has the state after the span's last token."""
        if not self.stateful:
            return True
        entry = self.entries[span.node]
        return span.stop == entry.stop and entry.state is not None

    def slots(self, spans: Sequence[Span]) -> Tensor:
        """``[n]`` int64 on the device: the full slots of the tokens in the spans."""
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
        """The text from the root to the end of the node's key."""
        return [token for n in self.path(node) for token in self.entries[n].key]

    # Growing.

    def upto(self, node: int, stop: int) -> int:
        """The node that ends at ``stop`` tokens, on the path to ``node`` or the node itself; cuts a node if need be."""
        while stop <= self.entries[node].start and node != ROOT:
            node = self.entries[node].above
        return node if self.entries[node].stop == stop else self.cut(node, stop)

    def cut(self, child: int, at: int) -> int:
        """Split a node at ``at`` tokens from the root; returns the new node above it, which has the upper part."""
        new, entry = self.locks.split(child, at), self.entries[child]
        upper, lower = entry.key[: at - entry.start], entry.key[at - entry.start :]
        pages = len(upper) // self.page_size
        self.entries[new] = Entry(
            upper, entry.slots[: len(upper)], entry.above, entry.start, entry.used,
            space=entry.space, usage=entry.usage.copy(), names=entry.names[:pages],
        )  # fmt: skip
        self.entries[new].children[self._first(lower, entry.space)] = child
        self.entries[entry.above].children[self._first(upper, entry.space)] = new
        entry.key, entry.slots, entry.above, entry.start = lower, entry.slots[len(upper) :], new, at
        entry.names = entry.names[pages:]
        return new

    def compact(self) -> None:
        """Merge every node into its parent where it is the only child and all handles hold both nodes alike."""
        for node in [n for n in self.entries if n != ROOT]:
            while node in self.entries and self.locks.mergeable(node):
                self._merge(node)

    def _merge(self, node: int) -> None:
        entry, above = self.entries[node], self.entries.pop(self.locks.merge(node))
        entry.key, entry.slots = above.key + entry.key, torch.cat([above.slots, entry.slots])
        entry.above, entry.start, entry.used = above.above, above.start, max(entry.used, above.used)
        entry.usage, entry.names = entry.usage.joined(above.usage), above.names + entry.names
        self.entries[entry.above].children[self._first(entry.key, entry.space)] = node

    def add(self, under: int, key: list[int], slots: Tensor, *, live: bool, space: Hashable = None) -> int:
        """Add a leaf below ``under``, which owns ``slots`` (``[len(key)]`` int64) from now on; returns its node.

        ``space``: that of its path; below the root it may be any.
        """
        start = self.entries[under].stop
        leaf = self.locks.add_leaf(under, start + len(key), swa=live)
        usage = Usage(born=self._clock, longest=start + len(key))
        self.entries[leaf] = Entry(key, slots, under, start, self._clock, space=space, usage=usage)
        self.entries[under].children[self._first(key, space)] = leaf
        for node in self.path(under):
            self.entries[node].usage.longest = max(self.entries[node].usage.longest, usage.longest)
        return leaf

    def revive(self, node: int, slots: Tensor) -> Tensor:
        """A revivable tombstone owns the live ``slots`` from now on; returns its old ones, which the caller frees."""
        self.locks.restore(node)
        old, self.entries[node].slots = self.entries[node].slots, slots
        return old

    def revive_in_place(self, node: int) -> None:
        """A tombstone has SWA slots from now on and keeps its full slots, which somebody may read."""
        self.locks.restore_swa(node)

    def give_state(self, node: int, slot: Tensor) -> None:
        """A node that has no state owns the state in ``slot`` (int64 without dimensions) from now on."""
        self.locks.set_mamba(node)
        self.entries[node].state = slot

    def touch(self, node: int) -> None:
        """The node and all above it are used now."""
        self._clock += 1
        for n in self.path(node):
            self.entries[n].used = self._clock

    def touch_only(self, node: int) -> None:
        """The node is used now, but not those above it."""
        self._clock += 1
        self.entries[node].used = self._clock

    # Shrinking.

    def evict(self, full: int, swa: int, states: int = 0) -> Evicted:
        """Give back at least ``full`` tokens, ``swa`` SWA tokens and ``states`` states, as far as nobody holds them.

        The tree's ``order`` says which nodes go first. Leaves leave the tree as a whole. For SWA tokens, inner and held
        nodes become tombstones; for states, they lose their state.
        """
        gone = Evicted()
        leaves = self._oldest((n for n, e in self.entries.items() if n and not e.children), self.locks.full_ref, full)
        while leaves and gone.full < full:
            above = self._drop(heappop(leaves)[-1], gone)
            if self._is_free_leaf(above):
                heappush(leaves, self._age(above))
        live = self._oldest(self._having(self.locks.swa), self.locks.swa_ref, swa - gone.swa)
        while live and gone.swa < swa:
            self._take(heappop(live)[-1], gone, self._take_swa)
        with_state = self._oldest(self._having(self.locks.mamba), self.locks.mamba_ref, states - len(gone.states))
        while with_state and len(gone.states) < states:
            self._take(heappop(with_state)[-1], gone, self._take_state)
        return gone

    def _having(self, part: Tensor) -> Iterator[int]:
        """The nodes that have a part; read when they are asked for."""
        nodes = list(self.entries)
        yield from compress(nodes, part[nodes].tolist())

    def _oldest(self, nodes: Iterable[int], ref: Tensor, wanted: int) -> list[tuple[Any, int, int]]:
        """A heap of the nodes whose part nobody holds, by the tree's order; empty if nothing is wanted of them.

        Of nodes that the order does not tell apart the upper one goes first: the window lies in the lower ones.
        """
        if wanted <= 0:
            return []
        found = list(nodes)
        heap = [self._age(n) for n, held in zip(found, ref[found].tolist(), strict=True) if not held]
        heapify(heap)
        return heap

    def _age(self, node: int) -> tuple[Any, int, int]:
        return self.order(self.entries[node]), self.entries[node].start, node

    def _is_free_leaf(self, node: int) -> bool:
        return node != ROOT and not self.entries[node].children and not self.held(node)

    def _take(self, node: int, gone: Evicted, part: Callable[[int, Evicted], None]) -> None:
        """A node loses a part; a leaf that nobody holds leaves the tree instead.

        A node may have left already, together with a node below it.
        """
        if node in self.entries:
            (self._drop if self._is_free_leaf(node) else part)(node, gone)

    def _drop(self, node: int, gone: Evicted) -> int:
        """A leaf leaves the tree; returns the node above.

        A node above that becomes a leaf then leaves too, if it is a tombstone or lacks its state: no match can end
        there.
        """
        while True:
            has_swa, entry = bool(self.locks.swa[node]), self.entries[node]
            self.locks.evict_leaf(node)
            del self.entries[node], self.entries[entry.above].children[self._first(entry.key, entry.space)]
            gone.dropped.append((entry.slots, has_swa))
            gone.names.append(entry.names)
            self._take_entry_state(entry, gone)
            node = entry.above
            if self._can_end_match(node) or not self._is_free_leaf(node):
                return node

    def _can_end_match(self, node: int) -> bool:
        return self.live(node) and (not self.stateful or self.entries[node].state is not None)

    def _take_swa(self, node: int, gone: Evicted) -> None:
        self.locks.evict_swa(node)
        gone.buried.append(self.entries[node].slots)

    def _take_state(self, node: int, gone: Evicted) -> None:
        self.locks.evict_mamba(node)
        self._take_entry_state(self.entries[node], gone)

    @staticmethod
    def _take_entry_state(entry: Entry, gone: Evicted) -> None:
        if entry.state is not None:
            gone.states.append(entry.state)
            entry.state = None

    def _below(self, node: int, key: list[int], space: Hashable) -> int | None:
        """The child whose first page is that of the key."""
        return self.entries[node].children.get(self._first(key, space))

    def _first(self, key: list[int], space: Hashable) -> tuple[Hashable, ...]:
        """The space and the first page of a key: what it is found by among the children of a node."""
        return (space, *key[: self.page_size])

    # Looking for errors.

    def check(self) -> None:
        """Check ``locks``, and compare the entries with it. AssertionError says what differs."""
        self.locks.check()
        expect("nodes", sorted(self.entries), [ROOT, *self.locks.alive.nonzero()[:, 0].tolist()])
        for node, entry in self.entries.items():
            if node != ROOT:
                self._check_entry(node, entry)
        links = sum(len(entry.children) for entry in self.entries.values())
        expect("number of links to nodes", links, len(self.entries) - 1)

    def _check_entry(self, node: int, entry: Entry) -> None:
        table = [int(t[node]) for t in (self.locks.parent, self.locks.start, self.locks.stop)]
        expect(f"node {node}: parent, start, stop", table, [entry.above, entry.start, entry.stop])
        whole = len(entry.key) % self.page_size == 0 and entry.slots.numel() == len(entry.key) > 0
        expect(f"node {node} has whole pages of tokens, and a slot for each", whole, True)
        named = len(entry.names) * self.page_size
        expect(f"node {node} has a name for each page, or none", named in (0, len(entry.key)), True)
        expect(f"node {node} has a state", entry.state is not None, bool(self.locks.mamba[node]))
        above = self.entries[entry.above]
        expect(f"node {node} is found by its first page", above.children.get(self._first(entry.key, entry.space)), node)
        expect(f"node {node} has the space of its path", entry.above == ROOT or above.space == entry.space, True)


def common(key: list[int], tokens: list[int], page_size: int) -> int:
    """How many tokens, in whole pages, both lists begin with."""
    most = min(len(key), len(tokens)) // page_size * page_size
    if key[:most] == tokens[:most]:
        return most
    return next(i for i in range(0, most, page_size) if key[i : i + page_size] != tokens[i : i + page_size])

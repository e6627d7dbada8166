"""The nodes of a radix tree as tensors: their paths, their lock counts, and the sizes that follow from them.

The path of a node is a row of one table: from below the root down to the node itself, then zeros, for node 0, the root,
on which nothing is counted. So a batch of paths is one gather, and what lies on them is counted by one scatter,
whatever the batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from impl import checks

FULL, SWA, MAMBA = range(3)
MOST = 1 << 62  # tokens, so that no sum of two leaves int64


class Paths:
    """``table``: ``[nodes, width]`` int64, as wide as the deepest path needs (it grows, by copying)."""

    def __init__(self, nodes: int, device: torch.device) -> None:
        self.table = torch.zeros((nodes, 4), dtype=torch.int64, device=device)
        self._depth = [0] * nodes  # how many nodes the path of a node has; the structure is the host's own

    def of(self, nodes: Tensor) -> Tensor:
        """``[n, width]``: one path a row. IndexError on CPU for what is no row of the table."""
        return self.table.index_select(0, nodes)

    def add(self, leaf: int, under: int) -> None:
        """The leaf's path is that of ``under`` and itself."""
        depth = self._depth[under] + 1
        self._widen(depth)
        self.table[leaf] = self.table[under]
        self.table[leaf, depth - 1] = leaf
        self._depth[leaf] = depth

    def insert(self, new: int, child: int) -> None:
        """``new`` comes between the child and its parent, in the path of all that lies below."""
        at = self._depth[child] - 1
        below = (self.table[:, at] == child).nonzero()[:, 0]
        numbers = below.tolist()
        self._widen(max(self._depth[n] for n in numbers) + 1)
        rows = self.table[below]
        self.table[new, :at] = rows[0, :at]
        self.table[below] = torch.cat([rows[:, :at], torch.full_like(rows[:, :1], new), rows[:, at:-1]], 1)
        self.table[new, at] = new
        self._depth[new] = at + 1
        for n in numbers:
            self._depth[n] += 1

    def drop(self, node: int) -> None:
        """A node that left the tree has no path."""
        self.table[node] = 0
        self._depth[node] = 0

    def _widen(self, depth: int) -> None:
        nodes, width = self.table.shape
        if depth > width:
            more = self.table.new_zeros((nodes, depth + depth // 4 - width))
            self.table = torch.cat([self.table, more], 1)


class Held(NamedTuple):
    """What a batch holds on its paths, one row a handle: the nodes of each part, 0 where it holds none."""

    full: Tensor
    swa: Tensor
    mamba: Tensor


class Counts:
    """Lock counts of each part and node, and the size of what is held, kept with them.

    ``ref``: ``[3, nodes]``; ``weight``: what a node adds to the size of a part; ``protected``: ``[3]``.
    """

    def __init__(self, nodes: int, parts: list[int], device: torch.device) -> None:
        self.ref = torch.zeros((3, nodes), dtype=torch.int64, device=device)
        self.weight = torch.zeros_like(self.ref)
        self.protected = torch.zeros(3, dtype=torch.int64, device=device)
        self._parts = parts
        self._which = torch.tensor(parts, dtype=torch.int64, device=device)
        self._offsets = (self._which * nodes)[:, None]
        self._flat_ref, self._flat_weight = self.ref.view(-1), self.weight.view(-1)
        self._mark = torch.zeros_like(self._flat_ref)

    def weigh(self, node: int, tokens: int) -> None:
        """A node of so many tokens; a state counts as one."""
        self.weight[:MAMBA, node] = tokens
        self.weight[MAMBA, node] = 1

    def shift(self, held: Held, by: int) -> None:
        """Adds ``by`` (1 or -1) for every handle. A node that several of the batch hold changes its size once."""
        where = torch.stack([held[part] for part in self._parts], 1) + self._offsets
        flat = where.view(-1)
        if by > 0:
            moved = self._flat_ref.index_select(0, flat) == 0
        self._flat_ref.index_add_(0, flat, torch.ones_like(flat), alpha=by)
        self.ref[:, 0] = 0
        if by < 0:
            moved = self._flat_ref.index_select(0, flat) == 0
        if len(where) > 1:
            moved &= self._once(flat)
        size = self._flat_weight.index_select(0, flat) * moved
        self.protected.index_add_(0, self._which, size.view(where.shape).sum((0, 2)), alpha=by)

    def _once(self, flat: Tensor) -> Tensor:
        """True at one of the places where each number stands: each writes its place, one of them stays."""
        place = torch.arange(flat.numel(), device=flat.device)
        return self._mark.scatter_(0, flat, place).index_select(0, flat) == place


class Nodes(ABC):
    """The tables of the nodes, and everything that changes the tree."""

    def __init__(self, capacity: int, windowed: bool, stateful: bool, device: torch.device) -> None:
        self.capacity = checks.whole("capacity", capacity, 1)
        self.windowed, self.stateful, self.device = windowed, stateful, device
        self.parent, self.start, self.stop, self.token = (self._table(torch.int64) for _ in range(4))
        self.alive, self.swa, self.mamba = (self._table(torch.bool) for _ in range(3))
        self.paths = Paths(capacity + 1, device)
        parts = [FULL, *([SWA] if windowed else []), *([MAMBA] if stateful else [])]
        self.counts = Counts(capacity + 1, parts, device)
        self.full_ref, self.swa_ref, self.mamba_ref = self.counts.ref
        self.sizes = [0, 0, 0]  # of each part, held or not: the host knows them
        self._free = list(range(capacity, 0, -1))
        self._tokens = 0

    def _table(self, dtype: torch.dtype) -> Tensor:
        return torch.zeros(self.capacity + 1, dtype=dtype, device=self.device)

    # Sizes. On CUDA the host waits for them.

    def full_evictable_size(self) -> int:
        """Tokens of nodes that nobody holds."""
        return self.sizes[FULL] - self.full_protected_size()

    def full_protected_size(self) -> int:
        """Tokens of nodes that somebody holds."""
        return int(self.counts.protected[FULL])

    def swa_evictable_size(self) -> int:
        """Tokens of nodes whose SWA part nobody holds."""
        return self.sizes[SWA] - self.swa_protected_size()

    def swa_protected_size(self) -> int:
        """Tokens of nodes whose SWA part somebody holds."""
        return int(self.counts.protected[SWA])

    def mamba_evictable_size(self) -> int:
        """States that nobody holds."""
        return self.sizes[MAMBA] - self.mamba_protected_size()

    def mamba_protected_size(self) -> int:
        """States that somebody holds."""
        return int(self.counts.protected[MAMBA])

    # The tree.

    def add_leaf(self, under: int, stop: int, *, swa: bool = True, mamba: bool = False) -> int:
        """A new leaf below ``under`` (0: the root), whose key ends at ``stop``; its node.

        Without ``swa`` it is a tombstone. A part that the tree does not have is not stored. RuntimeError if the
        tree is full, ValueError for a parent that is not there or a key without tokens.
        """
        under = self._node("under", under, root=True)
        first = int(self.stop[under])
        if not first < checks.whole("stop", stop, 1) < MOST:
            raise ValueError(f"stop must lie behind {first}, where node {under} stops, and below 2**62, got {stop}")
        swa, mamba = swa and self.windowed, mamba and self.stateful
        leaf = self._new()
        self._set(
            leaf, parent=under, start=first, stop=stop, alive=True, swa=swa, mamba=mamba, token=self._next_token()
        )
        self.paths.add(leaf, under)
        self.counts.weigh(leaf, stop - first)
        self.sizes[FULL] += stop - first
        self.sizes[SWA] += (stop - first) * swa
        self.sizes[MAMBA] += int(mamba)
        self._done()
        return leaf

    def split(self, child: int, at: int) -> int:
        """Cuts a node at ``at`` tokens from the root; the new parent, which has the upper part and all its locks.

        The child keeps its mamba state. Handles whose SWA part ended at the child end at the new parent. Errors as
        ``add_leaf``.
        """
        child = self._node("child", child)
        first, last = int(self.start[child]), int(self.stop[child])
        if not first < checks.whole("at", at, 0) < last:
            raise ValueError(f"at must lie within node {child}'s key, between {first} and {last}, got {at}")
        new = self._new()
        for table in (self.parent, self.start, self.alive, self.swa, self.full_ref, self.swa_ref, self.token):
            table[new] = table[child]
        self._set(new, stop=at)
        self._set(child, parent=new, start=at, token=self._next_token())
        self.paths.insert(new, child)
        self.counts.weigh(new, at - first)
        self.counts.weigh(child, last - at)
        self._done()
        return new

    def restore(self, node: int) -> None:
        """A tombstone gets an SWA part, its slots are replaced. ValueError if it is none, or a reader has its slots."""
        node = self._node("node", node)
        _refuse(not self.windowed, "node: the tree has no SWA part")
        _refuse(bool(self.swa[node]), f"node {node} is not a tombstone")
        _refuse(int(self.full_ref[node]) > 0, f"node {node} is held: a reader still uses its slots")
        self._set(node, swa=True)
        self.sizes[SWA] += self._span(node)
        self._done()

    def set_mamba(self, node: int) -> None:
        """A node gets a mamba state. ValueError if it has one, or the tree has none at all."""
        node = self._node("node", node)
        _refuse(not self.stateful, "node: the tree has no mamba states")
        _refuse(bool(self.mamba[node]), f"node {node} has a mamba state already")
        self._set(node, mamba=True)
        self.sizes[MAMBA] += 1
        self._done()

    def evict_leaf(self, node: int) -> None:
        """A leaf leaves the tree with all its parts. ValueError if it is none, or is held."""
        node = self._node("node", node)
        _refuse(bool((self.alive & (self.parent == node)).any()), f"node {node} is not a leaf")
        _refuse(int(self.full_ref[node]) > 0, f"node {node} is held")
        span = self._span(node)
        self.sizes[FULL] -= span
        self.sizes[SWA] -= span * int(self.swa[node])
        self.sizes[MAMBA] -= int(self.mamba[node])
        self._set(node, parent=0, start=0, stop=0, alive=False, swa=False, mamba=False, token=0)
        self.paths.drop(node)
        self._free.append(node)
        self._done()

    def evict_swa(self, node: int) -> None:
        """A node becomes a tombstone. ValueError if it is one, or its SWA part is held."""
        node = self._node("node", node)
        _refuse(not self.swa[node], f"node {node} has no SWA part")
        _refuse(int(self.swa_ref[node]) > 0, f"node {node}: its SWA part is held")
        self._set(node, swa=False)
        self.sizes[SWA] -= self._span(node)
        self._done()

    def evict_mamba(self, node: int) -> None:
        """A node loses its mamba state. ValueError if it has none, or the state is held."""
        node = self._node("node", node)
        _refuse(not self.mamba[node], f"node {node} has no mamba state")
        _refuse(int(self.mamba_ref[node]) > 0, f"node {node}: its mamba state is held")
        self._set(node, mamba=False)
        self.sizes[MAMBA] -= 1
        self._done()

    @abstractmethod
    def _done(self) -> None:
        """Called after every change."""

    def _node(self, name: str, node: int, *, root: bool = False) -> int:
        node = int(checks.whole(name, node, 0))
        if node > self.capacity or not (self.alive[node] or (root and node == 0)):
            raise ValueError(f"{name}: there is no node {node}" if node else f"{name} must be a node below the root")
        return node

    def _new(self) -> int:
        if not self._free:
            raise RuntimeError(f"the tree is full: it has room for {self.capacity} nodes")
        return self._free.pop()

    def _set(self, node: int, **values: Any) -> None:
        for name, value in values.items():
            getattr(self, name)[node] = value

    def _next_token(self) -> int:
        self._tokens += 1
        return self._tokens

    def _span(self, node: int) -> int:
        return int(self.stop[node] - self.start[node])


def _refuse(wrong: bool, why: str) -> None:
    if wrong:
        raise ValueError(why)

"""The paths of tree nodes as a table, and the lock counts of nodes, for ``LockTree``.

The path of a node is a row of one table: the nodes from below the root down to the node itself, then zeros. Zero is the
root, and nothing is counted on the root. So the paths of a batch are one gather, and the counts of everything on them
are changed by one scatter, whatever the size of the batch. On a CPU a single lock is faster with NumPy, on the memory
of the tensors: an operation of torch takes longer there than what it does on a path.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

FULL, SWA, MAMBA = range(3)


class Paths:
    """``table``: ``[nodes, width]`` int64, wide enough for the deepest path; it grows by copying."""

    def __init__(self, nodes: int, device: torch.device) -> None:
        self.table = torch.zeros((nodes, 4), dtype=torch.int64, device=device)
        self._depth = [0] * nodes  # nodes in the path of each node; known on the host

    def of(self, nodes: Tensor) -> Tensor:
        """``[n, width]`` int64: the path of each node. IndexError, on CPU, for a number that is no row."""
        return self.table.index_select(0, nodes)

    def alone(self, node: int) -> np.ndarray[Any, Any]:
        """``[depth]`` int64: the path of one node, on CPU; a view."""
        path: np.ndarray[Any, Any] = self.table.numpy()[node, : self._depth[node]]
        return path

    def add(self, leaf: int, under: int) -> None:
        """The path of a new leaf: that of ``under``, and the leaf itself."""
        depth = self._depth[under] + 1
        self._widen(depth)
        self.table[leaf] = self.table[under]
        self.table[leaf, depth - 1] = leaf
        self._depth[leaf] = depth

    def insert(self, new: int, child: int) -> None:
        """Put ``new`` between ``child`` and its parent, in the path of the child and of every node below it."""
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

    def remove(self, node: int) -> None:
        """Take ``node`` out of the path of every node below it, and drop its own path."""
        at = self._depth[node] - 1
        below = (self.table[:, at] == node).nonzero()[:, 0]
        rows = self.table[below]
        self.table[below] = torch.cat([rows[:, :at], rows[:, at + 1 :], torch.zeros_like(rows[:, :1])], 1)
        for n in below.tolist():
            self._depth[n] -= 1
        self.drop(node)

    def drop(self, node: int) -> None:
        """A node that left the tree has no path."""
        self.table[node] = 0
        self._depth[node] = 0

    def _widen(self, depth: int) -> None:
        nodes, width = self.table.shape
        if depth > width:
            more = self.table.new_zeros((nodes, depth + depth // 4 - width))
            self.table = torch.cat([self.table, more], 1)


class HeldNodes(NamedTuple):
    """The nodes that a batch of handles holds, for each part: ``[handles, width]`` int64, 0 where none is held."""

    full: Tensor
    swa: Tensor
    mamba: Tensor


class Counts:
    """How many handles hold each part of each node, and the size of what is held, kept up to date with it.

    ``ref``: ``[3, nodes]`` int64, the lock counts of the full, SWA and mamba parts. ``weight``: ``[3, nodes]`` int64,
    the size of each part, in tokens (a mamba state counts as 1); 0 for a part that the node does not have.
    ``protected``: ``[3]`` int64, the sum of the weights of all nodes whose count is not 0.
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

    def weigh(self, node: int, full: int, swa: int, mamba: int) -> None:
        """The parts of a node have these sizes now; what is protected stays."""
        self.weight[:, node] = torch.tensor([full, swa, mamba], dtype=torch.int64, device=self.weight.device)

    def gain(self, part: int, node: int, size: int) -> None:
        """A node gets a part that it did not have; the part is protected where handles count it already."""
        self.weight[part, node] = size
        self.protected[part] += size * (self.ref[part, node] > 0)

    def shift(self, held: HeldNodes, by: int) -> None:
        """Add ``by`` (1 or -1) to the count of each part of each node, once for each handle that holds it.

        The weight of a part whose count leaves or reaches 0 changes ``protected`` once, however many handles hold it.
        """
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

    def shift_one(self, part: int, nodes: np.ndarray[Any, Any], by: int) -> None:
        """``shift`` for one handle and one part, on CPU. ``nodes``: ``[n]`` int64, different: those that it holds."""
        ref = self.ref.numpy()[part]
        counts = ref[nodes]
        ref[nodes] = counts + by
        moved = counts == (0 if by > 0 else 1)
        self.protected.numpy()[part] += by * self.weight.numpy()[part][nodes[moved]].sum()

    def _once(self, flat: Tensor) -> Tensor:
        """``[n]`` bool: true at exactly one of the places where a number stands.

        Each place writes its own index under its number; the one that is read back stays.
        """
        place = torch.arange(flat.numel(), device=flat.device)
        return self._mark.scatter_(0, flat, place).index_select(0, flat) == place

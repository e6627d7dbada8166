"""The paths of tree nodes as a table, and the lock counts of nodes, for ``LockTree``.

The path of a node is a row of one table: the nodes from below the root down to the node itself, then zeros. Zero is the
root, and nothing is counted on the root. So the paths of a batch are one gather, and the counts of everything on them
are changed by one scatter, whatever the size of the batch. On a CPU a single lock is faster with NumPy, on the memory
of the tensors: an operation of torch takes longer there than what it does on a path.

An edit of the tree touches the paths of the nodes below the edit alone. Which nodes these are is known on the host.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from impl.host import upload

FULL, SWA, MAMBA = range(3)


FEW = 1024  # rows that a table of paths begins with


class Paths:
    """The paths of the nodes ``0..nodes - 1``, of which few are in the tree at first.

    ``table``: ``[rows, width]`` int64, as wide as the deepest path and with a row for each node that has been in the
    tree, at least; it grows by copying. A node without a row has never been in the tree.
    """

    def __init__(self, nodes: int, device: torch.device) -> None:
        self._nodes = nodes
        self.table = torch.zeros((min(nodes, FEW), 4), dtype=torch.int64, device=device)
        # On the host: how many nodes are in the path of each node, the node above it, and the nodes right below it.
        self._depth = [0] * nodes
        self._above = [0] * nodes
        self._children: dict[int, set[int]] = {}

    def of(self, nodes: Tensor) -> Tensor:
        """``[n, width]`` int64: the path of each node, which is in the tree."""
        return self.table.index_select(0, nodes)

    def of_any(self, nodes: Tensor) -> Tensor:
        """``of``; for a node that is not in the tree the answer means nothing."""
        rows = len(self.table)
        return self.of(nodes if rows == self._nodes else nodes.clamp(max=rows - 1))

    def one(self, node: int) -> Tensor:
        """``[depth]`` int64: the path of one node; a view."""
        return self.table[node, : self._depth[node]]

    def alone(self, node: int) -> np.ndarray[Any, Any]:
        """``one``, on CPU."""
        path: np.ndarray[Any, Any] = self.table.numpy()[node, : self._depth[node]]
        return path

    def children(self, node: int) -> int:
        """How many nodes are right below the node."""
        return len(self._children.get(node, ()))

    def add(self, leaf: int, under: int) -> None:
        """The path of a new leaf: that of ``under``, and the leaf itself."""
        depth = self._depth[under] + 1
        self._grow(leaf, depth)
        self.table[leaf] = self.table[under]
        self.table[leaf, depth - 1] = leaf
        self._depth[leaf] = depth
        self._link(leaf, under)

    def insert(self, new: int, child: int) -> None:
        """Put ``new`` between ``child`` and its parent, in the path of the child and of every node below it."""
        at = self._depth[child] - 1
        numbers = self._from(child)
        self._grow(new, max(self._depth[n] for n in numbers) + 1)
        below = self._index(numbers)
        rows = self.of(below)
        rows[:, at + 1 :] = rows[:, at:-1].clone()
        rows[:, at] = new
        self.table.index_copy_(0, below, rows)
        self.table[new, : at + 1] = rows[0, : at + 1]
        self._depth[new] = at + 1
        for n in numbers:
            self._depth[n] += 1
        self._link(new, self._above[child])
        self._unlink(child)
        self._link(child, new)

    def remove(self, node: int) -> None:
        """Take ``node`` out of the path of every node below it, and drop its own path."""
        at, above = self._depth[node] - 1, self._above[node]
        numbers = self._from(node)
        below = self._index(numbers)
        rows = self.of(below)
        rows[:, at:-1] = rows[:, at + 1 :].clone()
        rows[:, -1] = 0
        self.table.index_copy_(0, below, rows)
        for n in numbers:
            self._depth[n] -= 1
        for child in self._children.pop(node):
            self._link(child, above)
        self.drop(node)

    def drop(self, node: int) -> None:
        """A leaf that left the tree has no path."""
        self.table[node] = 0
        self._depth[node] = 0
        self._unlink(node)

    def _link(self, node: int, above: int) -> None:
        self._above[node] = above
        self._children.setdefault(above, set()).add(node)

    def _unlink(self, node: int) -> None:
        above = self._above[node]
        self._children[above].remove(node)
        if not self._children[above]:
            del self._children[above]

    def _from(self, node: int) -> list[int]:
        """The node and all nodes below it."""
        found = [node]
        for n in found:  # it grows meanwhile
            found += self._children.get(n, ())
        return found

    def _index(self, nodes: list[int]) -> Tensor:
        return upload(torch.tensor(nodes, dtype=torch.int64), self.table.device)

    def _grow(self, node: int, depth: int) -> None:
        """Room for the path of this node, and for paths of so many nodes."""
        rows, width = self.table.shape
        if node < rows and depth <= width:
            return
        most = rows if node < rows else min(self._nodes, max(2 * rows, node + 1))
        grown = self.table.new_zeros((most, width if depth <= width else depth + depth // 4))
        grown[:rows, :width] = self.table
        self.table = grown


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

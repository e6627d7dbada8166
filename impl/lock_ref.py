"""Locks on the nodes of a radix tree, as tensors: many requests lock and release their paths in one call.

A handle holds the full part of every node from its node to the root, the SWA part of the nodes upward until the
window is filled, and the mamba state of its node alone. What it holds is found again by its node and the token of the
boundary, the last node of its window: a split hands the token to the new parent, so no handle is ever looked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import attrgetter

import torch
from torch import Tensor

from impl import checks
from impl.paths import Held, Nodes

NO_TOKEN = -1  # of a handle without an SWA part; a dead node and the root have token 0


class LockHandle:
    """What one request holds. Only its tree makes one; it is released once, its SWA part at most once before."""

    __slots__ = ("number", "tree")

    def __init__(self, tree: LockTree, number: int) -> None:
        self.tree, self.number = tree, number

    @property
    def active(self) -> bool:
        """It has not been released."""
        return self in self.tree.active

    @property
    def holds_swa(self) -> bool:
        """It still holds its SWA part."""
        return self in self.tree.with_swa

    @property
    def node(self) -> int:
        """The node that it locks (on CUDA the host waits). ValueError once it is released."""
        return self._record()[0]

    @property
    def top(self) -> int:
        """Where its SWA part ends now, 0 if it holds none (on CUDA the host waits). ValueError once released."""
        _, token, _ = self._record()
        return 0 if token == NO_TOKEN else int((self.tree.token == token).nonzero()[0, 0])

    @property
    def state(self) -> bool:
        """It holds the mamba state of its node (on CUDA the host waits). ValueError once it is released."""
        return self._record()[2] == 1

    def _record(self) -> list[int]:
        if not self.active:
            raise ValueError("the handle is released: it holds nothing")
        return self.tree.held[self.number].tolist()

    def __repr__(self) -> str:
        return f"LockHandle({self.number}, {'active' if self.active else 'released'})"


class LockTree(Nodes):
    """Nodes ``1..capacity`` below the root 0, their lock counts, and the sizes of what is held and what is not.

    Tables, ``[capacity + 1]``: ``parent``, ``start`` and ``stop`` (tokens from the root), ``alive`` (the root is not
    counted), ``swa`` and ``mamba`` (the value is there), ``full_ref``, ``swa_ref``, ``mamba_ref``, ``token``. Read
    them; only the calls write. The paths take ``capacity`` times the deepest path's nodes of int64 beside them.
    Every error is raised before anything changes. ``debug`` looks for errors on CUDA too, and checks after each call.
    """

    def __init__(
        self, capacity: int, *, window: int, windowed: bool = True, stateful: bool = False,
        device: str | torch.device = "cpu", debug: bool = False,
    ) -> None:  # fmt: skip
        self.window, self.debug = checks.whole("window", window, int(windowed)), debug
        super().__init__(capacity, windowed, stateful, torch.device(device))
        self._looks = debug or self.device.type == "cpu"
        # Handles: [number] -> node, token, state; numbers are used again, handles are not.
        self.held = torch.zeros((0, 3), dtype=torch.int64, device=self.device)
        self._spare: list[int] = []
        self.active: set[LockHandle] = set()
        self.with_swa: set[LockHandle] = set()

    # Locks.

    def lockable(self, nodes: Tensor | Sequence[int]) -> Tensor:
        """``[n]`` bool: the node is in the tree, and no tombstone lies in its window (or below the root)."""
        nodes, rows = self._rows(nodes)
        return self._covered(nodes, rows, self._window(nodes, rows))

    def acquire(self, nodes: Tensor | Sequence[int]) -> list[LockHandle]:
        """Locks each node, several times if it is named several times; one handle for each, in order.

        ``nodes``: ``[n]`` integers, on the tree's device if it is a tensor. ValueError unless all are lockable (looked
        for on CPU, and everywhere with ``debug``; elsewhere ask ``lockable``).
        """
        nodes, rows = self._rows(nodes)
        if nodes.numel() == 0:
            return []
        near = self._window(nodes, rows)
        if self._looks:
            self._require(nodes, self._covered(nodes, rows, near))
        token = torch.full_like(nodes, NO_TOKEN)
        if self.windowed:
            top = near.view(torch.uint8).argmax(1, keepdim=True)
            token = self.token.index_select(0, rows.gather(1, top)[:, 0])
        state = self.mamba.index_select(0, nodes)
        handles = self._enter(torch.stack([nodes, token, state], 1))
        self.counts.shift(Held(rows, rows * near, self._own(rows, nodes, state)), 1)
        self._done()
        return handles

    def release(self, handles: Iterable[LockHandle]) -> None:
        """Gives back exactly what the handles hold. ValueError for one released already, named twice, or not ours."""
        given = self._given(handles, self.active, "")
        if not given:
            return
        numbers, (nodes, tokens, states) = self._leave(given)
        rows = self.paths.of(nodes)
        self.counts.shift(Held(rows, self._from(tokens, rows), self._own(rows, nodes, states)), -1)
        self.active.difference_update(given)
        self.with_swa.difference_update(given)
        self._spare += numbers
        self._done()

    def release_swa(self, handles: Iterable[LockHandle]) -> None:
        """Gives back the SWA parts alone. ValueError as ``release``, or if a handle holds no SWA part (any more)."""
        given = self._given(handles, self.with_swa, "holds no SWA part")
        if not given:
            return
        numbers, (nodes, tokens, _) = self._leave(given)
        rows = self.paths.of(nodes)
        none = torch.zeros_like(rows)
        self.counts.shift(Held(none, self._from(tokens, rows), none), -1)
        self.held[:, 1].index_fill_(0, self._upload(numbers), NO_TOKEN)
        self.with_swa.difference_update(given)
        self._done()

    # What lies on paths: rows of nodes, 0 where there is none.

    def _rows(self, nodes: Tensor | Sequence[int]) -> tuple[Tensor, Tensor]:
        if not isinstance(nodes, Tensor):
            nodes = self._upload(list(nodes))
        checks.index("nodes", nodes, self.device)
        nodes = nodes.to(torch.int64)
        try:
            return nodes, self.paths.of(nodes)
        except IndexError:
            raise ValueError(f"nodes must lie within 0..{self.capacity}, got {nodes.tolist()}") from None

    def _window(self, nodes: Tensor, rows: Tensor) -> Tensor:
        """``[n, width]`` bool: the nodes upward until the window is filled."""
        if not self.windowed:
            return torch.zeros_like(rows, dtype=torch.bool)
        left = self.stop.index_select(0, nodes)[:, None] - self.window
        return (_at(self.stop, rows) > left) & (rows > 0)

    def _covered(self, nodes: Tensor, rows: Tensor, near: Tensor) -> Tensor:
        return self.alive.index_select(0, nodes) & ~(near > _at(self.swa, rows)).any(1)

    def _own(self, rows: Tensor, nodes: Tensor, states: Tensor) -> Tensor:
        return rows * (rows == (nodes * states)[:, None]) if self.stateful else rows

    def _from(self, tokens: Tensor, rows: Tensor) -> Tensor:
        """The nodes from the boundary with each token down; none for ``NO_TOKEN``."""
        if not self.windowed:
            return rows
        return rows * (_at(self.token, rows) == tokens[:, None]).cumsum(1)

    def _require(self, nodes: Tensor, fine: Tensor) -> None:
        if fine.all():
            return
        node = int(nodes[int(fine.int().argmin())])
        why = "its window has a tombstone" if self.alive[node] else "it is not a node below the root"
        raise ValueError(f"nodes: node {node} cannot be locked: {why}")

    # Handles.

    def _enter(self, records: Tensor) -> list[LockHandle]:
        count = len(records)
        if count > len(self._spare):
            more = max(count, len(self.held), 64)
            self._spare += range(len(self.held) + more - 1, len(self.held) - 1, -1)
            self.held = torch.cat([self.held, self.held.new_zeros((more, 3))])
        numbers = self._spare[-count:]
        del self._spare[-count:]
        self.held.index_copy_(0, self._upload(numbers), records)
        handles = list(map(LockHandle, repeat(self), numbers))
        self.active.update(handles)
        if self.windowed:
            self.with_swa.update(handles)
        return handles

    def _leave(self, handles: list[LockHandle]) -> tuple[list[int], tuple[Tensor, ...]]:
        numbers = list(map(attrgetter("number"), handles))
        return numbers, self.held.index_select(0, self._upload(numbers)).unbind(1)

    def _given(self, handles: Iterable[LockHandle], among: set[LockHandle], why: str) -> list[LockHandle]:
        if isinstance(handles, LockHandle):
            raise TypeError("handles must be a sequence of LockHandle, got one handle")
        given = list(handles)
        if set(map(type, given)) - {LockHandle}:
            raise TypeError("handles must be LockHandle objects, as acquire returns them")
        if not among.issuperset(given):
            wrong = next(i for i, h in enumerate(given) if h not in among)
            why = why if given[wrong].active else "is released already"
            why = why if given[wrong].tree is self else "is of another tree"
            raise ValueError(f"handles[{wrong}] {why}")
        if len(set(given)) < len(given):
            twice = next(i for i, h in enumerate(given) if h in given[:i])
            raise ValueError(f"handles[{twice}] is in the batch twice")
        return given

    def _upload(self, numbers: list[int]) -> Tensor:
        if not numbers:
            return torch.zeros(0, dtype=torch.int64, device=self.device)
        host = torch.tensor(numbers)
        return host if self.device.type == "cpu" else host.pin_memory().to(self.device, non_blocking=True)

    # Looking.

    def check(self) -> None:
        """Recounts everything from the handles that are held, node by node. AssertionError says what differs."""
        parents: list[int] = self.parent.tolist()
        refs = [[0] * (self.capacity + 1) for _ in range(3)]
        for handle in self.active:
            for counts, nodes in zip(refs, self._holds(handle, parents), strict=True):
                for n in nodes:
                    counts[n] += 1
        _same("the root is counted", [bool(self.alive[0]), *self.counts.ref[:, 0].tolist()], [False, 0, 0, 0])
        for n in self.alive.nonzero()[:, 0].tolist():
            _same(f"path of node {n}", [m for m in self.paths.table[n].tolist() if m], _walk(n, parents)[::-1])
            _same(f"start of node {n}", int(self.start[n]), int(self.stop[parents[n]]))
        _same("handles with an SWA part that are released", self.with_swa - self.active, set())
        there = (self.alive, self.alive & self.swa, self.alive & self.mamba)
        spans: list[list[int]] = self.counts.weight.tolist()
        for part, name in enumerate(("full", "swa", "mamba")):
            _same(f"{name}_ref", self.counts.ref[part].tolist(), refs[part])
            values = there[part].nonzero()[:, 0].tolist()
            _same(f"{name} tokens", self.sizes[part], sum(spans[part][n] for n in values))
            held = sum(spans[part][n] for n in values if refs[part][n])
            _same(f"{name}_protected_size", int(self.counts.protected[part]), held)

    def _holds(self, handle: LockHandle, parents: list[int]) -> tuple[list[int], list[int], list[int]]:
        """The nodes of each part, by walking; each must have the part."""
        node, token, state = self.held[handle.number].tolist()
        path = _walk(node, parents)
        tokens = self.token[path].tolist()
        _same(f"{handle!r} has an SWA part", token != NO_TOKEN, handle.holds_swa)
        _same(f"{handle!r}: its boundary lies on its path", token in tokens, token != NO_TOKEN)
        window = path[: tokens.index(token) + 1] if token in tokens else []
        _same(f"{handle!r} holds what is not there", [n for n in window if not self.swa[n]], [])
        _same(f"{handle!r} holds a state", bool(state) and not self.mamba[node], False)
        return path, window, [node] * state

    def _done(self) -> None:
        if self.debug:
            self.check()


def _at(table: Tensor, rows: Tensor) -> Tensor:
    return table.index_select(0, rows.view(-1)).view_as(rows)


def _walk(node: int, parents: list[int]) -> list[int]:
    path = []
    while node:
        path.append(node)
        node = parents[node]
    return path


def _same(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise AssertionError(f"{what}: {found}, but it must be {expected}")

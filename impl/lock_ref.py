"""Locks on the nodes of a radix tree, as tensors: a batch of requests locks and releases its paths in one call.

A handle holds three parts: the full part of every node from its node up to the root, the SWA part of the nodes upward
until the attention window is filled, and the mamba state of its node alone. What it holds is found again from its node
and a token that marks the *boundary*, the highest node of its window. A split hands the token on to the new parent, so
no handle ever has to be searched for.

A lock may be taken over *tombstones*, nodes without an SWA part. A tree skips them or counts them. A tree that skips
them numbers the revivals of tombstones: a handle holds the SWA parts that are not younger than itself. A tree that
counts them raises the lock counts of all nodes of the window, and a part belongs to the handle once it is there.

On CUDA ``acquire``, ``release``, ``release_swa`` and ``lockable`` do not make the host wait for the device. All else
does, since it reads or makes tables: ``warm_up``; the edits of the tree ``add_leaf``, ``split``, ``mergeable``,
``merge``, ``held_alike``, ``revivable``, ``restore``, ``restore_swa``, ``set_mamba``, ``evict_leaf``, ``evict_swa``
and ``evict_mamba``; the sizes ``full_protected_size``, ``full_evictable_size``, ``swa_protected_size``,
``swa_evictable_size``, ``mamba_protected_size`` and ``mamba_evictable_size``; ``node``, ``top`` and ``state`` of a
handle; ``check``, and so every call with ``debug``. A scheduler that edits its tree at each step keeps the tree on the
CPU, as ``radix`` does. A call on another CUDA stream than the call before is ordered after it, see ``StreamOrder``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from impl import checks, kernels, lock_kernels
from impl.checks import expect
from impl.host import StreamOrder, upload
from impl.paths import FULL, MAMBA, SWA, Counts, HeldNodes, Paths

__all__ = ["LockHandle", "LockTree"]

NO_TOKEN = -1  # of a handle without an SWA part; the token of the root and of a node that left the tree is 0
NEVER = 1 << 62  # when the SWA part of a tombstone came to life
MOST = 1 << 62  # a key ends before so many tokens, so that no sum of two sizes leaves int64


class LockHandle:
    """What one request holds. Only ``LockTree.acquire`` makes handles.

    A handle is released once; its SWA part may be released earlier, once (SGLang's ``dec_swa_lock_only``).
    """

    __slots__ = ("number", "tree")

    def __init__(self, tree: LockTree, number: int) -> None:
        self.tree, self.number = tree, number

    @property
    def active(self) -> bool:
        """The handle has not been released."""
        return self in self.tree.active

    @property
    def holds_swa(self) -> bool:
        """The handle still holds its SWA part."""
        return self in self.tree.with_swa

    @property
    def node(self) -> int:
        """The node that the handle locks (on CUDA the host waits). ValueError once the handle is released."""
        return self._record()[0]

    @property
    def top(self) -> int:
        """The highest node whose SWA part the handle holds, 0 if none (on CUDA the host waits).

        ValueError once the handle is released.
        """
        node, token, *_ = self._record()
        if token == NO_TOKEN:
            return 0
        path = self.tree.paths.one(node)
        return int(path[self.tree.token.index_select(0, path).tolist().index(token)])

    @property
    def state(self) -> bool:
        """The handle holds the mamba state of its node (on CUDA the host waits). ValueError once it is released."""
        return self._record()[2] == 1

    def _record(self) -> list[int]:
        if not self.active:
            raise ValueError("the handle is released: it holds nothing")
        self.tree._in_order()
        return self.tree.held[self.number].tolist()

    def __repr__(self) -> str:
        return f"LockHandle({self.number}, {'active' if self.active else 'released'})"


class LockTree:
    """The nodes ``1..capacity`` below the root 0, who holds them, and the sizes of what is held and of what is not.

    Stands in for the lock counting of SGLang's radix caches (``inc_lock_ref``, ``dec_lock_ref``); keys, slots and
    states themselves are kept by the caller. ``window``: tokens of sliding window attention (at least 1 if
    ``windowed``). ``windowed``: nodes have an SWA part. ``stateful``: nodes can have a mamba state. A node that has
    lost its SWA part is a *tombstone*. ``counting``: locks count parts that are missing, instead of skipping them.

    Tables to read, which only the calls write, ``[capacity + 1]`` on the device: ``parent``; ``start`` and ``stop`` of
    the node's key (tokens from the root); ``alive`` (is in the tree; false for the root); ``swa`` and ``mamba`` (the
    node has that part); ``full_ref``, ``swa_ref``, ``mamba_ref`` (how many handles hold each part); ``token``; ``born``
    (how many tombstones had come to life in the tree when the node's SWA part did, ``NEVER`` for a tombstone). The
    paths take further entries of int64: the most nodes that there were x depth of the deepest node, about. A call takes
    time for the nodes that it is about, and none for the ``capacity``; ``check`` alone counts all.

    Every error is raised before anything changes. ``debug``: bad input is searched for on CUDA too, and every call ends
    with ``check``. ``backend``: ``torch``, or ``triton`` for locks in one launch; by default ``triton`` on CUDA.
    ``revivals``: how many tombstones have come to life.
    """

    def __init__(
        self, capacity: int, *, window: int, windowed: bool = True, stateful: bool = False, counting: bool = False,
        device: str | torch.device = "cpu", debug: bool = False, backend: str | None = None,
    ) -> None:  # fmt: skip
        self.window, self.debug = checks.integer("window", window, int(windowed)), debug
        self.capacity = checks.integer("capacity", capacity, 1)
        self.windowed, self.stateful, self.device = windowed, stateful, torch.device(device)
        self.counting = counting
        self._fused = kernels.backend_name(self.device, backend) == "triton"
        on_cpu = self.device.type == "cpu"
        self._alone = on_cpu and not self._fused  # a single lock has a way of its own
        self._check_content = debug or on_cpu
        self.parent, self.start, self.stop, self.token, self.born = (self._table(torch.int64) for _ in range(5))
        self.alive, self.swa, self.mamba = (self._table(torch.bool) for _ in range(3))
        self.paths = Paths(capacity + 1, self.device)
        parts = [FULL, *([SWA] if windowed else []), *([MAMBA] if stateful else [])]
        self.counts = Counts(capacity + 1, parts, self.device)
        self.full_ref, self.swa_ref, self.mamba_ref = self.counts.ref
        self.sizes = [0, 0, 0]  # tokens of all full and all SWA parts, and the number of states; known on the host
        self._free = list(range(capacity, 0, -1))
        self._tokens = 0
        self.revivals = 0
        # Records of handles: [number] -> node, token, state, and how many revivals there had been when it was taken.
        # Numbers are used again, handles are not.
        self.held = torch.zeros((0, 4), dtype=torch.int64, device=self.device)
        self._free_numbers: list[int] = []
        self._order = StreamOrder(self.device)
        self.active: set[LockHandle] = set()
        self.with_swa: set[LockHandle] = set()

    def _in_order(self) -> None:
        """A call begins that reads or writes tables of the tree on the current stream."""
        self._order.follow(self._on_device)

    def _on_device(self) -> Iterator[Tensor]:
        for part in (self, self.paths, self.counts):
            yield from (value for value in vars(part).values() if isinstance(value, Tensor))

    def _table(self, dtype: torch.dtype) -> Tensor:
        return torch.zeros(self.capacity + 1, dtype=dtype, device=self.device)

    def warm_up(self, depth: int) -> None:
        """Compile every Triton kernel that locks and releases launch on paths of up to ``depth`` nodes.

        No later call waits for a compiler then. No lock is taken, and nothing changes; with the backend ``torch`` there
        is nothing to do. ValueError for a depth of less than 1 node.
        """
        checks.integer("depth", depth, 1)
        if self._fused:
            scratch = LockTree(
                1, window=self.window, windowed=self.windowed, stateful=self.stateful, counting=self.counting,
                device=self.device, backend="triton",
            )  # fmt: skip
            lock_kernels.warm_up(scratch, depth)

    # Sizes. On CUDA the host waits for them.

    def full_evictable_size(self) -> int:
        """Tokens of the nodes that no handle holds."""
        return self.sizes[FULL] - self.full_protected_size()

    def full_protected_size(self) -> int:
        """Tokens of the nodes that a handle holds."""
        return self._protected(FULL)

    def swa_evictable_size(self) -> int:
        """Tokens of the nodes with an SWA part that no handle holds."""
        return self.sizes[SWA] - self.swa_protected_size()

    def swa_protected_size(self) -> int:
        """Tokens of the nodes whose SWA part a handle holds."""
        return self._protected(SWA)

    def mamba_evictable_size(self) -> int:
        """Number of mamba states that no handle holds."""
        return self.sizes[MAMBA] - self.mamba_protected_size()

    def mamba_protected_size(self) -> int:
        """Number of mamba states that a handle holds."""
        return self._protected(MAMBA)

    def _protected(self, part: int) -> int:
        self._in_order()
        return int(self.counts.protected[part])

    # Locks.

    def lockable(self, nodes: Tensor | Sequence[int]) -> Tensor:
        """``[n]`` bool on the device: each node is in the tree, and no node of its window is a tombstone.

        ``nodes``: ``[n]`` integers in ``0..capacity``; on the tree's device if they are a tensor. ValueError (on CPU,
        or with ``debug``) for a number outside.
        """
        nodes, rows = self._paths(nodes)
        return self._covered(nodes, rows, self._window(nodes, rows))

    def acquire(self, nodes: Tensor | Sequence[int], *, over_tombstones: bool = False) -> list[LockHandle]:
        """Lock each node and return one handle for each, in order. A node may be there several times.

        ``nodes``: ``[n]`` integers; on the tree's device if they are a tensor. ``over_tombstones``: nodes of a window
        may be tombstones, whose tokens count towards the window. ValueError for a node that is not in the tree, and
        without ``over_tombstones`` unless all nodes are lockable. That is checked on CPU, and everywhere with
        ``debug``; elsewhere ask ``lockable`` before.
        """
        if self._alone and (node := _only(nodes)) and (found := self._acquire_one(node, over_tombstones)):
            return [found]
        if self._fused:
            return self._acquire_fused(nodes, over_tombstones)
        nodes, rows = self._paths(nodes)
        if nodes.numel() == 0:
            return []
        near = self._window(nodes, rows)
        if self._check_content:
            self._check_lockable(nodes, rows, near, over_tombstones)
        token = torch.full_like(nodes, NO_TOKEN)
        if self.windowed:
            top = near.view(torch.uint8).argmax(1, keepdim=True)
            token = self.token.index_select(0, rows.gather(1, top)[:, 0])
        counts_state = self.counting and self.stateful
        state = torch.ones_like(nodes) if counts_state else self.mamba.index_select(0, nodes).to(torch.int64)
        taken = torch.full_like(nodes, self.revivals)
        numbers = self._new_numbers(nodes.numel())
        self.held.index_copy_(0, self._upload(numbers), torch.stack([nodes, token, state, taken], 1))
        held = HeldNodes(rows, self._taken(rows * near, taken), self._node_itself(rows, nodes, state))
        self.counts.shift(held, 1)
        return self._new_handles(numbers)

    def _acquire_fused(self, nodes: Tensor | Sequence[int], over_tombstones: bool) -> list[LockHandle]:
        """``acquire`` in one launch."""
        nodes = self._nodes(nodes)
        if nodes.numel() == 0:
            return []
        if self._check_content:
            _, rows = self._paths(nodes)
            self._check_lockable(nodes, rows, self._window(nodes, rows), over_tombstones)
        numbers = self._new_numbers(nodes.numel())
        lock_kernels.acquire_triton(self, nodes, self._upload(numbers))
        return self._new_handles(numbers)

    def release(self, handles: Iterable[LockHandle]) -> None:
        """Give back exactly what the handles hold.

        ValueError for a handle that is released already, is there twice, or is of another tree; TypeError for anything
        that is not a handle.
        """
        given = self._given(handles, self.active, "")
        if not given:
            return
        if self._alone and len(given) == 1:
            self._release_one(given[0])
            return
        numbers = self._numbers(given)
        if self._fused:
            lock_kernels.release_triton(self, self._upload(numbers), full=True, state=True)
        else:
            self._count_off(numbers)
        self.active.difference_update(given)
        self.with_swa.difference_update(given)
        self._free_numbers += numbers
        self._done()

    def release_swa(self, handles: Iterable[LockHandle], *, with_state: bool = False) -> None:
        """Give back the SWA parts of the handles early, as SGLang's ``dec_swa_lock_only`` does.

        ``with_state``: give back the mamba states too. What is given back here is not given back by ``release``.
        ValueError also for a handle that holds no SWA part; otherwise as for ``release``.
        """
        given = self._given(handles, self.with_swa, "holds no SWA part")
        if not given:
            return
        numbers = self._numbers(given)
        if self._fused:
            lock_kernels.release_triton(self, self._upload(numbers), full=False, state=with_state)
        else:
            self._count_off_swa(numbers, with_state)
        self.with_swa.difference_update(given)
        self._done()

    def _count_off(self, numbers: list[int]) -> None:
        nodes, tokens, states, taken = self._records(numbers)
        rows = self.paths.of(nodes)
        window = self._taken(self._from_boundary(tokens, rows), taken)
        self.counts.shift(HeldNodes(rows, window, self._node_itself(rows, nodes, states)), -1)

    def _count_off_swa(self, numbers: list[int], with_state: bool) -> None:
        nodes, tokens, states, taken = self._records(numbers)
        rows = self.paths.of(nodes)
        none = torch.zeros_like(rows)
        own = self._node_itself(rows, nodes, states) if with_state else none
        self.counts.shift(HeldNodes(none, self._taken(self._from_boundary(tokens, rows), taken), own), -1)
        self.held[:, 1].index_fill_(0, self._upload(numbers), NO_TOKEN)
        if with_state:
            self.held[:, 2].index_fill_(0, self._upload(numbers), 0)

    # The tree.

    def add_leaf(self, under: int, stop: int, *, swa: bool = True, mamba: bool = False) -> int:
        """Add a leaf below the node ``under`` (0: the root), whose key ends at ``stop`` tokens; returns its node.

        ``swa``: it has an SWA part; without, it is a tombstone. ``mamba``: it has a state. A part that the tree does
        not have is ignored. RuntimeError if the tree is full. ValueError if ``under`` is not in the tree or the key
        would have no token.
        """
        under = self._node("under", under, root=True)
        first = int(self.stop[under])
        if not first < checks.integer("stop", stop, 1) < MOST:
            raise ValueError(f"stop must lie behind {first}, where node {under} stops, and below 2**62, got {stop}")
        swa, mamba = swa and self.windowed, mamba and self.stateful
        leaf = self._new_node()
        self._set(
            leaf, parent=under, start=first, stop=stop, alive=True, swa=swa, mamba=mamba, token=self._next_token(),
            born=0 if swa else NEVER,
        )  # fmt: skip
        self.paths.add(leaf, under)
        self._weigh(leaf)
        self.sizes[FULL] += stop - first
        self.sizes[SWA] += (stop - first) * swa
        self.sizes[MAMBA] += int(mamba)
        self._done()
        return leaf

    def split(self, child: int, at: int) -> int:
        """Cut the key of ``child`` at ``at`` tokens from the root; returns the new parent, which has the upper part.

        The new parent gets the child's full and SWA locks. The child keeps its mamba state. Handles whose SWA part
        ended at the child end at the new parent. RuntimeError if the tree is full. ValueError if ``child`` is not in
        the tree or ``at`` is not within its key.
        """
        child = self._node("child", child)
        first, last = int(self.start[child]), int(self.stop[child])
        if not first < checks.integer("at", at, 0) < last:
            raise ValueError(f"at must lie within node {child}'s key, between {first} and {last}, got {at}")
        new = self._new_node()
        copied = (self.parent, self.start, self.alive, self.swa, self.full_ref, self.swa_ref, self.token, self.born)
        for table in copied:
            table[new] = table[child]
        self._set(new, stop=at)
        self._set(child, parent=new, start=at, token=self._next_token())
        self.paths.insert(new, child)
        self._weigh(new)
        self._weigh(child)
        self._done()
        return new

    def mergeable(self, node: int) -> bool:
        """``merge`` takes this node: it is the only child of its parent, and every handle holds both alike."""
        node = self._node("node", node)
        above = int(self.parent[node])
        if not above or bool(self.mamba[above]) or self.paths.children(above) > 1:
            return False
        # A handle on a node below holds the full parts of both, so with equal counts no handle ends at the parent.
        return bool(self.swa[above] == self.swa[node] and self.full_ref[above] == self.full_ref[node]) and (
            self.held_alike(above, node)
        )

    def held_alike(self, above: int, node: int) -> bool:
        """Each handle holds the SWA parts of both nodes, or of neither. A subclass may override this."""
        self._in_order()
        if not self.windowed or not self.active:
            return True
        nodes, tokens, _, taken = self._records(self._numbers(list(self.active)))
        held = self._taken(self._from_boundary(tokens, self.paths.of(nodes)), taken)
        return torch.equal((held == above).any(1), (held == node).any(1))

    def merge(self, node: int) -> int:
        """``node`` takes in its parent, of which it is the only child; returns the parent, which leaves the tree.

        ``node`` keeps its state and its locks. Its key begins where the parent's key began. ValueError unless the node
        is ``mergeable``.
        """
        node = self._node("node", node)
        _refuse(not self.mergeable(node), f"node: node {node} cannot take in its parent")
        above = int(self.parent[node])
        # Handles may end at either node; from now on both tokens are one.
        self.held[:, 1].masked_fill_(self.held[:, 1] == self.token[node], int(self.token[above]))
        born = torch.maximum(self.born[node], self.born[above])
        self._set(node, parent=self.parent[above], start=self.start[above], token=self.token[above], born=born)
        self.paths.remove(above)
        self._weigh(node)
        self.counts.ref[:, above] = 0
        self._set(above, parent=0, start=0, stop=0, alive=False, swa=False, token=0)
        self._free.append(above)
        self._done()
        return above

    def _weigh(self, node: int) -> None:
        span = self._span(node)
        self.counts.weigh(node, span, span * int(self.swa[node]), int(self.mamba[node]))

    def revivable(self, node: int) -> bool:
        """An insert may give the tombstone ``node`` other slots: it is one, and no handle holds its full part.

        ``restore`` refuses any other node. Somebody who holds the full part reads the slots that would be freed. A
        subclass may override this.
        """
        self._in_order()
        return self.windowed and not self.swa[node] and int(self.full_ref[node]) == 0

    def restore(self, node: int) -> None:
        """A tombstone gets an SWA part again, since the caller has replaced its slots.

        ValueError if the node is not a tombstone or not ``revivable``.
        """
        self._check_tombstone(node)
        _refuse(not self.revivable(node), f"node: node {node} is held, so somebody still reads its slots")
        self._revive(node)

    def restore_swa(self, node: int) -> None:
        """A tombstone gets an SWA part again and keeps its full slots, so handles may hold it.

        Handles that skipped it hold nothing of the new part. With ``counting``, handles that count it hold it from now
        on. ValueError if the node is not a tombstone.
        """
        self._check_tombstone(node)
        self._revive(node)

    def _check_tombstone(self, node: int) -> None:
        node = self._node("node", node)
        _refuse(not self.windowed, "node: the tree has no SWA part")
        _refuse(bool(self.swa[node]), f"node: expected a tombstone, node {node} is not a tombstone")

    def _revive(self, node: int) -> None:
        self.revivals += 1
        self._set(node, swa=True, born=self.revivals)
        self.counts.gain(SWA, node, self._span(node))
        self.sizes[SWA] += self._span(node)
        self._done()

    def set_mamba(self, node: int) -> None:
        """A node gets a mamba state. ValueError if it has one, or if the tree has no states."""
        node = self._node("node", node)
        _refuse(not self.stateful, "node: the tree has no mamba states")
        _refuse(bool(self.mamba[node]), f"node: node {node} has a mamba state already")
        self._set(node, mamba=True)
        self.counts.gain(MAMBA, node, 1)
        self.sizes[MAMBA] += 1
        self._done()

    def evict_leaf(self, node: int) -> None:
        """A leaf leaves the tree with all its parts. ValueError if the node has children or is held."""
        node = self._node("node", node)
        _refuse(self.paths.children(node) > 0, f"node: node {node} is not a leaf")
        _refuse(int(self.full_ref[node]) > 0, f"node: node {node} is held")
        span = self._span(node)
        self.sizes[FULL] -= span
        self.sizes[SWA] -= span * int(self.swa[node])
        self.sizes[MAMBA] -= int(self.mamba[node])
        self._set(node, parent=0, start=0, stop=0, alive=False, swa=False, mamba=False, token=0)
        self.paths.drop(node)
        self._free.append(node)
        self._done()

    def evict_swa(self, node: int) -> None:
        """A node loses its SWA part and becomes a tombstone. ValueError if it has none, or if that part is held."""
        node = self._node("node", node)
        _refuse(not self.swa[node], f"node: node {node} has no SWA part")
        _refuse(int(self.swa_ref[node]) > 0, f"node: node {node}'s SWA part is held")
        self._set(node, swa=False, born=NEVER)
        self._weigh(node)
        self.sizes[SWA] -= self._span(node)
        self._done()

    def evict_mamba(self, node: int) -> None:
        """A node loses its mamba state. ValueError if it has none, or if the state is held."""
        node = self._node("node", node)
        _refuse(not self.mamba[node], f"node: node {node} has no mamba state")
        _refuse(int(self.mamba_ref[node]) > 0, f"node: node {node}'s mamba state is held")
        self._set(node, mamba=False)
        self._weigh(node)
        self.sizes[MAMBA] -= 1
        self._done()

    def _node(self, name: str, node: int, *, root: bool = False) -> int:
        self._in_order()
        node = int(checks.integer(name, node, 0))
        if node > self.capacity or not (self.alive[node] or (root and node == 0)):
            raise ValueError(f"{name}: there is no node {node}" if node else f"{name} must be a node below the root")
        return node

    def _new_node(self) -> int:
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

    # One lock on a CPU: what ``acquire`` and ``release`` do for a batch, see ``paths``.

    def _acquire_one(self, node: int, over_tombstones: bool) -> LockHandle | None:
        """A handle for the node; None, with nothing changed, where it cannot be locked."""
        if node > self.capacity or not self.alive.numpy()[node]:
            return None
        path = self.paths.alone(node)
        near, token = path[:0], NO_TOKEN
        if self.windowed:
            stop = self.stop.numpy()
            near = path[int(np.searchsorted(stop[path], stop[node] - self.window, side="right")) :]
            if not over_tombstones and not self.swa.numpy()[near].all():
                return None
            token = self.token.numpy()[near[0]]
        state = int((self.counting and self.stateful) or self.mamba.numpy()[node])
        if not self._free_numbers:
            self._more_numbers(1)
        number = self._free_numbers.pop()
        self.held.numpy()[number] = node, token, state, self.revivals
        self._shift_one(path, near, state, self.revivals, 1)
        handle = LockHandle(self, number)
        self.active.add(handle)
        if self.windowed:
            self.with_swa.add(handle)
        self._done()
        return handle

    def _release_one(self, handle: LockHandle) -> None:
        node, token, state, taken = self.held.numpy()[handle.number].tolist()
        path = self.paths.alone(node)
        near = path[:0]
        if self.windowed and token != NO_TOKEN:
            near = path[int((self.token.numpy()[path] == token).argmax()) :]
        self._shift_one(path, near, state, taken, -1)
        self.active.remove(handle)
        self.with_swa.discard(handle)
        self._free_numbers.append(handle.number)
        self._done()

    def _shift_one(
        self, path: np.ndarray[Any, Any], near: np.ndarray[Any, Any], state: int, taken: int, by: int
    ) -> None:
        """Count one handle: the full parts of ``path``, the SWA parts of ``near``, the state of the path's end."""
        self.counts.shift_one(FULL, path, by)
        if self.windowed:
            if not self.counting:
                near = near[self.born.numpy()[near] <= taken]
            self.counts.shift_one(SWA, near, by)
        if self.stateful and state:
            self.counts.shift_one(MAMBA, path[-1:], by)

    # Parts of paths. ``rows``: ``[n, width]``, the path of each node, 0 where there is none.

    def _paths(self, nodes: Tensor | Sequence[int]) -> tuple[Tensor, Tensor]:
        """``[n]`` int64 on the device, and the paths of these nodes."""
        nodes = self._nodes(nodes)
        # A number outside of the tables stops a CUDA device for good, so it must not come as far as the tables.
        if self._check_content and nodes.numel() and not 0 <= int(nodes.min()) <= int(nodes.max()) <= self.capacity:
            raise ValueError(f"nodes must lie within 0..{self.capacity}, got {nodes.tolist()}")
        return nodes, self.paths.of_any(nodes)

    def _nodes(self, nodes: Tensor | Sequence[int]) -> Tensor:
        """``[n]`` int64 on the device."""
        self._in_order()
        if not isinstance(nodes, Tensor):
            nodes = self._upload(list(nodes))
        checks.int_tensor("nodes", nodes, self.device)
        return nodes.to(torch.int64)

    def _window(self, nodes: Tensor, rows: Tensor) -> Tensor:
        """``[n, width]`` bool: the nodes of each path upward until the window is filled."""
        if not self.windowed:
            return torch.zeros_like(rows, dtype=torch.bool)
        left = self.stop.index_select(0, nodes)[:, None] - self.window
        return (_at(self.stop, rows) > left) & (rows > 0)

    def _covered(self, nodes: Tensor, rows: Tensor, near: Tensor) -> Tensor:
        """``[n]`` bool: the node is in the tree, and all nodes in ``near`` have an SWA part."""
        return self.alive.index_select(0, nodes) & ~(near > _at(self.swa, rows)).any(1)

    def _node_itself(self, rows: Tensor, nodes: Tensor, states: Tensor) -> Tensor:
        """The path's own node where its state is held, 0 elsewhere. A tree without states does not read this."""
        return rows * (rows == (nodes * states)[:, None]) if self.stateful else rows

    def _from_boundary(self, tokens: Tensor, rows: Tensor) -> Tensor:
        """The nodes of each path from the boundary with the token down; none for ``NO_TOKEN``."""
        if not self.windowed:
            return rows
        return rows * (_at(self.token, rows) == tokens[:, None]).cumsum(1)

    def _taken(self, window: Tensor, taken: Tensor) -> Tensor:
        """The nodes of each window whose SWA part is held, 0 elsewhere: all, or those with a part older than the lock.

        ``taken``: for each window, how many revivals there had been when it was locked.
        """
        if self.counting or not self.windowed:
            return window
        return window * (_at(self.born, window) <= taken[:, None])

    def _check_lockable(self, nodes: Tensor, rows: Tensor, near: Tensor, over_tombstones: bool) -> None:
        lockable = self._covered(nodes, rows, torch.zeros_like(near) if over_tombstones else near)
        if lockable.all():
            return
        node = int(nodes[int(lockable.int().argmin())])
        why = "its window has a tombstone" if self.alive[node] else "it is not a node below the root"
        raise ValueError(f"nodes: node {node} cannot be locked: {why}")

    # Handles.

    def _new_numbers(self, count: int) -> list[int]:
        if count > len(self._free_numbers):
            self._more_numbers(count)
        numbers = self._free_numbers[-count:]
        del self._free_numbers[-count:]
        return numbers

    def _new_handles(self, numbers: list[int]) -> list[LockHandle]:
        """The handles of these numbers, whose records are written and whose nodes are counted."""
        handles = list(map(LockHandle, repeat(self), numbers))
        self.active.update(handles)
        if self.windowed:
            self.with_swa.update(handles)
        self._done()
        return handles

    def _more_numbers(self, count: int) -> None:
        more = max(count, len(self.held), 64)
        self._free_numbers += range(len(self.held) + more - 1, len(self.held) - 1, -1)
        self.held = torch.cat([self.held, self.held.new_zeros((more, 4))])

    @staticmethod
    def _numbers(handles: list[LockHandle]) -> list[int]:
        return list(map(attrgetter("number"), handles))

    def _records(self, numbers: list[int]) -> tuple[Tensor, ...]:
        """What is recorded for the handles of these numbers: nodes, tokens, states, revivals, ``[n]`` int64 each."""
        return self.held.index_select(0, self._upload(numbers)).unbind(1)

    def _given(self, handles: Iterable[LockHandle], among: set[LockHandle], why: str) -> list[LockHandle]:
        """The handles, all different and all in ``among``; ``why`` one may be missing there though it is active."""
        self._in_order()
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
        return upload(torch.tensor(numbers, dtype=torch.int64), self.device)

    # Looking for errors.

    def check(self) -> None:
        """Count everything again from the active handles, node by node. AssertionError says what differs."""
        self._in_order()
        parents: list[int] = self.parent.tolist()
        refs = [[0] * (self.capacity + 1) for _ in range(3)]
        for handle in self.active:
            for counts, nodes in zip(refs, self._holds(handle, parents), strict=True):
                for n in nodes:
                    counts[n] += 1
        root = [bool(self.alive[0]), *self.counts.ref[:, 0].tolist()]
        expect("alive and lock counts of the root", root, [False, 0, 0, 0])
        for n in self.alive.nonzero()[:, 0].tolist():
            expect(f"path of node {n}", [m for m in self.paths.table[n].tolist() if m], _walk(n, parents)[::-1])
            expect(f"start of node {n}", int(self.start[n]), int(self.stop[parents[n]]))
        expect("handles that hold an SWA part and are released", self.with_swa - self.active, set())
        there = (self.alive, self.alive & self.swa, self.alive & self.mamba)
        spans: list[list[int]] = self.counts.weight.tolist()
        for part, name in enumerate(("full", "swa", "mamba")):
            expect(f"{name}_ref", self.counts.ref[part].tolist(), refs[part])
            values = there[part].nonzero()[:, 0].tolist()
            expect(f"{name} tokens", self.sizes[part], sum(spans[part][n] for n in values))
            held = sum(spans[part][n] for n in values if refs[part][n])
            expect(f"{name}_protected_size", int(self.counts.protected[part]), held)

    def _holds(self, handle: LockHandle, parents: list[int]) -> tuple[list[int], list[int], list[int]]:
        """The nodes of each part that the handle holds, found by walking up; each must have the part, or be counted."""
        node, token, state, taken = self.held[handle.number].tolist()
        path = _walk(node, parents)
        tokens = self.token[path].tolist()
        expect(f"{handle!r} has an SWA part", token != NO_TOKEN, handle.holds_swa)
        expect(f"{handle!r}: its boundary lies on its path", token in tokens, token != NO_TOKEN)
        window = path[: tokens.index(token) + 1] if token in tokens else []
        if not self.counting:
            window = [n for n in window if int(self.born[n]) <= taken]
            bare = [n for n in window if not self.swa[n]]
            expect(f"{handle!r} holds what is not there: SWA parts of nodes", bare, [])
            expect(f"{handle!r} holds a state that is not there", bool(state) and not self.mamba[node], False)
        return path, window, [node] * state

    def _done(self) -> None:
        if self.debug:
            self.check()


def _only(nodes: Tensor | Sequence[int]) -> int:
    """The node, if there is exactly one and it may be below the root; else 0."""
    if isinstance(nodes, Tensor):
        nodes = nodes.tolist() if nodes.shape == (1,) and nodes.dtype == torch.int64 else ()
    plain = type(nodes) is list and len(nodes) == 1 and type(nodes[0]) is int and nodes[0] > 0
    return nodes[0] if plain else 0


def _at(table: Tensor, rows: Tensor) -> Tensor:
    """``[n, width]``: the table's value for each node of the paths."""
    return table.index_select(0, rows.view(-1)).view_as(rows)


def _walk(node: int, parents: list[int]) -> list[int]:
    """The node and all nodes above it, below the root."""
    path = []
    while node:
        path.append(node)
        node = parents[node]
    return path


def _refuse(wrong: bool, why: str) -> None:
    if wrong:
        raise ValueError(why)

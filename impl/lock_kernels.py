"""Locks of a batch in one Triton launch each: what ``LockTree.acquire`` and ``release`` do in plain torch.

A program has one handle. It counts the handle on the nodes of its path by atomic additions. Of several handles of a
batch that hold one part, the one whose addition finds the count at 0 (or takes it there) changes the protected size.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from impl.kernels import jit, pow2
from impl.paths import Counts, Paths

tl: Any = None  # triton.language, once a kernel is used: see kernels.jit


class Tree(Protocol):
    """What the kernels need of a ``LockTree``, which says what each table is."""

    capacity: int
    window: int
    windowed: bool
    stateful: bool
    counting: bool
    revivals: int
    stop: Tensor
    token: Tensor
    born: Tensor
    mamba: Tensor
    held: Tensor
    paths: Paths
    counts: Counts


def _acquire_kernel(  # type: ignore[no-untyped-def]
    nodes_ptr, numbers_ptr, held_ptr, path_ptr, stop_ptr, token_ptr, born_ptr, mamba_ptr, ref_ptr, weight_ptr,
    protected_ptr, revivals, window, n_nodes, n_paths, width, WINDOWED: tl.constexpr, STATEFUL: tl.constexpr,
    COUNTING: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    node = tl.load(nodes_ptr + row).to(tl.int64)
    number = tl.load(numbers_ptr + row)
    known = (node > 0) & (node < n_nodes)
    at = tl.arange(0, WIDTH)
    path = tl.load(path_ptr + node * width + at, mask=at < tl.where(known & (node < n_paths), width, 0), other=0)
    live = path > 0

    old = tl.atomic_add(ref_ptr + path, 1, mask=live, sem="relaxed")
    size = tl.load(weight_ptr + path, mask=live & (old == 0), other=0)
    tl.atomic_add(protected_ptr, tl.sum(size, axis=0), sem="relaxed")

    if WINDOWED:
        stop = tl.load(stop_ptr + path, mask=live, other=0)
        near = live & (stop > tl.load(stop_ptr + node, mask=known, other=0) - window)
        first = tl.min(tl.where(near, at, WIDTH), axis=0)
        top = tl.max(tl.where(at == first, path, 0), axis=0)
        tl.store(held_ptr + number * 4 + 1, tl.load(token_ptr + top))
        if not COUNTING:
            near = near & (tl.load(born_ptr + path, mask=live, other=0) <= revivals)
        old = tl.atomic_add(ref_ptr + n_nodes + path, 1, mask=near, sem="relaxed")
        size = tl.load(weight_ptr + n_nodes + path, mask=near & (old == 0), other=0)
        tl.atomic_add(protected_ptr + 1, tl.sum(size, axis=0), sem="relaxed")
    else:
        tl.store(held_ptr + number * 4 + 1, -1)

    state = tl.load(mamba_ptr + node, mask=known, other=0).to(tl.int64)
    if STATEFUL:
        if COUNTING:
            state = known.to(tl.int64)
        own = live & (path == tl.where(state > 0, node, 0))
        old = tl.atomic_add(ref_ptr + 2 * n_nodes + path, 1, mask=own, sem="relaxed")
        size = tl.load(weight_ptr + 2 * n_nodes + path, mask=own & (old == 0), other=0)
        tl.atomic_add(protected_ptr + 2, tl.sum(size, axis=0), sem="relaxed")
    tl.store(held_ptr + number * 4, node)
    tl.store(held_ptr + number * 4 + 2, state)
    tl.store(held_ptr + number * 4 + 3, revivals)


def _release_kernel(  # type: ignore[no-untyped-def]
    numbers_ptr, held_ptr, path_ptr, token_ptr, born_ptr, ref_ptr, weight_ptr, protected_ptr, n_nodes, n_paths, width,
    FULL: tl.constexpr, WINDOWED: tl.constexpr, STATE: tl.constexpr, COUNTING: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    number = tl.load(numbers_ptr + tl.program_id(0))
    node = tl.load(held_ptr + number * 4)
    token = tl.load(held_ptr + number * 4 + 1)
    state = tl.load(held_ptr + number * 4 + 2)
    taken = tl.load(held_ptr + number * 4 + 3)
    at = tl.arange(0, WIDTH)
    path = tl.load(path_ptr + node * width + at, mask=at < tl.where(node < n_paths, width, 0), other=0)
    live = path > 0

    if FULL:
        old = tl.atomic_add(ref_ptr + path, -1, mask=live, sem="relaxed")
        size = tl.load(weight_ptr + path, mask=live & (old == 1), other=0)
        tl.atomic_add(protected_ptr, -tl.sum(size, axis=0), sem="relaxed")
    if WINDOWED:
        tokens = tl.load(token_ptr + path, mask=live, other=0)
        first = tl.min(tl.where(live & (tokens == token), at, WIDTH), axis=0)
        near = live & (at >= first)
        if not COUNTING:
            near = near & (tl.load(born_ptr + path, mask=live, other=0) <= taken)
        old = tl.atomic_add(ref_ptr + n_nodes + path, -1, mask=near, sem="relaxed")
        size = tl.load(weight_ptr + n_nodes + path, mask=near & (old == 1), other=0)
        tl.atomic_add(protected_ptr + 1, -tl.sum(size, axis=0), sem="relaxed")
        if not FULL:
            tl.store(held_ptr + number * 4 + 1, -1)
    if STATE:
        own = live & (path == tl.where(state > 0, node, 0))
        old = tl.atomic_add(ref_ptr + 2 * n_nodes + path, -1, mask=own, sem="relaxed")
        size = tl.load(weight_ptr + 2 * n_nodes + path, mask=own & (old == 1), other=0)
        tl.atomic_add(protected_ptr + 2, -tl.sum(size, axis=0), sem="relaxed")
        if not FULL:
            tl.store(held_ptr + number * 4 + 2, 0)


def acquire_triton(tree: Tree, nodes: Tensor, numbers: Tensor) -> None:
    """Count a handle on each node, and write its record.

    ``nodes``: ``[n]`` int64 on the device, nodes of the tree. ``numbers``: ``[n]`` int64 on the device, those of the
    handles.
    """
    nodes_in_all, (n_paths, width) = tree.capacity + 1, tree.paths.table.shape
    jit(_acquire_kernel)[(nodes.numel(),)](
        nodes, numbers, tree.held, tree.paths.table, tree.stop, tree.token, tree.born, tree.mamba, tree.counts.ref,
        tree.counts.weight, tree.counts.protected, tree.revivals, tree.window, nodes_in_all, n_paths, width,
        WINDOWED=tree.windowed, STATEFUL=tree.stateful, COUNTING=tree.counting, WIDTH=pow2(width),
    )  # fmt: skip


def release_triton(tree: Tree, numbers: Tensor, *, full: bool, state: bool) -> None:
    """Give back what the handles of these numbers (``[n]`` int64 on the device) hold: the SWA parts, with ``full`` the
    full parts, with ``state`` the states. Without ``full`` their records say so afterwards.
    """
    nodes_in_all, (n_paths, width) = tree.capacity + 1, tree.paths.table.shape
    jit(_release_kernel)[(numbers.numel(),)](
        numbers, tree.held, tree.paths.table, tree.token, tree.born, tree.counts.ref, tree.counts.weight,
        tree.counts.protected, nodes_in_all, n_paths, width,
        FULL=full, WINDOWED=tree.windowed, STATE=tree.stateful and state, COUNTING=tree.counting, WIDTH=pow2(width),
    )  # fmt: skip


def warm_up(tree: Tree, depth: int) -> None:
    """Compile what locks and releases need on paths of up to ``depth`` nodes, by launches that count nothing.

    ``tree``: an empty tree of one node, with the options of the tree that is used later; it is of no use afterwards.
    """
    none = tree.stop.new_zeros(1)
    tree.held = tree.held.new_zeros((1, 4))
    width = 4
    while True:
        tree.paths.table = tree.paths.table.new_zeros((2, width))
        acquire_triton(tree, none, none)
        release_triton(tree, none, full=True, state=True)
        release_triton(tree, none, full=False, state=True)
        release_triton(tree, none, full=False, state=False)
        if width >= depth:
            return
        width *= 2

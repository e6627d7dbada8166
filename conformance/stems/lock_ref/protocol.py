"""What an engine must implement to be driven as the stem ``lock_ref``: a radix tree whose nodes are locked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from conformance.driver.protocol import Engine


@dataclass(frozen=True)
class NodePart:
    """One component (``full``, ``swa`` or ``mamba``) of a tree node.

    ``slots``: the slots of the component, one for each token of the node's key (``mamba``: one state slot), in its own
    pool. It is ``None`` for a tombstone (``swa``), and where the node has no state (``mamba``). ``lock``: the lock
    count of the component; ``None`` where the engine does not show it. ``held``: whether the lock count is above zero,
    for an engine that shows no more than that; ``None`` where it does not show that either.
    """

    slots: list[int] | None
    lock: int | None
    held: bool | None = None


@dataclass(frozen=True)
class NodeSnapshot:
    """One tree node: its number, its parent's number, its key, and its parts by component.

    ``id`` stays with the node; the root has the id 0 and the parent ``None``. ``key``: the node's own token ids, those
    of its ancestors not included.
    """

    id: int
    parent: int | None
    key: list[int]
    parts: Mapping[str, NodePart]


@dataclass(frozen=True)
class LockRefSnapshot:
    """The tree as it is now.

    ``nodes``: all nodes with the root, each after its parent. ``evictable``, ``protected``: the sizes that the tree
    reports for each component, in tokens (``mamba``: states). ``free``: the numbers of the available pages of each
    component's pool (``mamba``: state slots).
    """

    nodes: list[NodeSnapshot]
    evictable: Mapping[str, int]
    protected: Mapping[str, int]
    free: Mapping[str, list[int]]


class PrefixMatch(NamedTuple):
    """What a match has found.

    ``length``: how many tokens. ``node``: the id of the node at which the matched prefix ends. ``slots``: its full
    slots.
    """

    length: int
    node: int
    slots: list[int]


class Inserted(NamedTuple):
    """What an insert has done.

    ``prefix``: how many tokens of the key the tree had already. ``fresh``: the full slots that the engine allocated
    for the row's tokens from ``protected`` on, in order. Slots of tokens after the last whole page may be left out.
    """

    prefix: int
    fresh: list[int]


class LockRefEngine(Engine, Protocol):
    """A radix tree over its pools, called by requests that hold lock handles.

    Configuration: ``page_size`` (tokens), ``components`` (which of ``full``, ``swa`` and ``mamba`` the tree has),
    ``size``, ``size_swa`` (pages), ``size_mamba`` (states), ``window`` (tokens), and ``kind``, for an
    engine that has several trees: one of those that it declares (``conformance.stems.kinds``).

    Beside calls, ``lacks`` may name three abilities: ``state_goes_early`` (see ``release_swa``), ``counts_missing`` and
    ``pinned_by_requests`` (see ``pin``).
    """

    def insert(self, tokens: list[int], cursor: int, protected: int) -> Inserted | None:
        """A request inserts its row into the tree.

        The engine first allocates the slots of the row that the tree does not own. ``tokens``: the key, token ids from
        the root on. ``protected``: the length of the cached prefix, in tokens; the tree owns its slots, and the
        request holds a handle on it. ``cursor``: before the insert the engine frees the SWA slots of the row's own
        tokens below it, since they have left the window. ``protected`` and ``cursor`` are multiples of the page size.

        Pages that the tree has already are freed as duplicates, or revive tombstones. A tombstone that no handle holds
        may take over the row's full slots with their SWA slots. A tombstone that a handle holds keeps its own full
        slots and takes over the SWA slots alone; the row's full slots are freed. With ``mamba`` the row brings a state
        for its last node; a node that has a state keeps its own. Tokens after the last whole page are not inserted.
        Returns ``None`` if there is not enough memory.
        """

    def match(self, tokens: list[int]) -> PrefixMatch:
        """Finds the longest prefix of the token ids in the tree that a request may lock.

        The prefix must end at a node, no node of its window may be a tombstone, and with ``mamba`` the node must have
        a state. A match of length 0 ends at the root. The call may split nodes and change the order of use, and
        nothing else.
        """

    def copy_on_write(self, tokens: list[int]) -> PrefixMatch:
        """Matches for a request that wants its own copy of the node's mamba state. Returns the match.

        The tree may evict an unlocked state for the copy, and may lock the matched node meanwhile. Sent only in a tree
        with ``mamba``, and only if a state is free or another node can give one up. The copy itself is freed before
        the call returns.
        """

    def acquire(self, node: int) -> int:
        """Locks a node (its ``id`` in the snapshot) that a match has just returned.

        Returns a new number for the lock handle. The handle locks the full part of the path up to the root, the SWA
        parts of the window that ends at the node, and the node's state.
        """

    def pin(self, node: int) -> int:
        """Locks a node (its ``id`` in the snapshot) for a caller that keeps it in the tree and goes on from nothing.

        Returns a new number for the lock handle, as ``acquire`` does. Nodes of the window may be tombstones, and the
        node may have no state. The engine either skips a missing part, or raises its lock count. In the second case
        the handle holds the part as soon as it comes to life. An engine that has the ability ``counts_missing`` raises
        it, also where its snapshot does not show the lock counts of missing parts. The window ends where its tokens
        fill the window, and the tokens of tombstones count or do not count.

        Where no request and no session of an engine ever locks over tombstones, ``lacks`` has the word
        ``pinned_by_requests``. The caller ``temporary`` then releases each handle that ``pin`` has returned, and its
        SWA part is not released early.
        """

    def compact(self) -> None:
        """Merges nodes into their parents, where a node is the only child and all handles hold both nodes alike.

        The merged node may have the number of either. An engine that merges nodes in other calls lacks this one.
        """

    def release(self, handle: int, caller: str) -> None:
        """Releases a handle, which must give back exactly what it still holds.

        ``caller`` says what the caller has kept of the handle. ``request``: everything, also whether the SWA part was
        released early. ``session``: a streaming session has kept no note of an early release. ``temporary``: a lock
        around one call, never released early.
        """

    def release_swa(self, handle: int) -> None:
        """Releases the SWA part of a handle early; the handle keeps the rest.

        Sent at most once for a handle, after a long decode. The state stays locked, unless the engine has the ability
        ``state_goes_early``: then the state's lock is released too, and ``release`` does not release it again.
        """

    def evict(self, full: int, swa: int, mamba: int) -> None:
        """Evicts nodes and parts of nodes that no handle holds, until enough is freed or nothing more can be evicted.

        ``full``, ``swa``: how much to free of each pool, in tokens. ``mamba``: how many states to free.
        """

    def bad(self, kind: str) -> None:
        """Makes one call of its own with bad input.

        It must raise ``ValueError``, ``TypeError`` or ``RuntimeError`` and change nothing. ``kind``: see ``BAD`` in
        conformance/stems/lock_ref/rules.py.
        """

    def snapshot(self) -> LockRefSnapshot:
        """Reads the tree and its pools as they are now, and changes nothing. Sent once after each call."""

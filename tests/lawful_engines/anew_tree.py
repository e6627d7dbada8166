"""A radix tree that makes room before it looks: an insert first takes slots for its whole row, and evicts for them what
nobody has locked, also the very leaf that has the row's tokens. Then it inserts the row, anew where the leaf is gone.

Page size 1, full attention alone. An engine of the stem ``lock_ref``, as an engineer would write the cache of a small
server: nodes are Python objects, a lock is a count on each node of a path, the free list is a stack.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, takewhile

from slotproof.plugin import Inserted, Json, LockRefSnapshot, NodePart, NodeSnapshot, PrefixMatch, Unsupported


class Node:
    """One node: the token ids of its own key, a slot for each of them, its children by their first token, how many
    handles lock it, and when it was used last.
    """

    def __init__(self, number: int, parent: Node | None, key: list[int], slots: list[int]) -> None:
        self.number, self.parent, self.key, self.slots = number, parent, key, slots
        self.children: dict[int, Node] = {}
        self.locks = self.used = 0

    def path(self) -> Iterator[Node]:
        """This node and those above it, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def below(self) -> Iterator[Node]:
        """All nodes below this one, each after its parent."""
        for child in self.children.values():
            yield child
            yield from child.below()


class AnewTree:
    """The tree over a pool of ``size`` slots."""

    fragile = False
    lacks = ("pin", "compact", "copy_on_write", "release_swa", "bad")

    def __init__(self, size: int) -> None:
        self.free = list(range(size, 0, -1))
        self.numbers, self.clock, self.handles = count(1), count(1), count(1)
        self.root = Node(0, None, [], [])
        self.held: dict[int, Node] = {}

    def insert(self, tokens: list[int], cursor: int, protected: int) -> Inserted | None:
        """Takes slots for the tokens from ``protected`` on, then gives the tree what it does not have."""
        del cursor
        fresh = self._take(len(tokens) - protected)
        if fresh is None:
            return None
        node, found = self._walk(tokens)
        self.free += fresh[: found - protected]  # the tree has these tokens already
        if found < len(tokens):
            leaf = Node(next(self.numbers), node, tokens[found:], fresh[found - protected :])
            node.children[tokens[found]], leaf.used = leaf, next(self.clock)
        return Inserted(found, fresh)

    def match(self, tokens: list[int]) -> PrefixMatch:
        """The longest prefix in the tree. A node that it ends in is split."""
        node, found = self._walk(tokens)
        slots = [slot for above in reversed(list(node.path())) for slot in above.slots]
        return PrefixMatch(found, node.number, slots)

    def acquire(self, node: int) -> int:
        """Locks the path of a node."""
        handle = next(self.handles)
        self.held[handle] = next(below for below in self.root.below() if below.number == node)
        for above in self.held[handle].path():
            above.locks += 1
        return handle

    def release(self, handle: int, caller: str) -> None:
        """Unlocks the path of a handle's node."""
        del caller
        for above in self.held.pop(handle).path():
            above.locks -= 1

    def evict(self, full: int, swa: int, mamba: int) -> None:
        """Evicts until ``full`` slots more are free, or nothing can be evicted."""
        del swa, mamba
        self._make_room(len(self.free) + full)

    def snapshot(self) -> LockRefSnapshot:
        """All nodes, the sizes in tokens, and the free list."""
        nodes = [self.root, *self.root.below()]
        evictable, protected = (sum(len(n.key) for n in nodes if bool(n.locks) is locked) for locked in (False, True))
        shown = [
            NodeSnapshot(n.number, n.parent.number if n.parent else None, n.key, {"full": NodePart(n.slots, n.locks)})
            for n in nodes
        ]
        return LockRefSnapshot(shown, {"full": evictable}, {"full": protected}, {"full": list(self.free)})

    def _take(self, count: int) -> list[int] | None:
        """So many slots, ``None`` if there are too few even after an eviction."""
        self._make_room(count)
        return [self.free.pop() for _ in range(count)] if count <= len(self.free) else None

    def _make_room(self, wanted: int) -> None:
        """Evicts leaves that nobody has locked, the least recently used first, until ``wanted`` slots are free."""
        while len(self.free) < wanted:
            leaves = [node for node in self.root.below() if not node.children and not node.locks]
            if not leaves:
                return
            leaf = min(leaves, key=lambda node: node.used)
            assert leaf.parent is not None
            del leaf.parent.children[leaf.key[0]]
            self.free += leaf.slots

    def _walk(self, tokens: list[int]) -> tuple[Node, int]:
        """The node at which the longest prefix in the tree ends, split off where necessary, and its length."""
        node, found = self.root, 0
        while found < len(tokens) and (child := node.children.get(tokens[found])):
            same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(child.key, tokens[found:], strict=False))))
            node = child if same == len(child.key) else self._split(child, same)
            node.used, found = next(self.clock), found + same
        return node, found

    def _split(self, child: Node, at: int) -> Node:
        """A new node between ``child`` and its parent with the first ``at`` tokens of the child."""
        assert child.parent is not None
        upper = Node(next(self.numbers), child.parent, child.key[:at], child.slots[:at])
        child.parent.children[child.key[0]] = upper
        child.parent, child.key, child.slots = upper, child.key[at:], child.slots[at:]
        upper.children, upper.locks = {child.key[0]: child}, child.locks
        return upper


def make(config: Json) -> AnewTree:
    """A tree of ``size`` slots."""
    if config["page_size"] != 1 or config["components"] != ["full"]:
        raise Unsupported("a tree with pages of one token and full attention alone")
    return AnewTree(config["size"])

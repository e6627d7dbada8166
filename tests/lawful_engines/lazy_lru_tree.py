"""A radix tree with least recently used eviction over a heap with lazy deletion.

Each use of a node pushes an entry; older entries of the node stay in the heap and are stale. An eviction pops entries
until one is not stale. A node that is locked or has children when its entry comes up is pushed again when it is
unlocked or loses its last child, so a node may have the same entry twice. Pages of one or more tokens, full attention
alone. An engine of the stem ``lock_ref``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from slotproof.plugin import Inserted, Json, LockRefSnapshot, NodePart, NodeSnapshot, PrefixMatch, Unsupported

Page = tuple[int, ...]  # the token ids of one page


@dataclass
class Node:
    """One node: the pages of token ids of its own key, the page of the pool that each of them is in, and its lock."""

    number: int
    parent: Node | None
    key: list[Page]
    pages: list[int]
    children: dict[Page, Node] = field(default_factory=dict)
    lock_ref: int = 0
    used: int = 0

    def path(self) -> Iterator[Node]:
        """This node and those above it, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


class LazyTree:
    """The tree over a pool of ``size`` pages. ``heap``: entries of a time of use and the number of a node."""

    fragile = False
    lacks = ("pin", "compact", "copy_on_write", "release_swa", "bad")

    def __init__(self, size: int, page_size: int) -> None:
        self.page_size, self.free = page_size, list(range(1, size + 1))
        self.numbers, self.clock, self.handles = count(1), count(1), count(1)
        self.root = Node(0, None, [], [])
        self.nodes: dict[int, Node] = {}
        self.heap: list[tuple[int, int]] = []
        self.held: dict[int, Node] = {}

    def insert(self, tokens: list[int], cursor: int, protected: int) -> Inserted | None:
        """Locks what the tree has of the row, so that it stays while room is made for the pages of the row."""
        del cursor
        key, first = self._paged(tokens), protected // self.page_size
        node, found = self._walk(key)
        handle = self.acquire(node.number)
        self._make_room(len(key) - first)
        self.release(handle, "temporary")
        if len(self.free) < len(key) - first:
            return None
        fresh = [self.free.pop(0) for _ in key[first:]]
        self.free += fresh[: found - first]  # the tree has these already
        if found < len(key):
            self._touch(self._add(node, key[found:], fresh[found - first :]))
        return Inserted(found * self.page_size, self._slots(fresh))

    def match(self, tokens: list[int]) -> PrefixMatch:
        """The longest prefix in the tree, in whole pages. A node that it ends in is split."""
        node, found = self._walk(self._paged(tokens))
        pages = [page for above in reversed(list(node.path())) for page in above.pages]
        return PrefixMatch(found * self.page_size, node.number, self._slots(pages))

    def acquire(self, node: int) -> int:
        """Locks the path of a node."""
        handle = next(self.handles)
        self.held[handle] = self.nodes.get(node, self.root)
        for above in self.held[handle].path():
            above.lock_ref += 1
        return handle

    def release(self, handle: int, caller: str) -> None:
        """Unlocks the path of a handle's node."""
        del caller
        for above in self.held.pop(handle).path():
            above.lock_ref -= 1
            heappush(self.heap, (above.used, above.number))

    def evict(self, full: int, swa: int, mamba: int) -> None:
        """Evicts until so many tokens more are free, or nothing can be evicted."""
        del swa, mamba
        self._make_room(len(self.free) + -(-full // self.page_size))

    def snapshot(self) -> LockRefSnapshot:
        """All nodes from the root on, the sizes in tokens, and the free list."""
        shown, left = [], [self.root]
        while left:
            node = left.pop(0)
            left += node.children.values()
            key, part = [token for page in node.key for token in page], NodePart(self._slots(node.pages), node.lock_ref)
            shown.append(NodeSnapshot(node.number, node.parent.number if node.parent else None, key, {"full": part}))
        evictable, protected = (
            sum(len(node.pages) for node in self.nodes.values() if bool(node.lock_ref) is locked) * self.page_size
            for locked in (False, True)
        )
        return LockRefSnapshot(shown, {"full": evictable}, {"full": protected}, {"full": list(self.free)})

    def _make_room(self, wanted: int) -> None:
        """Evicts leaves that nobody has locked, the least recently used first, until ``wanted`` pages are free."""
        while len(self.free) < wanted and self.heap:
            used, number = heappop(self.heap)
            node = self.nodes.get(number)
            if node is None or node.used != used or node.children or node.lock_ref:
                continue
            assert node.parent is not None
            self.nodes.pop(number)
            node.parent.children.pop(node.key[0])
            self.free += node.pages
            heappush(self.heap, (node.parent.used, node.parent.number))

    def _touch(self, node: Node) -> None:
        """A node is used now. Its older entries are stale."""
        node.used = next(self.clock)
        heappush(self.heap, (node.used, node.number))

    def _add(self, parent: Node, key: list[Page], pages: list[int]) -> Node:
        """A new node below ``parent``."""
        node = Node(next(self.numbers), parent, key, pages)
        self.nodes[node.number] = parent.children[key[0]] = node
        return node

    def _walk(self, key: list[Page]) -> tuple[Node, int]:
        """The node at which the longest prefix in the tree ends, split off where necessary, and its length in pages."""
        node, found = self.root, 0
        while child := node.children.get(key[found]) if found < len(key) else None:
            same = next((n for n, page in enumerate(child.key) if key[found + n : found + n + 1] != [page]), 0)
            node = self._split(child, same) if same else child
            self._touch(node)
            found += len(node.key)
        return node, found

    def _split(self, child: Node, at: int) -> Node:
        """A new node between ``child`` and its parent with the first ``at`` pages of the child, and its lock."""
        assert child.parent is not None
        upper = self._add(child.parent, child.key[:at], child.pages[:at])
        child.parent, child.key, child.pages = upper, child.key[at:], child.pages[at:]
        upper.children[child.key[0]], upper.lock_ref = child, child.lock_ref
        return upper

    def _paged(self, tokens: list[int]) -> list[Page]:
        """The whole pages of token ids."""
        whole = len(tokens) // self.page_size * self.page_size
        return [tuple(tokens[n : n + self.page_size]) for n in range(0, whole, self.page_size)]

    def _slots(self, pages: list[int]) -> list[int]:
        """The slots of whole pages."""
        return [page * self.page_size + offset for page in pages for offset in range(self.page_size)]


def make(config: Json) -> LazyTree:
    """A tree of ``size`` pages."""
    if config["components"] != ["full"]:
        raise Unsupported("a tree for full attention alone")
    return LazyTree(config["size"], config["page_size"])

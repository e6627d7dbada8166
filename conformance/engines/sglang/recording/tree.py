"""What a server's tree shows after an event: the nodes that have changed, and those that have left.

A look asks the nodes that were written to since the last one (``touched``), so that it costs what the event has done,
and not what the tree has. What changes without that is seen when the whole tree is walked, which is done so seldom that
it costs a look no more than two nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from conformance.engines.sglang.recording import layout
from conformance.engines.sglang.recording.copies import HostCopy, TensorRow, joined
from conformance.engines.sglang.recording.digests import TokenDigests
from conformance.engines.sglang.recording.touched import TouchedNodes
from conformance.recording.server_records import DIGEST_BYTES, NO_NODE, UNCHANGED, NodeChange, PartChange

NODES_A_LOOK = 2  # the whole tree is walked once in so many looks as this is contained in the number of its nodes


class KnownNode(NamedTuple):
    """A node as it was looked at last, with the engine's objects, by which it is known whether they have changed.

    ``number``: of the recording. ``above``: the engine's number of its parent, ``None`` for the root. ``last``: the
    digest of its last token. ``slots``, ``locks``: the engine's tensors and its lock counts, one for each pool.
    """

    node: Any
    number: int
    above: int | None
    key: Any
    before: bytes
    last: bytes
    slots: tuple[Any, ...]
    locks: tuple[int, ...]


class SeenPart(NamedTuple):
    """A part of a node. ``slots``: where they stand among the slots that the look has copied, if they have changed.
    ``has_slots``: there are any.
    """

    lock: int
    slots: slice | None
    has_slots: bool

    def told(self, copied: list[int]) -> PartChange:
        """What the recording says of it. ``copied``: the slots that the look has copied."""
        if self.slots is not None:
            return PartChange(self.lock, copied[self.slots])
        return PartChange(self.lock, UNCHANGED if self.has_slots else [])


class SeenNode(NamedTuple):
    """A node that has changed. ``digests``: ``UNCHANGED`` where its key is as before."""

    number: int
    parent: int
    digests: bytes | None
    parts: tuple[SeenPart, ...]

    def told(self, copied: list[int]) -> NodeChange:
        """What the recording says of it. ``copied``: the slots that the look has copied."""
        return NodeChange(self.number, self.parent, self.digests, [part.told(copied) for part in self.parts])


class LookedTree(NamedTuple):
    """What a look found: the nodes that have changed, the numbers of those that have left, and one copy of the slots
    that have changed.
    """

    nodes: list[SeenNode]
    gone: list[int]
    slots: HostCopy | None = None

    def told(self) -> list[NodeChange]:
        """What the recording says of the nodes that have changed. The copy is done."""
        copied = [] if self.slots is None else self.slots.numbers()
        return [node.told(copied) for node in self.nodes]


class ServerTree:
    """Looks at the tree of one scheduler. ``digests``: under which tokens of keys are named."""

    def __init__(self, scheduler: Any, digests: TokenDigests) -> None:
        self._tree, self._digests = scheduler.tree_cache, digests
        self._page_size = int(scheduler.page_size)
        self.parts = layout.parts(scheduler)
        self._touched = TouchedNodes(layout.owner_of(self._tree))
        self.forget()

    def stop(self) -> None:
        """No look is made any more."""
        self._touched.stop()

    def forget(self) -> None:
        """The tree was emptied: its nodes are numbered anew."""
        self._touched.forgets_all()
        self._nodes: dict[int, KnownNode] = {}  # by the engine's number
        self._next = self._looks = 0
        self._must_walk = True
        self._copied = TensorRow()

    def known(self, named: int) -> KnownNode | None:
        """The node with this number of the engine's, as it was looked at last."""
        return self._nodes.get(named)

    def path(self, node: KnownNode) -> list[KnownNode]:
        """The nodes from this one up to the highest, without the root."""
        found = []
        while node.above is not None:
            found.append(node)
            node = self._nodes[node.above]
        return found

    def look(self) -> LookedTree:
        """What has changed since the last look."""
        self._copied = TensorRow()
        found, gone = self._look()
        return LookedTree(found, gone, joined(self._copied.tensors))

    def _look(self) -> tuple[list[SeenNode], list[int]]:
        touched = self._touched.taken()
        self._looks += 1
        if self._must_walk or self._looks * NODES_A_LOOK > len(self._nodes):
            return self._walk()
        found: list[SeenNode] = []
        gone: list[int] = []
        for node in _parents_first(touched):
            self._look_at(node, found, gone)
        if self._must_walk:  # what is seen of one node is not enough
            more, left = self._walk()
            return [*found, *more], [*gone, *left]
        return found, gone

    def _look_at(self, node: Any, found: list[SeenNode], gone: list[int]) -> None:
        """Looks at a node that was touched. Its parent was looked at, if it was touched, too."""
        known, parent = self._nodes.get(node.id), node.parent
        if parent is None:
            if node is not layout.root_of(self._tree):
                return  # it is of another tree
            above, before = None, b""
        else:
            upper = self._nodes.get(parent.id)
            is_below = upper is not None and node.key is not None
            if not is_below or parent.children.get(node.key.child_key(self._page_size)) is not node:
                if known is not None:
                    self._must_walk = self._must_walk or bool(node.children)
                    gone.append(known.number)
                    self._touched.forgets(node)
                    del self._nodes[node.id]
                return
            assert upper is not None
            above, before = parent.id, upper.last
        if known is not None and self._is_as_before(known, node, above, before):
            return
        now, seen = self._seen(known, node, above, before)
        self._must_walk = self._must_walk or (known is not None and now.last != known.last)
        self._nodes[node.id] = now
        found.append(seen)

    def _walk(self) -> tuple[list[SeenNode], list[int]]:
        """Looks at the whole tree, parents first."""
        self._looks, self._must_walk = 0, False
        nodes, found, count = self._nodes, [], 0
        here: dict[int, KnownNode] = {}
        waiting: list[tuple[Any, int | None, bytes]] = [(layout.root_of(self._tree), None, b"")]
        while waiting:
            node, above, before = waiting.pop()
            ident, count = node.id, count + 1
            known = nodes.get(ident)
            if known is None or not self._is_as_before(known, node, above, before):
                known, seen = self._seen(known, node, above, before)
                nodes[ident] = known
                found.append(seen)
            here[ident] = known
            if node.children:
                last = known.last
                waiting += [(child, ident, last) for child in node.children.values()]
        if len(nodes) == count:
            return found, []
        left = [known for ident, known in nodes.items() if ident not in here]
        for known in left:
            self._touched.forgets(known.node)
        self._nodes = here
        return found, [known.number for known in left]

    def _is_as_before(self, known: KnownNode, node: Any, above: int | None, before: bytes) -> bool:
        """Nothing has changed of a node. Objects are compared by identity alone."""
        if known.node is not node or known.key is not node.key or known.above != above or known.before != before:
            return False
        data = node.component_data
        for part, slots, lock in zip(self.parts, known.slots, known.locks, strict=True):
            one = data[part]
            if one.value is not slots or one.lock_ref != lock:
                return False
        return True

    def _seen(self, known: KnownNode | None, node: Any, above: int | None, before: bytes) -> tuple[KnownNode, SeenNode]:
        """What is known of a node that is new, or has changed. Its parent was looked at."""
        key, data = node.key, [node.component_data[part] for part in self.parts]
        slots, locks = tuple(one.value for one in data), tuple(int(one.lock_ref) for one in data)
        if known is not None and known.key is key and known.before == before:
            digests, last = UNCHANGED, known.last
        else:
            digests, last = self._named(key, before)
        number = self._next if known is None else known.number
        self._next += known is None
        self._touched.knows(node)
        old = (None,) * len(slots) if known is None else known.slots
        parts = tuple(map(self._part, locks, slots, old))
        new = KnownNode(node, number, above, key, before, last, slots, locks)
        return new, SeenNode(number, NO_NODE if above is None else self._nodes[above].number, digests, parts)

    def _part(self, lock: int, slots: Any, before: Any) -> SeenPart:
        has_slots = layout.has_slots(slots)
        return SeenPart(lock, self._copied.add(slots) if has_slots and slots is not before else None, has_slots)

    def _named(self, key: Any, before: bytes) -> tuple[bytes, bytes]:
        """The digests of a key's tokens, and the last one; that before it where it has none."""
        tokens = key.raw_token_ids()
        if not len(tokens):
            return b"", b""
        found = self._digests.of(tokens, before or self._digests.root(layout.namespace(key)))
        return found, found[-DIGEST_BYTES:]


def _parents_first(touched: Iterable[Any]) -> list[Any]:
    """The nodes, each behind those of its ancestors that are among them."""
    waiting = {id(node): node for node in touched}
    found: list[Any] = []
    while waiting:
        path = [waiting.popitem()[1]]
        while id(path[-1].parent) in waiting:
            path.append(waiting.pop(id(path[-1].parent)))
        found += reversed(path)
    return found

"""The nodes of a release's radix tree as plain records, whatever the tree is made of.

Four kinds of trees are read: a tree with one component; the older trees with two, whose nodes have fields of their
own; a unified tree whose nodes are Python objects; and a unified tree whose core is Rust, which has no node objects
(``rust_nodes.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from conformance.engines.sglang.releases import marks
from conformance.stems.lock_ref.protocol import NodePart


class TreeNode(NamedTuple):
    """One node.

    ``ident``: the release's own number of the node, never used again. ``parent``: that of its parent; ``None`` for the
    root. ``handle``: what calls of the tree take for this node. ``key``: the node's own tokens. ``parts``: by
    component. ``mark``: the release's mark (a uuid) of a node where the window of a lock ends; ``None`` also where the
    release does not show it.
    """

    ident: int
    parent: int | None
    handle: Any
    key: list[int]
    parts: Mapping[str, NodePart]
    mark: Any = None


class Nodes(Protocol):
    """A tree that can be read. ``mapping``: the SWA slot of each full slot, for trees that keep no SWA slots; with
    ``None`` such a tree shows none.
    """

    def read(self, mapping: list[int] | None) -> list[TreeNode]:
        """Every node, parents first; the root is the first."""

    def size(self, component: str, which: str) -> int:
        """The ``evictable`` or the ``protected`` size of a component, in tokens (mamba: states)."""


def is_handle(handle: Any) -> bool:
    """A release may name a node by this: by its object, or by its number."""
    return isinstance(handle, int) or hasattr(handle, "id")


def ident_of(handle: Any) -> int:
    """The release's number of a node, of which a release's call has returned the object or the number."""
    return int(handle if isinstance(handle, int) else handle.id)


class UnifiedNodes:
    """A unified tree of Python objects. ``owner``: the object that has the root and the sizes. ``keys``: the key of
    each component in the tables of a node. ``by_number``: calls of the tree take the number of a node.
    """

    def __init__(self, owner: Any, keys: Mapping[str, Any], by_number: bool) -> None:
        self._owner, self._keys, self._by_number = owner, keys, by_number

    def read(self, mapping: list[int] | None) -> list[TreeNode]:
        """See ``Nodes``; the mapping is not needed."""
        del mapping
        return [self._node(node) for node in _walk(self._owner.root_node)]

    def _node(self, node: Any) -> TreeNode:
        data = {name: node.component_data[key] for name, key in self._keys.items()}
        parts = {name: NodePart(slots_of(part.value), part.lock_ref) for name, part in data.items()}
        mark = data["swa"].metadata.get("uuid") if "swa" in data else None
        return TreeNode(node.id, _parent(node), node.id if self._by_number else node, _key(node), parts, mark)

    def size(self, component: str, which: str) -> int:
        """See ``Nodes``."""
        return int(getattr(self._owner, f"component_{which}_size_")[self._keys[component]])


class OlderNodes:
    """A SWARadixCache or a MambaRadixCache."""

    def __init__(self, tree: Any, components: tuple[str, ...]) -> None:
        self._tree = tree
        self._parts: dict[str, Callable[[Any, list[int] | None], NodePart]] = {
            name: getattr(self, f"_{name}") for name in components
        }

    def read(self, mapping: list[int] | None) -> list[TreeNode]:
        """See ``Nodes``."""
        return [self._node(node, mapping) for node in _walk(self._tree.root_node)]

    def _node(self, node: Any, mapping: list[int] | None) -> TreeNode:
        parts = {name: part(node, mapping) for name, part in self._parts.items()}
        return TreeNode(node.id, _parent(node), node, _key(node), parts, getattr(node, "swa_uuid", None))

    @staticmethod
    def _full(node: Any, _mapping: list[int] | None) -> NodePart:
        return NodePart(slots_of(node.value) or [], node.full_lock_ref)

    @staticmethod
    def _swa(node: Any, mapping: list[int] | None) -> NodePart:
        # The tree keeps no SWA slots: the mapping of its allocator has them.
        if mapping is None or node.swa_tombstone:
            return NodePart(None, node.swa_lock_ref)
        return NodePart([mapping[slot] for slot in slots_of(node.value) or []], node.swa_lock_ref)

    @staticmethod
    def _mamba(node: Any, _mapping: list[int] | None) -> NodePart:
        return NodePart(slots_of(node.mamba_value), node.mamba_lock_ref)

    def size(self, component: str, which: str) -> int:
        """See ``Nodes``."""
        return int(getattr(self._tree, f"{component}_{which}_size_"))


class OneComponentNodes:
    """A RadixCache, or a PureSWARadixCache: one component, which is ``full`` here."""

    def __init__(self, tree: Any) -> None:
        self._tree = tree

    def read(self, mapping: list[int] | None) -> list[TreeNode]:
        """See ``Nodes``; the mapping is not needed."""
        del mapping
        return [self._node(node) for node in _walk(self._tree.root_node)]

    @staticmethod
    def _node(node: Any) -> TreeNode:
        return TreeNode(
            node.id, _parent(node), node, _key(node), {"full": NodePart(slots_of(node.value), node.lock_ref)}
        )

    def size(self, component: str, which: str) -> int:
        """See ``Nodes``."""
        del component
        return int(getattr(self._tree, f"{which}_size_"))


def slots_of(value: Any) -> list[int] | None:
    """Slots as plain numbers."""
    if isinstance(value, Tensor):
        return [int(slot) for slot in value.tolist()]
    return None if value is None else [int(slot) for slot in value]


def _walk(root: Any) -> Iterator[Any]:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(list(node.children.values())))


def _parent(node: Any) -> int | None:
    return None if node.parent is None else int(node.parent.id)


def _key(node: Any) -> list[int]:
    return marks.marked(node.key)

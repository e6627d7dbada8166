"""Which nodes of a tree were written to since they were asked for last, so that nobody has to look at all of them.

The classes of nodes and of their parts get a ``__setattr__`` that tells, after it has set the attribute. It costs a
fraction of a microsecond an attribute. That a leaf leaves its parent's dictionary of children is told by the tree's own
function for it. What else changes without an attribute being set is not told.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

OF_NODE = frozenset({"key", "parent", "children", "component_data"})
OF_PART = frozenset({"value", "lock_ref"})
REMOVES = "_remove_leaf_from_parent"  # the function of a tree
Listener = Callable[[Any], object]
_listeners: dict[Any, list[Listener]] = {}


class TouchedNodes:
    """The nodes of one tree that were touched. ``owner``: the engine's object that has the nodes."""

    def __init__(self, owner: Any) -> None:
        self.forgets_all()
        self._owner, root = owner, owner.root_node
        removes = getattr(owner, REMOVES)

        def removed(node: Any) -> Any:
            self._node(node)
            return removes(node)

        setattr(owner, REMOVES, removed)
        self._hears = ((type(root), self._node), (type(root.component_data[0]), self._part))
        for (cls, listener), names in zip(self._hears, (OF_NODE, OF_PART), strict=True):
            _listen(cls, names, listener)

    def stop(self) -> None:
        """Nothing is told any more."""
        delattr(self._owner, REMOVES)
        for cls, listener in self._hears:
            _listeners[cls].remove(listener)
            if not _listeners[cls]:
                del _listeners[cls]
                del cls.__setattr__  # that of its base is there again

    def forgets_all(self) -> None:
        """No node that was there is of the tree any more."""
        self._nodes: dict[int, Any] = {}  # by the object's id, which lasts as long as the object is held here
        self._parts: set[int] = set()
        self._owners: dict[int, Any] = {}

    def _node(self, node: Any) -> None:
        self._nodes[id(node)] = node

    def _part(self, part: Any) -> None:
        self._parts.add(id(part))

    def knows(self, node: Any) -> None:
        """From now on it is known whose the parts of this node are. Parts of a node that is new are written before."""
        self._owners.update((id(part), node) for part in node.component_data)

    def forgets(self, node: Any) -> None:
        """The node is not of the tree any more."""
        for part in node.component_data:
            self._owners.pop(id(part), None)

    def taken(self) -> Collection[Any]:
        """The nodes that were touched since the last call. Some may be of another tree."""
        found = self._nodes
        for part in self._parts:
            if (node := self._owners.get(part)) is not None:
                found[id(node)] = node
        self._nodes, self._parts = {}, set()
        return found.values()


def _listen(cls: Any, names: frozenset[str], listener: Listener) -> None:
    """``listener`` hears of each object of the class, one of whose attributes with these names was set."""
    assert cls in _listeners or "__setattr__" not in vars(cls), f"{cls.__name__} has a __setattr__ of its own"
    if cls in _listeners:
        _listeners[cls].append(listener)
        return
    heard, plain = _listeners.setdefault(cls, [listener]), cls.__setattr__

    def sets(self: Any, name: str, value: Any) -> None:
        plain(self, name, value)
        if name in names:
            for one in heard:
                one(self)

    cls.__setattr__ = sets

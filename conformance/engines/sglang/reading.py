"""Reads an SGLang server's memory as plain numbers: its tree, and the mamba state slots that requests name.

Nodes and window tokens get small numbers in the order in which they are first seen. The root is node 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from conformance.engines.protocol import (
    Key,
    NodePart,
    NodeSnapshot,
    PairSnapshot,
    PoolSnapshot,
    SlotNames,
    Three,
    TreePage,
    TreeSnapshot,
)


def path(node: Any) -> list[Any]:
    """The nodes from this one up to below the root; empty for the root and for ``None``."""
    found = []
    while node is not None and node.parent is not None:
        found.append(node)
        node = node.parent
    return found


def text(nodes: list[Any]) -> list[int]:
    """The tokens of a path (its last node comes first), in the order of the text."""
    return [int(token) for node in reversed(nodes) for token in node.key]


@dataclass
class TreeReader:
    """Reads one tree. ``keys``: in a unified tree, the key of each component in the tables of nodes; else empty."""

    tree: Any
    components: tuple[str, ...]
    keys: Mapping[str, Any]
    state_slots: Any
    page_size: int

    def __post_init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self.number(self.tree.root_node)

    # Nodes.

    def number(self, node: Any) -> int:
        """The number of a node."""
        return self._numbers.setdefault(node.id, len(self._numbers))

    def find(self, number: int) -> Any | None:
        """The node of this number; ``None`` if the tree does not have it."""
        return next((node for node in self.walk() if self.number(node) == number), None)

    def walk(self) -> Iterator[Any]:
        """Every node, parents first."""
        waiting = [self.tree.root_node]
        while waiting:
            node = waiting.pop()
            self.number(node)
            yield node
            waiting.extend(reversed(list(node.children.values())))

    def full_slots(self, node: Any) -> list[int]:
        """The full slots of a node."""
        return _slots(node.component_data[self.keys["full"]].value if self.keys else node.value) or []

    def state(self, node: Any) -> int | None:
        """The slot of a node's mamba state; ``None`` if it has none."""
        value = node.component_data[self.keys["mamba"]].value if self.keys else node.mamba_value
        return None if value is None else int(value[0])

    def window_token(self, node: Any) -> Any:
        """SGLang's mark (a uuid) of a node where the window of a lock ends; a lock's result carries the same mark."""
        return node.component_data[self.keys["swa"]].metadata.get("uuid") if self.keys else node.swa_uuid

    # The whole tree.

    def read(self, pools: PoolSnapshot | PairSnapshot) -> TreeSnapshot:
        """The tree over pools that look like this."""
        mapping = pools.mapping if isinstance(pools, PairSnapshot) else []
        nodes = [
            NodeSnapshot(
                self.number(node),
                self.number(node.parent) if node.parent else None,
                [int(token) for token in node.key],
                {name: self._part(node, name, mapping) for name in self.components},
            )
            for node in self.walk()
        ]
        evictable, protected = (
            {name: int(self._size(name, which)) for name in self.components} for which in ("evictable", "protected")
        )
        return TreeSnapshot(nodes, evictable, protected, self._free(pools))

    def states(self) -> dict[Key, int]:
        """The slot of each state in the tree, by the tokens from the root to the end of its node."""
        found = ((node, self.state(node)) for node in self.walk())
        return {tuple(text(path(node))): state for node, state in found if state is not None}

    def _part(self, node: Any, name: str, mapping: list[int]) -> NodePart:
        if self.keys:
            data = node.component_data[self.keys[name]]
            return NodePart(_slots(data.value), data.lock_ref)
        if name == "full":
            return NodePart(self.full_slots(node), node.full_lock_ref)
        # SWARadixCache keeps no SWA slots on a node: the mapping of its allocator has them.
        slots = None if node.swa_tombstone else [mapping[slot] for slot in self.full_slots(node)]
        return NodePart(slots, node.swa_lock_ref)

    def _size(self, name: str, which: str) -> Any:
        if self.keys:
            return getattr(self.tree, f"component_{which}_size_")[self.keys[name]]
        return getattr(self.tree, f"{name}_{which}_size_")

    def _free(self, pools: PoolSnapshot | PairSnapshot) -> dict[str, list[int]]:
        sides = {"full": pools.full, "swa": pools.swa} if isinstance(pools, PairSnapshot) else {"full": pools}
        free = {name: [*side.free, *side.released] for name, side in sides.items()}
        return free if self.state_slots is None else {**free, "mamba": self.state_slots.free_slots.tolist()}


def _slots(value: Any) -> list[int] | None:
    if isinstance(value, Tensor):
        return [int(slot) for slot in value.tolist()]
    return None if value is None else [int(slot) for slot in value]


def tree_pages(tree: TreeSnapshot, page_size: int) -> dict[int, TreePage]:
    """The pages of a tree that has the components full and swa, by full page."""
    found, ends = {}, {0: 0}
    for node in tree.nodes[1:]:
        start = ends[node.parent or 0]
        ends[node.id] = start + len(node.key)
        slots = node.parts["full"].slots or []
        for at, slot in enumerate(slots[::page_size]):
            found[slot // page_size] = TreePage(start // page_size + at, node.parts["swa"].slots is not None)
    return found


def tree_states(tree: TreeSnapshot) -> dict[Key, int]:
    """The slot of each mamba state in the tree, by the tokens from the root to the end of its node."""
    found: dict[Key, int] = {}
    texts: dict[int | None, Key] = {None: ()}
    for node in tree.nodes:
        texts[node.id] = (*texts[node.parent], *node.key)
        if slots := node.parts["mamba"].slots:
            found[texts[node.id]] = slots[0]
    return found


# The state slots that requests and session slots name.


def slot_names(holder: Any) -> SlotNames:
    """The state slots that a request's record, or the slot of a session, names."""
    buffer = holder.mamba_ping_pong_track_buffer
    slots = _three(holder.mamba_pool_idx, None if buffer is None else buffer.tolist())
    return SlotNames(slots, holder.mamba_next_track_idx or 0)


def slots_in_row(rows: Any, row: int, buffered: bool) -> Three:
    """The state slots that the kernels read for a row of a HybridReqToTokenPool."""
    own = int(rows.req_index_to_mamba_index_mapping[row : row + 1].sum())  # 0 where the table has no such row
    if not buffered:
        return own, 0, 0
    return _three(own, rows.req_index_to_mamba_ping_pong_track_buffer_mapping[row : row + 1].view(-1).tolist())


def _three(own: Any, buffer: Any) -> Three:
    """Own state, first and second track; 0 for a slot that SGLang writes as None or -1."""
    one = 0 if own is None else int(own)
    first, second, *_ = [*(max(0, int(slot)) for slot in (buffer if buffer is not None else ())), 0, 0]
    return one, first, second

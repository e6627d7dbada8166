"""Reads an SGLang server's memory as plain numbers: its tree, and the mamba state slots that requests name.

Nodes get small numbers in the order in which they are first seen; those that are seen together, in the order of their
texts. So two trees that go through the same calls, and are equal after each, number their nodes alike. The root is
node 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from conformance.driver.protocol import Key
from conformance.engines.sglang.releases import marks, records
from conformance.engines.sglang.releases.nodes import Nodes, TreeNode, ident_of, is_handle
from conformance.engines.sglang.releases.records import NEXT_TRACK, STATE, TRACKS
from conformance.stems.allocator.protocol import AllocatorSnapshot
from conformance.stems.lock_ref.protocol import LockRefSnapshot, NodeSnapshot
from conformance.stems.mamba_slots.protocol import SlotNames, Three
from conformance.stems.session_trim.protocol import TreePage
from conformance.stems.swa_mapping.protocol import SwaMappingSnapshot


@dataclass
class TreeReader:
    """Reads one tree. A *handle* is what the calls of a release take and return for a node: an object, or a number."""

    nodes: Nodes
    components: tuple[str, ...]
    state_slots: Any

    def __post_init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._seen(self.nodes.read(None))

    # Nodes.

    def number(self, handle: Any) -> int:
        """The number of a node."""
        return self._number(ident_of(handle))

    def find(self, number: int) -> Any | None:
        """The handle of the node of this number; ``None`` if the tree does not have it."""
        return next((node.handle for node in self.walk() if self._number(node.ident) == number), None)

    def walk(self) -> list[TreeNode]:
        """Every node, parents first. Trees that keep no SWA slots show none here: ``read`` shows them."""
        return self._seen(self.nodes.read(None))

    def path(self, handle: Any, nodes: Sequence[TreeNode] | None = None) -> list[TreeNode]:
        """The nodes from this one up to below the root; empty for the root, and for what is no node of the tree.
        ``nodes``: all nodes, where they were read already.
        """
        if not is_handle(handle):
            return []
        known = {node.ident: node for node in (self.walk() if nodes is None else nodes)}
        found, node = [], known.get(ident_of(handle))
        while node is not None and node.parent is not None:
            found.append(node)
            node = known.get(node.parent)
        return found

    def _number(self, ident: int) -> int:
        return self._numbers.setdefault(ident, len(self._numbers))

    def _parent(self, node: TreeNode) -> int | None:
        return None if node.parent is None else self._number(node.parent)

    def _seen(self, nodes: list[TreeNode]) -> list[TreeNode]:
        new = {node.ident for node in nodes} - self._numbers.keys()
        if new:
            texts = _texts(nodes)
            for ident in sorted(new, key=lambda ident: texts[ident]):
                self._number(ident)
        return nodes

    # The whole tree.

    def read(self, pools: AllocatorSnapshot | SwaMappingSnapshot) -> LockRefSnapshot:
        """The tree over pools that look like this."""
        return self.of_nodes(self.nodes.read(mapping_of(pools)), pools)

    def of_nodes(self, read: Sequence[TreeNode], pools: AllocatorSnapshot | SwaMappingSnapshot) -> LockRefSnapshot:
        """The snapshot of a tree that has these nodes. ``pools``: they show which pages are free."""
        nodes = [
            NodeSnapshot(
                self._number(node.ident),
                None if node.parent is None else self._number(node.parent),
                node.key,
                node.parts,
            )
            for node in read
        ]
        evictable, protected = (
            {name: self.nodes.size(name, which) for name in self.components} for which in ("evictable", "protected")
        )
        return LockRefSnapshot(nodes, evictable, protected, self._free(pools))

    def states(self) -> dict[Key, int]:
        """The slot of each state in the tree, by the tokens from the root to the end of its node."""
        nodes = self.walk()
        texts = _texts(nodes)
        return {texts[node.ident]: state[0] for node in nodes if (state := node.parts["mamba"].slots)}

    def _free(self, pools: AllocatorSnapshot | SwaMappingSnapshot) -> dict[str, list[int]]:
        sides = {"full": pools.full, "swa": pools.swa} if isinstance(pools, SwaMappingSnapshot) else {"full": pools}
        free = {name: [*side.free, *side.released] for name, side in sides.items()}
        return free if self.state_slots is None else {**free, "mamba": self.state_slots.free_slots.tolist()}


def mapping_of(pools: AllocatorSnapshot | SwaMappingSnapshot) -> list[int]:
    """The SWA slot of each full slot; empty where there is no pool for windows."""
    return pools.mapping if isinstance(pools, SwaMappingSnapshot) else []


def _texts(nodes: list[TreeNode]) -> dict[int | None, Key]:
    """The tokens from the root to the end of each node, by the release's number of the node. Parents come first."""
    texts: dict[int | None, Key] = {None: ()}
    for node in nodes:
        texts[node.ident] = (*texts[node.parent], *node.key)
    return texts


def cached_pages(nodes: list[TreeNode], page_size: int) -> list[Key]:
    """For each page of the tree that has full slots, the tokens from the root to its end, without their marks."""
    texts = _texts(nodes)
    found = []
    for node in nodes:
        if node.parts["full"].slots:
            whole = tuple(marks.unmarked(texts[node.ident]))
            found += [whole[:end] for end in range(len(whole), len(whole) - len(node.key), -page_size)]
    return found


def text(nodes: list[TreeNode]) -> list[int]:
    """The tokens of a path (its last node comes first), in the order of the text."""
    return [token for node in reversed(nodes) for token in node.key]


def tree_pages(tree: LockRefSnapshot, page_size: int) -> dict[int, TreePage]:
    """The pages of a tree, by full page."""
    found, ends = {}, {0: 0}
    for node in tree.nodes[1:]:
        start = ends[node.parent or 0]
        ends[node.id] = start + len(node.key)
        slots = node.parts["full"].slots or []
        has_swa = "swa" in node.parts and node.parts["swa"].slots is not None
        for at, slot in enumerate(slots[::page_size]):
            found[slot // page_size] = TreePage(start // page_size + at, has_swa)
    return found


def tree_states(tree: LockRefSnapshot) -> dict[Key, int]:
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
    own, buffer, follows = (records.read(holder, name) for name in (STATE, TRACKS, NEXT_TRACK))
    return SlotNames(_three(own, None if buffer is None else buffer.tolist()), follows or 0)


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

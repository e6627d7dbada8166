"""What can be read off the radix tree of a loaded SGLang release, as plain numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from conformance.subjects.adapter import PoolSubject, SwaSubject


@dataclass(frozen=True)
class Part:
    """What a component has on a node: its slots (``None`` = tombstone), its lock count, its window token."""

    slots: list[int] | None
    lock: int
    token: int | None = None


@dataclass(frozen=True)
class Node:
    """A node of the tree; the root is 0 and has no parent."""

    id: int
    parent: int | None
    key: list[int]
    parts: dict[str, Part]


@dataclass(frozen=True)
class Seen:
    """The whole tree, its counters and the free lists of its pools, each by component."""

    nodes: list[Node]
    evictable: dict[str, int]
    protected: dict[str, int]
    free: dict[str, list[int]]


@dataclass(frozen=True)
class Match:
    """How many tokens match, at which node, in which full slots; ``mamba`` is the copy a request was given."""

    length: int
    node: int
    slots: list[int]
    mamba: int | None = None


@dataclass(frozen=True)
class Inserted:
    """The prefix that was in the tree already, the slots the caller had allocated, and its mamba slot.

    ``mamba_freed``: the node had a state, so the caller freed its own; else the tree has it, or says so.
    """

    prefix: int
    fresh: list[int]
    mamba: int | None
    mamba_freed: bool


@dataclass
class View:
    """One tree and its pools. Nodes and tokens get small numbers in the order in which they are first seen."""

    tree: Any
    kinds: dict[str, Any]  # component -> its key in the tree's own tables; empty for SWARadixCache
    components: tuple[str, ...]
    pool: PoolSubject
    mamba: Any
    _numbers: dict[int, int] = field(default_factory=dict)
    _tokens: dict[int, int] = field(default_factory=dict)

    def number(self, node: Any) -> int:
        """The number of a node."""
        return self._numbers.setdefault(node.id, len(self._numbers))

    def token(self, token: int | None) -> int | None:
        """The number of a window token."""
        return None if token is None else self._tokens.setdefault(token, len(self._tokens) + 1)

    def find(self, number: int) -> Any | None:
        """The node of this number, ``None`` if the tree has none."""
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
        return self._numbers_of(node.component_data[self.kinds["full"]].value if self.kinds else node.value) or []

    def state(self, node: Any) -> int | None:
        """The mamba state of a node of a unified tree."""
        value = node.component_data[self.kinds["mamba"]].value
        return None if value is None else int(value[0])

    def seen(self) -> Seen:
        """Everything."""
        nodes = [
            Node(
                self.number(node),
                self.number(node.parent) if node.parent else None,
                [int(token) for token in node.key],
                {name: self._part(node, name) for name in self.components},
            )
            for node in self.walk()
        ]
        evictable, protected = (
            {name: int(self._size(name, which)) for name in self.components} for which in ("evictable", "protected")
        )
        return Seen(nodes, evictable, protected, self._free())

    def _part(self, node: Any, name: str) -> Part:
        if self.kinds:
            data = node.component_data[self.kinds[name]]
            token = data.metadata.get("uuid") if name == "swa" else None
            return Part(self._numbers_of(data.value), data.lock_ref, self.token(token))
        if name == "full":
            return Part(self.full_slots(node), node.full_lock_ref)
        return Part(None if node.swa_tombstone else self._swa_slots(node), node.swa_lock_ref, self.token(node.swa_uuid))

    def _swa_slots(self, node: Any) -> list[int]:
        """SWARadixCache keeps no SWA slots of its own: the mapping has them."""
        assert isinstance(self.pool, SwaSubject)
        mapping = self.pool.mapping()
        return [mapping[slot] for slot in self.full_slots(node)]

    @staticmethod
    def _numbers_of(value: Any) -> list[int] | None:
        return None if value is None else [int(slot) for slot in value]

    def _size(self, name: str, which: str) -> Any:
        if self.kinds:
            return getattr(self.tree, f"component_{which}_size_")[self.kinds[name]]
        return getattr(self.tree, f"{name}_{which}_size_")

    def _free(self) -> dict[str, list[int]]:
        """Pages of the full and the SWA pool, slots of the mamba pool."""
        lists = {"full": self.pool.lists()}
        if isinstance(self.pool, SwaSubject):
            lists["swa"] = self.pool.swa_lists()
        free = {name: [*pool.free, *pool.released] for name, pool in lists.items()}
        return free if self.mamba is None else {**free, "mamba": self.mamba.free_slots.tolist()}

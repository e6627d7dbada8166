"""What a server's memory shows after an event, and how it differs from what it showed before.

A look reads Python numbers, and queues copies of what is on the device (``copies``). The numbers of the copies are read
later, and then the change is made from them, look after look in their order (``LookedAt.change``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from conformance.engines.sglang.recording import layout
from conformance.engines.sglang.recording.copies import HostCopy, joined
from conformance.engines.sglang.recording.digests import Digests
from conformance.engines.sglang.releases import records
from conformance.recording.server_records import (
    DIGEST_BYTES,
    NO_NODE,
    UNCHANGED,
    ListChange,
    MemoryChange,
    NodeChange,
    RowChange,
    change_of,
)


class SeenRow(NamedTuple):
    """A row as it was looked at. ``first``: the place from which on its slots were copied. ``copied``: how many."""

    request: int
    row: int
    lengths: records.RowLengths
    first: int
    copied: int


class KnownNode(NamedTuple):
    """A node as it was looked at last, with the engine's objects, by which it is known whether they have changed.

    ``number``: of the recording. ``last``: the digest of its last token. ``slots``: the engine's tensor.
    """

    number: int
    parent: int
    lock: int
    key: Any
    length: int
    before: bytes
    last: bytes
    slots: Any


class SeenNode(NamedTuple):
    """A node that has changed. ``digests``: ``UNCHANGED`` where its key is as before. ``slots``: a copy where they have
    changed, and ``has_slots`` where there are any.
    """

    number: int
    parent: int
    lock: int
    digests: bytes | None
    slots: HostCopy | None
    has_slots: bool
    changed: bool


@dataclass
class LookedAt:
    """One look. Of the lists of the pool there are copies where they may have changed."""

    available: int
    free_rows: ListChange | None
    rows: list[SeenRow]
    left: list[int]
    slots: HostCopy | None
    nodes: list[SeenNode]
    gone: list[int]
    sizes: tuple[int, int]
    holds: list[tuple[int, int]]
    free: HostCopy | None = None
    released: list[HostCopy] | None = None

    def copies(self) -> Iterator[HostCopy]:
        """All copies that were queued."""
        found = [self.free, *(self.released or ()), self.slots, *(node.slots for node in self.nodes)]
        yield from (one for one in found if one is not None)


@dataclass
class ToldSoFar:
    """What the recording has: the lists of the pool, rows with their lengths, and what requests hold."""

    free: list[int] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    rows: dict[int, tuple[int, records.RowLengths]] = field(default_factory=dict)
    holds: list[tuple[int, int]] = field(default_factory=list)

    def row(self, one: SeenRow) -> bool:
        """Whether the row is as the recording has it."""
        before, self.rows[one.request] = self.rows.get(one.request), (one.row, one.lengths)
        return not one.copied and before == (one.row, one.lengths)

    def held(self, now: list[tuple[int, int]]) -> list[tuple[int, int]] | None:
        """What requests hold, ``UNCHANGED`` if the recording has it."""
        before, self.holds = self.holds, now
        return UNCHANGED if before == now else now

    def change(self, name: str, copies: list[HostCopy]) -> ListChange | None:
        """How the list has changed, of which these are the copies."""
        now = [number for copy in copies for number in copy.numbers()]
        found = change_of(getattr(self, name), now)
        setattr(self, name, now)
        return found


class ServerMemory:
    """Looks at the memory of one scheduler. ``digests``: under which tokens of keys are named."""

    def __init__(self, scheduler: Any, digests: Digests) -> None:
        self._scheduler, self._digests = scheduler, digests
        self._rows, self._allocator = scheduler.req_to_token_pool, scheduler.token_to_kv_pool_allocator
        self._tree = scheduler.tree_cache
        self._part = layout.full_part(self._tree)
        self.told = ToldSoFar()
        self._free: tuple[Any, ...] = ()
        self._changes = -1
        self._free_rows: list[int] = []
        self._copied: dict[int, tuple[int, int]] = {}  # by request, its row and how many slots were copied
        self.forget_tree()

    def forget_tree(self) -> None:
        """The tree was emptied: its nodes are numbered anew."""
        self._nodes: dict[int, KnownNode] = {}  # by the engine's number
        self._next = 0

    def first(self) -> tuple[HostCopy, list[HostCopy], list[int]]:
        """The lists of an empty server: of its pool, and of its rows."""
        self._free_rows = [int(row) for row in self._rows.free_slots]
        free, released = self._lists()
        return free, released, list(self._free_rows)

    def _lists(self) -> tuple[HostCopy, list[HostCopy]]:
        pages, later = self._allocator.free_pages, layout.released_pages(self._allocator)
        self._free = (pages, *later)
        return HostCopy(pages), [HostCopy(one) for one in later]

    def look(self, changes: int, holders: Mapping[int, Any], whole: Collection[int], walks: bool) -> LookedAt:
        """Looks at everything. ``changes``: how many calls that change pools were made so far. ``holders``: the
        requests that have a row or a lock, by number. ``whole``: those of them whose rows are copied from their
        beginning on. ``walks``: the tree is looked at, too.
        """
        rows, slots = self._look_at_rows(holders, whole)
        nodes, gone = self._look_at_tree() if walks else ([], [])
        now = [int(row) for row in self._rows.free_slots]
        free_rows, self._free_rows = change_of(self._free_rows, now), now
        left = [request for request in self._copied if request not in {row.request for row in rows}]
        for request in left:
            del self._copied[request]
        looked = LookedAt(
            available=int(self._allocator.available_size()),
            free_rows=free_rows,
            rows=rows,
            left=left,
            slots=slots,
            nodes=nodes,
            gone=gone,
            sizes=self._sizes(),
            holds=[hold for number, holder in holders.items() if (hold := self._hold(number, holder)) is not None],
        )
        tensors = (self._allocator.free_pages, *layout.released_pages(self._allocator))
        if changes != self._changes or not _same(tensors, self._free):
            self._changes = changes
            looked.free, looked.released = self._lists()
        return looked

    def change(self, looked: LookedAt) -> MemoryChange:
        """What a look says, against the looks before it. Its copies are done."""
        slots, at = looked.slots.numbers() if looked.slots is not None else [], 0
        rows = []
        for one in looked.rows:
            if not self.told.row(one):
                rows.append(RowChange(one.request, one.row, *one.lengths, one.first, slots[at : at + one.copied]))
            at += one.copied
        for request in looked.left:
            self.told.rows.pop(request, None)
        return MemoryChange(
            free=UNCHANGED if looked.free is None else self.told.change("free", [looked.free]),
            released=UNCHANGED if looked.released is None else self.told.change("released", looked.released),
            available=looked.available,
            free_rows=looked.free_rows,
            rows=rows,
            left=looked.left,
            nodes=[_node(node) for node in looked.nodes if node.changed],
            gone=looked.gone,
            sizes=looked.sizes,
            holds=self.told.held(looked.holds),
        )

    # Rows.

    def _look_at_rows(self, holders: Mapping[int, Any], whole: Collection[int]) -> tuple[list[SeenRow], Any]:
        rows, parts, table = [], [], self._rows.req_to_token
        for number, holder in holders.items():
            row = records.row(holder)
            if row is None:
                continue
            lengths = records.lengths(holder)
            before, known = self._copied.get(number, (row, 0))
            first = 0 if number in whole or before != row else min(known, lengths.allocated)
            if lengths.allocated > first:
                parts.append(table[row, first : lengths.allocated])
            self._copied[number] = row, lengths.allocated
            rows.append(SeenRow(number, row, lengths, first, max(0, lengths.allocated - first)))
        return rows, joined(parts)

    # The tree.

    def _sizes(self) -> tuple[int, int]:
        owner = layout.owner_of(self._tree)
        return int(owner.component_evictable_size_[self._part]), int(owner.component_protected_size_[self._part])

    def _hold(self, number: int, holder: Any) -> tuple[int, int] | None:
        named = layout.node_number(records.locked_node(holder))
        if named is None:
            return None
        known = self._nodes.get(named)
        if known is None:
            return number, NO_NODE
        return (number, known.number) if known.number else None

    def _look_at_tree(self) -> tuple[list[SeenNode], list[int]]:
        """The nodes that have changed, parents first, and those that have left."""
        found, here = [], set()
        waiting = [(layout.root_of(self._tree), NO_NODE, b"")]
        while waiting:
            node, parent, before = waiting.pop()
            here.add(node.id)
            seen = self._look_at_node(node, parent, before)
            if seen.changed:
                found.append(seen)
            last = self._nodes[node.id].last
            waiting.extend((child, seen.number, last) for child in node.children.values())
        gone = [known.number for ident, known in self._nodes.items() if ident not in here]
        self._nodes = {ident: known for ident, known in self._nodes.items() if ident in here}
        return found, gone

    def _look_at_node(self, node: Any, parent: int, before: bytes) -> SeenNode:
        data, known = node.component_data[self._part], self._nodes.get(node.id)
        slots, lock, key = data.value, int(data.lock_ref), node.key
        if known is not None and known.key is key and known.length == len(key) and known.before == before:
            digests, last = UNCHANGED, known.last
        else:
            digests, last = self._named(key, before)
        same = known is not None and known.slots is slots
        number = self._next if known is None else known.number
        self._next += known is None
        has_slots = hasattr(slots, "shape") and slots.numel() > 0
        changed = not same or digests is not UNCHANGED or (known.parent, known.lock) != (parent, lock)  # type: ignore[union-attr]
        self._nodes[node.id] = KnownNode(number, parent, lock, key, len(key), before, last, slots)
        copied = HostCopy(slots) if has_slots and not same else None
        return SeenNode(number, parent, lock, digests, copied, has_slots, changed)

    def _named(self, key: Any, before: bytes) -> tuple[bytes, bytes]:
        """The digests of a key's tokens, and the last one; that before it where it has none."""
        tokens = key.raw_token_ids()
        if not len(tokens):
            return b"", b""
        found = self._digests.of(tokens, before or self._digests.root(layout.namespace(key)))
        return found, found[-DIGEST_BYTES:]


def _same(some: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))


def _node(seen: SeenNode) -> NodeChange:
    slots = seen.slots.numbers() if seen.slots is not None else UNCHANGED if seen.has_slots else []
    return NodeChange(seen.number, seen.parent, seen.lock, seen.digests, slots)

"""What a server's memory shows after an event, and how it differs from what it showed before.

A look reads Python numbers, and queues copies of what is on the device (``copies``). The numbers of the copies are read
later, and then the change is made from them, look after look in their order (``LookedAt.change``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

from conformance.engines.sglang.recording import layout
from conformance.engines.sglang.recording.copies import HostCopy, joined
from conformance.engines.sglang.recording.digests import TokenDigests
from conformance.engines.sglang.recording.tree import KnownNode, LookedTree, ServerTree
from conformance.engines.sglang.releases import records
from conformance.recording.server_records import (
    NO_NODE,
    UNCHANGED,
    ListChange,
    MemoryChange,
    PoolChange,
    RowChange,
    change_of,
)

Hold = tuple[int, int, int | None]  # a request, the node that it holds, and the node at which its window ends


class LookPlan(NamedTuple):
    """What is looked at. ``whom``: the requests whose rows and locks may have changed, ``None`` for all. ``whole``:
    those of them whose rows are copied from their beginning on. ``walks``: the tree is looked at, too.
    """

    whom: Collection[int] | None
    whole: Collection[int]
    walks: bool


class SeenRow(NamedTuple):
    """A row as it was looked at. ``first``: the place from which on its slots were copied. ``copied``: how many."""

    request: int
    row: int
    lengths: records.RowLengths
    first: int
    copied: int


class CopiedPools(NamedTuple):
    """Copies of the lists of each pool (the free list, and the parts of the release list), and of the mapping."""

    lists: list[tuple[HostCopy, list[HostCopy]]]
    mapping: HostCopy | None

    def copies(self) -> Iterator[HostCopy]:
        """All copies."""
        for free, released in self.lists:
            yield from (free, *released)
        yield from () if self.mapping is None else (self.mapping,)

    def numbers(self) -> tuple[list[tuple[list[int], list[int]]], list[int]]:
        """The lists of each pool, and the mapping without its last entry, which belongs to no slot."""
        lists = [(free.numbers(), [n for one in released for n in one.numbers()]) for free, released in self.lists]
        return lists, [] if self.mapping is None else self.mapping.numbers()[:-1]


@dataclass
class LookedAt:
    """One look. ``pools``: where the lists of the pools may have changed. ``anew``: it says all that the memory shows,
    against a memory that shows nothing.
    """

    available: list[int]
    free_rows: ListChange | None
    rows: list[SeenRow]
    left: list[int]
    slots: HostCopy | None
    tree: LookedTree
    sizes: list[tuple[int, int]]
    holds: list[Hold]
    pools: CopiedPools | None = None
    anew: bool = False

    def copies(self) -> Iterator[HostCopy]:
        """All copies that were queued."""
        yield from () if self.pools is None else self.pools.copies()
        yield from (one for one in (self.slots, self.tree.slots) if one is not None)


@dataclass
class ToldSoFar:
    """What the recording has: the lists of the pools, the mapping, rows with their lengths, and what requests hold."""

    lists: list[tuple[list[int], list[int]]] = field(default_factory=list)
    mapping: list[int] = field(default_factory=list)
    rows: dict[int, tuple[int, records.RowLengths]] = field(default_factory=dict)
    holds: list[Hold] = field(default_factory=list)

    def row(self, one: SeenRow) -> bool:
        """Whether the row is as the recording has it."""
        before, self.rows[one.request] = self.rows.get(one.request), (one.row, one.lengths)
        return not one.copied and before == (one.row, one.lengths)

    def held(self, now: list[Hold]) -> list[Hold] | None:
        """What requests hold, ``UNCHANGED`` if the recording has it."""
        before, self.holds = self.holds, now
        return UNCHANGED if before == now else now

    def pool_changes(
        self, copied: CopiedPools | None, available: list[int]
    ) -> tuple[list[PoolChange], ListChange | None]:
        """How the lists of the pools have changed, and the mapping."""
        if copied is None:
            return [PoolChange(UNCHANGED, UNCHANGED, now) for now in available], UNCHANGED
        before, mapping = self.lists or [([], [])] * len(available), self.mapping
        self.lists, self.mapping = copied.numbers()
        changes = [
            PoolChange(change_of(old[0], new[0]), change_of(old[1], new[1]), now)
            for old, new, now in zip(before, self.lists, available, strict=True)
        ]
        return changes, change_of(mapping, self.mapping)


class ServerMemory:
    """Looks at the memory of one scheduler. ``digests``: under which tokens of keys are named."""

    def __init__(self, scheduler: Any, digests: TokenDigests) -> None:
        self._scheduler = scheduler
        self._rows, self._allocator = scheduler.req_to_token_pool, scheduler.token_to_kv_pool_allocator
        self._tree = scheduler.tree_cache
        self._pools, self.tree = layout.pools(scheduler), ServerTree(scheduler, digests)
        self._windowed = len(self._pools) > 1
        self.so_far = ToldSoFar()
        self._changes = -1
        self._quick: Callable[[Any], tuple[Any, records.RowLengths]] | None = None
        self._forget()

    def _forget(self) -> None:
        """The next look says all that the memory shows."""
        self._lists: tuple[Any, ...] = ()
        self._free_rows: list[int] = []
        self._copied: dict[int, tuple[int, int]] = {}  # by request, its row and how many slots were copied
        self.forget_tree()

    def forget_tree(self) -> None:
        """The tree was emptied: its nodes are numbered anew."""
        self.tree.forget()
        self._holds: dict[int, Hold] = {}
        self._shown: list[Hold] = []

    def whole(self, changes: int, holders: Mapping[int, Any]) -> LookedAt:
        """A look at all that the memory shows, for a reader who begins here. See ``look``."""
        self._forget()
        looked = self.look(changes, holders, LookPlan(None, (), True))
        looked.anew = True
        return looked

    def _tensors(self) -> tuple[Any, ...]:
        """The tensors of the lists, pool after pool, the free list first."""
        return tuple(one for pool in self._pools for one in (pool.free_pages, *layout.released_pages(pool)))

    def _copy_pools(self, tensors: tuple[Any, ...]) -> CopiedPools:
        self._lists = tensors
        lists = [
            (HostCopy(pool.free_pages), [HostCopy(one) for one in layout.released_pages(pool)]) for pool in self._pools
        ]
        return CopiedPools(lists, HostCopy(self._allocator.full_to_swa_index_mapping) if self._windowed else None)

    def look(self, changes: int, holders: Mapping[int, Any], asked: LookPlan) -> LookedAt:
        """Looks at the memory. ``changes``: how many calls that change pools were made so far. ``holders``: the
        requests that have a row or a lock, by number.
        """
        whom = holders if asked.whom is None else {n: holders[n] for n in asked.whom if n in holders}
        rows, slots = self._look_at_rows(whom, asked.whole)
        tree = self.tree.look() if asked.walks else LookedTree([], [])
        now = [int(row) for row in self._rows.free_slots]
        free_rows, self._free_rows = change_of(self._free_rows, now), now
        left = [request for request in asked.whom or () if request in self._copied and request not in holders]
        for request in left:
            del self._copied[request]
        looked = LookedAt(
            available=layout.available(self._scheduler),
            free_rows=free_rows,
            rows=rows,
            left=left,
            slots=slots,
            tree=tree,
            sizes=layout.tree_sizes(self._tree, self.tree.parts),
            holds=self._look_at_holds(holders, whom if not self._windowed else holders, tree.gone),
        )
        tensors = self._tensors()
        # A tree writes to the mapping by itself, where a node gets SWA slots again.
        if (self._windowed and asked.walks) or changes != self._changes or not _same(tensors, self._lists):
            self._changes = changes
            looked.pools = self._copy_pools(tensors)
        return looked

    def change(self, looked: LookedAt) -> MemoryChange:
        """What a look says, against the looks before it. Its copies are done."""
        if looked.anew:
            self.so_far = ToldSoFar()
        slots, at = looked.slots.numbers() if looked.slots is not None else [], 0
        rows = []
        for one in looked.rows:
            if not self.so_far.row(one):
                rows.append(RowChange(one.request, one.row, *one.lengths, one.first, slots[at : at + one.copied]))
            at += one.copied
        for request in looked.left:
            self.so_far.rows.pop(request, None)
        pools, mapping = self.so_far.pool_changes(looked.pools, looked.available)
        return MemoryChange(
            pools=pools,
            mapping=mapping,
            free_rows=looked.free_rows,
            rows=rows,
            left=looked.left,
            nodes=looked.tree.told(),
            gone=looked.tree.gone,
            sizes=looked.sizes,
            holds=self.so_far.held(looked.holds),
        )

    # Rows.

    def _look_at_rows(self, holders: Mapping[int, Any], whole: Collection[int]) -> tuple[list[SeenRow], Any]:
        rows, parts, table = [], [], self._rows.req_to_token
        for number, holder in holders.items():
            row, lengths = self._row_of(holder)
            if row is None or lengths is None:
                continue
            before, known = self._copied.get(number, (row, 0))
            first = 0 if number in whole or before != row else min(known, lengths.allocated)
            if lengths.allocated > first:
                parts.append(table[row, first : lengths.allocated])
            self._copied[number] = row, lengths.allocated
            rows.append(SeenRow(number, row, lengths, first, max(0, lengths.allocated - first)))
        return rows, joined(parts)

    def _row_of(self, holder: Any) -> tuple[int | None, records.RowLengths | None]:
        """The row of a holder, and its lengths; ``None`` for both where it has no row."""
        if self._quick is not None:
            try:
                return self._quick(holder)
            except AttributeError:
                self._quick = None
        if (row := records.row(holder)) is None:
            return None, None
        self._quick = records.quick_lengths(holder)
        return row, records.lengths(holder)

    # What requests hold of the tree.

    def _look_at_holds(self, holders: Mapping[int, Any], whom: Mapping[int, Any], gone: list[int]) -> list[Hold]:
        """What requests hold. ``whom``: those for which it may have changed. ``gone``: nodes that have left."""
        known = self._holds
        if gone:
            held = {n for n, (_, *nodes) in known.items() if any(node in nodes for node in gone)}
            whom = {**whom, **{n: holders[n] for n in held if n in holders}}
        changed: dict[int, Hold | None] = dict.fromkeys(known.keys() - holders.keys())
        changed |= {n: hold for n, holder in whom.items() if (hold := self._hold(n, holder)) != known.get(n)}
        if changed:
            self._holds = {n: hold for n, hold in (known | changed).items() if hold is not None}
            self._shown = sorted(self._holds.values(), key=itemgetter(0))
        return self._shown

    def _hold(self, number: int, holder: Any) -> Hold | None:
        named = layout.node_number(records.locked_node(holder))
        if named is None:
            return None
        known = self.tree.known(named)
        if known is None:
            return number, NO_NODE, NO_NODE if self._windowed else None
        if known.above is None:
            return None
        if not self._windowed or records.window_released(holder):
            return number, known.number, None
        return number, known.number, self._top(known, records.window_token(holder))

    def _top(self, node: KnownNode, mark: Any) -> int:
        """The node at which the window of a lock ends, whose mark the lock has; without one the highest node."""
        path, part = self.tree.path(node), self.tree.parts[-1]
        if mark is None:
            return path[-1].number
        marked = (one for one in path if layout.mark_of(one.node.component_data[part]) == mark)
        return next((one.number for one in marked), NO_NODE)


def _same(some: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))

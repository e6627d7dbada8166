"""Our locks as an engine: ``LockTree`` under a small prefix tree with plain page lists.

The stem ``cache`` drives the tree of our session cache (``impl.radix``). It cannot replace this small tree. Its locks
always have a window, so that nothing would drive locks without one. And its slots come from request rows, which makes
an insert many times slower.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from typing import Any

from conformance.driver.protocol import Json
from conformance.stems.lock_ref.protocol import Inserted, LockRefSnapshot, NodePart, NodeSnapshot, PrefixMatch
from impl.lock_ref import LockHandle, LockTree


@dataclass
class TreePools:
    """The pools of the tree.

    ``free``: the free pages of ``full`` and ``swa`` and the free slots of ``mamba``, for each component that the tree
    has. Page 0 is padding. ``swa_page``: the SWA page of each full page that has one.
    """

    page_size: int
    free: dict[str, list[int]]
    swa_page: dict[int, int] = field(default_factory=dict)

    def take_row(self, tokens: int, out_of_window: int) -> list[int] | None:
        """The full slots of whole pages for ``tokens`` tokens, with their SWA pages; ``None`` if out of memory.

        The first ``out_of_window`` tokens free their SWA pages at once, since they have left the window.
        """
        count = tokens // self.page_size
        if any(len(self.free[name]) < count for name in ("full", "swa") if name in self.free):
            return None
        pages = [self.free["full"].pop(0) for _ in range(count)]
        if "swa" in self.free:
            self.swa_page.update((page, self.free["swa"].pop(0)) for page in pages)
        slots = [page * self.page_size + offset for page in pages for offset in range(self.page_size)]
        self.give_swa(slots[:out_of_window])
        return slots

    def give_row(self, slots: Sequence[int]) -> None:
        """Frees whole full pages, with the SWA pages that they still have."""
        self.give_swa(slots)
        self.free["full"] += self._pages(slots)

    def give_swa(self, slots: Sequence[int]) -> None:
        """Frees the SWA pages of these full slots, where they still have some."""
        if "swa" in self.free:
            self.free["swa"] += [self.swa_page.pop(page) for page in self._pages(slots) if page in self.swa_page]

    def move_swa(self, given: Sequence[int], kept: Sequence[int]) -> None:
        """The SWA pages of the full slots ``given`` belong to the full slots ``kept`` from now on."""
        for old, new in zip(self._pages(given), self._pages(kept), strict=True):
            self.swa_page[new] = self.swa_page.pop(old)

    def swa_of(self, slots: Sequence[int]) -> list[int]:
        """The SWA slots of full slots."""
        pairs = (divmod(slot, self.page_size) for slot in slots)
        return [self.swa_page.get(page, 0) * self.page_size + offset for page, offset in pairs]

    def _pages(self, slots: Sequence[int]) -> list[int]:
        return list(dict.fromkeys(slot // self.page_size for slot in slots))


@dataclass
class NodeEntry:
    """What the prefix tree knows of a node: its key, its full slots, the node above, its state, its children, and its
    last use.
    """

    key: list[int]
    full: list[int]
    above: int
    mamba: int | None = None
    children: dict[tuple[int, ...], int] = field(default_factory=dict)
    used: int = 0


@dataclass(frozen=True)
class InsertRow:
    """What one insert brings.

    ``tokens``: the key, whole pages of token ids. ``slots``: the caller's own slots by position, from ``own`` on.
    ``cursor``: the tokens below it have no SWA slots.
    """

    tokens: list[int]
    slots: dict[int, int]
    cursor: int
    own: int

    def between(self, first: int, last: int) -> list[int]:
        """The slots of the positions ``[first, last)``."""
        return [self.slots[position] for position in range(first, last)]


def release_own(locks: LockTree, handle: LockHandle) -> None:
    """Releases the lock that the tree took for itself while it evicted a state."""
    locks.release([handle])


class OurTree:
    """A prefix tree over ``locks`` that matches, inserts and evicts as the law allows: a ``LockRefEngine``.

    ``release_own`` releases the lock that the tree takes for itself; a faulty variant has another function.
    """

    fragile = False

    def __init__(
        self,
        locks: LockTree,
        pools: TreePools,
        lacks: Collection[str] = (),
        release_own: Callable[[LockTree, LockHandle], None] = release_own,
        state_goes_early: bool = False,
    ) -> None:
        self.locks, self.pools, self.page_size = locks, pools, pools.page_size
        self._release_own = release_own
        missing = {"release_swa": not locks.windowed, "copy_on_write": not locks.stateful, "counts_missing": True}
        missing["state_goes_early"] = not state_goes_early
        self.lacks: Collection[str] = frozenset({*lacks, *(name for name, lacking in missing.items() if lacking)})
        self.entries: dict[int, NodeEntry] = {0: NodeEntry([], [], 0)}
        self.held: dict[int, LockHandle] = {}
        self._last_released: LockHandle | None = None
        self._clock = self._count = 0

    # Calls.

    def insert(self, tokens: list[int], cursor: int, protected: int) -> Inserted | None:
        """Inserts a row; ``None`` if out of memory."""
        whole = tokens[: len(tokens) // self.page_size * self.page_size]
        if self.locks.stateful and not self.pools.free["mamba"]:
            return None
        fresh = self.pools.take_row(len(whole) - protected, max(0, cursor - protected))
        if fresh is None:
            return None
        row = InsertRow(whole, dict(enumerate(fresh, protected)), cursor, protected)
        path = self._walk(whole)
        for node in path:
            self._overlap(node, row)
        prefix = int(self.locks.stop[path[-1]]) if path else 0
        last = self._grow(path[-1] if path else 0, prefix, row)
        if self.locks.stateful and last and self.entries[last].mamba is None:
            self.locks.set_mamba(last)
            self.entries[last].mamba = self.pools.free["mamba"].pop(0)
        return Inserted(prefix, fresh)

    def match(self, tokens: Sequence[int]) -> PrefixMatch:
        """The longest prefix that can be locked."""
        path = self._walk(tokens)
        usable = self.locks.lockable(path).tolist() if path else []
        if self.locks.stateful:
            usable = [fine and self.entries[n].mamba is not None for n, fine in zip(path, usable, strict=True)]
        best = max((k for k, fine in enumerate(usable, start=1) if fine), default=0)
        slots = [slot for node in path[:best] for slot in self.entries[node].full]
        return PrefixMatch(len(slots), path[best - 1] if best else 0, slots)

    def acquire(self, node: int) -> int:
        """Locks a node. Returns the number of the handle."""
        self._count += 1
        self.held[self._count] = self.locks.acquire([node])[0]
        return self._count

    def pin(self, node: int) -> int:
        """Locks a node, also where nodes of its window are tombstones. Returns the number of the handle."""
        self._count += 1
        self.held[self._count] = self.locks.acquire([node], over_tombstones=True)[0]
        return self._count

    def compact(self) -> None:
        """Merges every node into its parent where the locks allow it."""
        for node in sorted(n for n in self.entries if n):
            while node in self.entries and self.locks.mergeable(node):
                self._merge(node)

    def _merge(self, node: int) -> None:
        entry, above = self.entries[node], self.entries.pop(self.locks.merge(node))
        entry.key, entry.full, entry.above = above.key + entry.key, above.full + entry.full, above.above
        self.entries[entry.above].children[self._first(entry.key)] = node

    def release(self, handle: int, caller: str) -> None:
        """Releases a handle, which knows itself what it holds."""
        del caller
        self._last_released = self.held.pop(handle)
        self.locks.release([self._last_released])

    def release_swa(self, handle: int) -> None:
        """Releases the SWA part of a handle."""
        self.locks.release_swa([self.held[handle]])

    def copy_on_write(self, tokens: Sequence[int]) -> PrefixMatch:
        """Matches for a request that wants a copy of the state. Where no state is free, one is evicted while the
        matched node is locked.
        """
        found = self.match(tokens)
        if not self.pools.free["mamba"]:
            handle = self.locks.acquire([found.node])[0]
            self.evict(0, 0, 1)
            self._release_own(self.locks, handle)
        return found

    def evict(self, full: int, swa: int, mamba: int) -> None:
        """Frees at least so many tokens and states, the least recently used first, as far as nobody has locked them."""
        for name, wanted in (("full", full), ("swa", swa), ("mamba", mamba)):
            if name not in self.pools.free:
                continue
            free, per_page = self.pools.free[name], 1 if name == "mamba" else self.page_size
            before = len(free)
            while (len(free) - before) * per_page < wanted and self._evict_one(name):
                pass

    def bad(self, kind: str) -> None:
        """Sends bad input; the kinds are ``BAD`` in conformance/stems/lock_ref/rules.py."""
        outside = self.locks.capacity + 1
        held = next((handle.node for handle in self.held.values()), 0)
        released: list[Any] = [self._last_released]
        calls: dict[str, Callable[[], Any]] = {
            "release_again": lambda: self.locks.release(released),
            "release_swa_again": lambda: self.locks.release_swa(released),
            "acquire_outside": lambda: self.locks.acquire([*list(self.entries)[1:], outside]),
            "acquire_root": lambda: self.locks.acquire([0]),
            "evict_held": lambda: self.locks.evict_leaf(held),
            "split_outside": lambda: self.locks.split(held or outside, outside * 100),
        }
        calls[kind]()

    # Walking and splitting.

    def _walk(self, tokens: Sequence[int]) -> list[int]:
        """The nodes on the path of the tokens. A node in which the path ends is split there."""
        path, at, node = [], 0, 0
        whole = len(tokens) // self.page_size * self.page_size
        while at < whole and (child := self.entries[node].children.get(self._first(tokens[at:]))) is not None:
            key = self.entries[child].key
            pairs = zip(key, tokens[at:whole], strict=False)
            common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            common -= common % self.page_size
            node = child if common == len(key) else self._split(child, at + common)
            path.append(node)
            at += common
            if common < len(key):
                break
        self._clock += 1
        for n in path:
            self.entries[n].used = self._clock
        return path

    def _first(self, tokens: Sequence[int]) -> tuple[int, ...]:
        return tuple(tokens[: self.page_size])

    def _split(self, child: int, at: int) -> int:
        new, entry = self.locks.split(child, at), self.entries[child]
        cut = len(entry.key) - (int(self.locks.stop[child]) - at)
        upper = NodeEntry(entry.key[:cut], entry.full[:cut], entry.above, None, {}, entry.used)
        self.entries[entry.above].children[self._first(entry.key)] = new
        entry.key, entry.full, entry.above = entry.key[cut:], entry.full[cut:], new
        upper.children[self._first(entry.key)] = child
        self.entries[new] = upper
        return new

    # Inserting.

    def _overlap(self, node: int, row: InsertRow) -> None:
        """Inserts a part of a row where the tree has a node already.

        A tombstone that may be restored gets the row's slots. A tombstone that a handle holds gets the SWA slots alone.
        Any other node keeps its own slots, and the row's slots are freed.
        """
        start, stop = int(self.locks.start[node]), int(self.locks.stop[node])
        tombstone = self.locks.windowed and not self.locks.swa[node]
        if not (row.own <= start and row.cursor < stop and tombstone):
            self.pools.give_row(row.between(max(start, row.own), stop))
            return
        if start < row.cursor:
            self.pools.give_row(row.between(start, row.cursor))
            self._split(node, row.cursor)
        entry = self.entries[node]
        fresh = row.between(stop - len(entry.key), stop)
        if self.locks.revivable(node):
            self.locks.restore(node)
            self.pools.give_row(entry.full)
            entry.full = fresh
        else:
            self.locks.restore_swa(node)
            self.pools.move_swa(fresh, entry.full)
            self.pools.give_row(fresh)

    def _grow(self, under: int, start: int, row: InsertRow) -> int:
        """Inserts the rest of the row as leaves, cut at the cursor. A rest without any SWA slot is freed. Returns the
        last node, 0 if none.
        """
        last, windowed = len(row.tokens), self.locks.windowed
        if start < last and windowed and row.cursor >= last:
            self.pools.give_row(row.between(start, last))
            return 0
        for first, stop in pairwise((start, *((row.cursor,) if windowed and start < row.cursor else ()), last)):
            under = self._leaf(under, first, stop, row) if first < stop else under
        return under

    def _leaf(self, under: int, first: int, stop: int, row: InsertRow) -> int:
        leaf = self.locks.add_leaf(under, stop, swa=first >= row.cursor)
        key = row.tokens[first:stop]
        self.entries[leaf] = NodeEntry(key, row.between(first, stop), under, used=self._clock)
        self.entries[under].children[self._first(key)] = leaf
        return leaf

    # Evicting.

    def _evict_one(self, name: str) -> bool:
        """Evicts the component ``name`` of the least recently used node, or the whole node if it is a leaf. False if
        no node can lose it.
        """
        locks = self.locks
        there: dict[str, list[bool]] = {"swa": locks.swa.tolist(), "mamba": locks.mamba.tolist()}
        ref: list[int] = getattr(locks, f"{name}_ref").tolist()
        able = (n for n, e in self.entries.items() if n and (there[name][n] if name in there else not e.children))
        victim = min((n for n in able if not ref[n]), key=lambda n: self.entries[n].used, default=None)
        if victim is None:
            return False
        entry = self.entries[victim]
        if not entry.children and int(locks.full_ref[victim]) == 0:
            self._drop(victim)
        elif name == "swa":
            locks.evict_swa(victim)
            self.pools.give_swa(entry.full)
        else:
            locks.evict_mamba(victim)
            self._give_state(entry)
        return True

    def _drop(self, node: int) -> None:
        entry = self.entries.pop(node)
        self.locks.evict_leaf(node)
        del self.entries[entry.above].children[self._first(entry.key)]
        self.pools.give_row(entry.full)
        self._give_state(entry)

    def _give_state(self, entry: NodeEntry) -> None:
        if entry.mamba is not None:
            self.pools.free["mamba"].append(entry.mamba)
            entry.mamba = None

    # The snapshot.

    def snapshot(self) -> LockRefSnapshot:
        """The tree: lock tables from ``locks``, slots from the prefix tree."""
        locks, names = self.locks, tuple(self.pools.free)
        stop: list[int] = locks.stop.tolist()
        parent: list[int] = locks.parent.tolist()
        there: dict[str, list[bool]] = {name: getattr(locks, name).tolist() for name in names if name != "full"}
        refs: dict[str, list[int]] = {name: getattr(locks, f"{name}_ref").tolist() for name in names}
        nodes = [NodeSnapshot(0, None, [], {name: NodePart(None, 0) for name in names})]
        for node in sorted((n for n in self.entries if n), key=stop.__getitem__):
            entry = self.entries[node]
            slots: dict[str, list[int] | None] = {"full": list(entry.full)}
            if "swa" in there:
                slots["swa"] = self.pools.swa_of(entry.full) if there["swa"][node] else None
            if "mamba" in there:
                slots["mamba"] = None if entry.mamba is None or not there["mamba"][node] else [entry.mamba]
            parts = {name: NodePart(slots[name], refs[name][node]) for name in names}
            nodes.append(NodeSnapshot(node, parent[node], list(entry.key), parts))
        evictable, protected = (
            {name: int(getattr(locks, f"{name}_{which}_size")()) for name in names}
            for which in ("evictable", "protected")
        )
        return LockRefSnapshot(
            nodes, evictable, protected, {name: list(free) for name, free in self.pools.free.items()}
        )


def lock_ref(
    config: Json,
    device: str = "cpu",
    lacks: Collection[str] = (),
    locks: Callable[..., LockTree] = LockTree,
    release_own: Callable[[LockTree, LockHandle], None] = release_own,
    state_goes_early: bool = False,
    **options: Any,
) -> OurTree:
    """The locks under a prefix tree. ``locks`` makes them. ``release_own``: see ``OurTree``. Both may be faulty
    variants. ``state_goes_early``: the locks give the state back in ``release_swa``, too. On CUDA ``debug`` is on, so
    that bad input is found there too.
    """
    options = {"debug": device != "cpu", **options}
    components, window = config["components"], config["window"]
    sizes = {"full": config["size"], "swa": config["size_swa"], "mamba": config["size_mamba"]}
    shape = {"window": window, "windowed": "swa" in components, "stateful": "mamba" in components}
    made = locks(config["size"], **shape, device=device, **options)
    pools = TreePools(config["page_size"], {name: list(range(1, sizes[name] + 1)) for name in components})
    return OurTree(made, pools, lacks, release_own, state_goes_early)

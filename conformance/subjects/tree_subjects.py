"""Radix trees as subjects: our locks under a small prefix tree with slot pools, and the trees of an SGLang release."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from typing import Any

from conformance.subjects.adapter import Traits
from conformance.subjects.pagepools import Pools
from conformance.subjects.trees import Tree
from conformance.subjects.treeview import Inserted, Match, Node, Part, Seen
from impl.lock_ref import LockHandle, LockTree

OURS = Traits("ours", rejects=True)


@dataclass
class Entry:
    """What the prefix tree knows of a node: its key, its slots, what is below it, and when it was last used."""

    key: list[int]
    full: list[int]
    above: int
    mamba: int | None = None
    children: dict[tuple[int, ...], int] = field(default_factory=dict)
    used: int = 0


@dataclass(frozen=True)
class Row:
    """What one insert brings: its tokens, their slots from ``own`` on, the SWA cursor, and a state."""

    tokens: list[int]
    slots: dict[int, int]  # position -> slot, where it is the caller's own
    cursor: int
    own: int


class OurTree:
    """A prefix tree over ``LockTree`` that matches, inserts and evicts the lawful way."""

    def __init__(self, engine: LockTree, pools: Pools, traits: Traits = OURS) -> None:
        self.engine, self.pools, self.traits = engine, pools, traits
        self.page_size = pools.page_size
        self.entries: dict[int, Entry] = {0: Entry([], [], 0)}
        self.held: dict[int, LockHandle] = {}
        self.spent: LockHandle | None = None
        self._clock = self._count = 0

    def offers(self, name: str) -> bool:
        """What there is to do depends on the tree's components."""
        return {"release_swa": self.engine.windowed, "copy_on_write": self.engine.stateful}.get(name, True)

    # Calls.

    def insert(self, tokens: list[int], cursor: int = 0, protected: int = 0) -> Inserted | None:
        """Caches a row: its first ``protected`` slots are the tree's, the others new; ``None``: out of memory."""
        whole = tokens[: len(tokens) // self.page_size * self.page_size]
        fresh = self.pools.take_row(len(whole) - protected, max(0, cursor - protected), self.engine.stateful)
        if fresh is None:
            return None
        row = Row(whole, dict(enumerate(fresh.slots, protected)), cursor, protected)
        path = self._walk(whole)
        for node in path:
            self._overlap(node, row)
        prefix = int(self.engine.stop[path[-1]]) if path else 0
        last = self._grow(path[-1] if path else 0, prefix, row)
        kept = fresh.mamba is not None and self._give_state(last, fresh.mamba)
        if fresh.mamba is not None and not kept:
            self.pools.give("mamba", [fresh.mamba])
        return Inserted(prefix, fresh.slots, fresh.mamba, not kept)

    def match(self, tokens: Sequence[int]) -> Match:
        """The longest prefix that can be locked."""
        path = self._walk(tokens)
        usable = self.engine.lockable(path).tolist() if path else []
        if self.engine.stateful:
            usable = [fine and self.entries[n].mamba is not None for n, fine in zip(path, usable, strict=True)]
        best = max((k for k, fine in enumerate(usable, start=1) if fine), default=0)
        slots = [slot for node in path[:best] for slot in self.entries[node].full]
        return Match(len(slots), path[best - 1] if best else 0, slots)

    def acquire(self, node: int) -> int:
        """Locks a node; the number of the handle."""
        self._count += 1
        self.held[self._count] = self.engine.acquire([node])[0]
        return self._count

    def release(self, handle: int, caller: str = "request") -> None:
        """Gives a handle back; it knows itself what it holds."""
        del caller
        self.spent = self.held.pop(handle)
        self.engine.release([self.spent])

    def release_swa(self, handle: int) -> None:
        """Gives back the SWA part of a handle."""
        self.engine.release_swa([self.held[handle]])

    def copy_on_write(self, tokens: Sequence[int]) -> Match:
        """A state for a request; where there is none, one is evicted while the matched node is locked."""
        found = self.match(tokens)
        if not self.pools.free["mamba"]:
            handle = self.acquire(found.node)
            self.evict(mamba=1)
            self.release_temporary(handle)
        return found

    def release_temporary(self, handle: int) -> None:
        """The lock around an eviction is given back."""
        self.release(handle, "temporary")

    def evict(self, full: int = 0, swa: int = 0, mamba: int = 0) -> None:
        """Frees at least so many tokens and states, the least recently used first, as far as nobody holds them."""
        for name, wanted in (("full", full), ("swa", swa), ("mamba", mamba)):
            before = len(self.pools.free[name]) if name in self.pools.free else 0
            per_page = 1 if name == "mamba" else self.page_size
            while name in self.pools.free and (len(self.pools.free[name]) - before) * per_page < wanted:
                if not self._evict_one(name):
                    break

    def bad(self, kind: str) -> None:
        """Sends bad input; kinds see ``BAD`` in conformance.lock_rules."""
        outside = self.engine.capacity + 1
        held = next((h.node for h in self.held.values()), 0)
        spent: list[Any] = [self.spent]
        calls: dict[str, Callable[[], Any]] = {
            "release_again": lambda: self.engine.release(spent),
            "release_swa_again": lambda: self.engine.release_swa(spent),
            "acquire_outside": lambda: self.engine.acquire([*list(self.entries)[1:], outside]),
            "acquire_root": lambda: self.engine.acquire([0]),
            "evict_held": lambda: self.engine.evict_leaf(held),
            "split_outside": lambda: self.engine.split(held or outside, outside * 100),
        }
        calls[kind]()

    # Walking and splitting.

    def _walk(self, tokens: Sequence[int]) -> list[int]:
        """The nodes whose keys the tokens go through; one that they leave half way is split."""
        path, at, node = [], 0, 0
        whole = len(tokens) // self.page_size * self.page_size
        while at < whole and (child := self.entries[node].children.get(self._first(tokens[at:]))) is not None:
            key = self.entries[child].key
            same = sum(1 for _ in takewhile(lambda p: p[0] == p[1], zip(key, tokens[at:whole], strict=False)))
            same -= same % self.page_size
            node = child if same == len(key) else self._split(child, at + same)
            path.append(node)
            at += same
            if same < len(key):
                break
        self._clock += 1
        for n in path:
            self.entries[n].used = self._clock
        return path

    def _first(self, tokens: Sequence[int]) -> tuple[int, ...]:
        return tuple(tokens[: self.page_size])

    def _split(self, child: int, at: int) -> int:
        new, entry = self.engine.split(child, at), self.entries[child]
        cut = len(entry.key) - (int(self.engine.stop[child]) - at)
        upper = Entry(entry.key[:cut], entry.full[:cut], entry.above, None, {}, entry.used)
        self.entries[entry.above].children[self._first(entry.key)] = new
        entry.key, entry.full, entry.above = entry.key[cut:], entry.full[cut:], new
        upper.children[self._first(entry.key)] = child
        self.entries[new] = upper
        return new

    # Inserting.

    def _overlap(self, node: int, row: Row) -> None:
        """A node that is there already: a tombstone that nobody reads is restored, else the row's slots are freed."""
        start, stop = int(self.engine.start[node]), int(self.engine.stop[node])
        if self.restorable(node) and row.own <= start and row.cursor < stop:
            if start < row.cursor:
                self._free_row(row, start, row.cursor)
                self._split(node, row.cursor)
            self._replace(node, row)
        else:
            self._free_row(row, max(start, row.own), stop)

    def restorable(self, node: int) -> bool:
        """A tombstone whose full slots nobody reads."""
        engine = self.engine
        return engine.windowed and not bool(engine.swa[node]) and int(engine.full_ref[node]) == 0

    def _replace(self, node: int, row: Row) -> None:
        entry, start = self.entries[node], int(self.engine.start[node])
        self.engine.restore(node)
        self.pools.give_row(entry.full)
        entry.full = [row.slots[p] for p in range(start, start + len(entry.key))]

    def _free_row(self, row: Row, first: int, last: int) -> None:
        self.pools.give_row([row.slots[p] for p in range(first, last)])

    def _grow(self, under: int, start: int, row: Row) -> int:
        """The rest of the row as leaves, cut at the cursor; what lies below the cursor alone is not kept."""
        last = len(row.tokens)
        if start < last and self.engine.windowed and row.cursor >= last:
            self._free_row(row, start, last)
            return 0
        cuts = [start, *([row.cursor] if self.engine.windowed and start < row.cursor else []), last]
        for first, stop in pairwise(cuts):
            under = self._leaf(under, first, stop, row) if first < stop else under
        return under

    def _leaf(self, under: int, first: int, stop: int, row: Row) -> int:
        leaf = self.engine.add_leaf(under, stop, swa=first >= row.cursor)
        key = row.tokens[first:stop]
        self.entries[leaf] = Entry(key, [row.slots[p] for p in range(first, stop)], under, used=self._clock)
        self.entries[under].children[self._first(key)] = leaf
        return leaf

    def _give_state(self, node: int, slot: int) -> bool:
        if not node or self.entries[node].mamba is not None:
            return False
        self.engine.set_mamba(node)
        self.entries[node].mamba = slot
        return True

    # Evicting.

    def _evict_one(self, name: str) -> bool:
        victims = [n for n in self.entries if n and self.evictable(name, n)]
        victim = min(victims, key=lambda n: self.entries[n].used, default=None)
        if victim is None:
            return False
        if self._is_leaf(victim) and int(self.engine.full_ref[victim]) == 0:
            self._drop(victim)
        elif name == "swa":
            self.engine.evict_swa(victim)
            self.pools.give_swa(self.entries[victim].full)
        else:
            self.engine.evict_mamba(victim)
            self.pools.give("mamba", [self.entries[victim].mamba])
            self.entries[victim].mamba = None
        return True

    def evictable(self, name: str, node: int) -> bool:
        """Nobody holds what would go."""
        engine = self.engine
        if name == "full":
            return self._is_leaf(node) and int(engine.full_ref[node]) == 0
        has, ref = (engine.swa, engine.swa_ref) if name == "swa" else (engine.mamba, engine.mamba_ref)
        return bool(has[node]) and int(ref[node]) == 0

    def _is_leaf(self, node: int) -> bool:
        return not self.entries[node].children

    def _drop(self, node: int) -> None:
        entry = self.entries.pop(node)
        self.engine.evict_leaf(node)
        del self.entries[entry.above].children[self._first(entry.key)]
        self.pools.give_row(entry.full)
        if entry.mamba is not None:
            self.pools.give("mamba", [entry.mamba])

    # What callers see.

    def observe(self) -> Seen:
        """The tree as its tables show it, with the slots of the prefix tree."""
        engine = self.engine
        nodes = [Node(0, None, [], {name: Part(None, 0) for name in self.pools.free}), *map(self._node, self._order())]
        evictable, protected = (
            {name: int(getattr(engine, f"{name}_{which}_size")()) for name in self.pools.free}
            for which in ("evictable", "protected")
        )
        return Seen(nodes, evictable, protected, {name: list(pages) for name, pages in self.pools.free.items()})

    def _order(self) -> list[int]:
        return sorted((n for n in self.entries if n), key=lambda n: int(self.engine.stop[n]))

    def _node(self, node: int) -> Node:
        engine, entry = self.engine, self.entries[node]
        parts = {"full": Part(entry.full, int(engine.full_ref[node]))}
        if engine.windowed:
            slots = self.pools.swa_of(entry.full) if engine.swa[node] else None
            parts["swa"] = Part(slots, int(engine.swa_ref[node]))
        if engine.stateful:
            state = None if entry.mamba is None or not engine.mamba[node] else [entry.mamba]
            parts["mamba"] = Part(state, int(engine.mamba_ref[node]))
        return Node(node, int(engine.parent[node]), list(entry.key), parts)


class EngineTree(Tree):
    """A tree of a release; a request that was given a copy of a state ends at once."""

    traits = Traits("sglang", fragile=True)

    def offers(self, name: str) -> bool:
        """What the release has for these components."""
        return {"release_swa": self.releases_early, "copy_on_write": "mamba" in self.components}.get(name, True)

    def copy_on_write(self, tokens: list[int]) -> Match:
        """As the tree does it; then the copy is given back."""
        found = super().copy_on_write(tokens)
        self._give_mamba(found.mamba)
        return found

"""The nodes of a cache's tree, and the steps of the law that explain how they came to be.

A node is known by its *key*: the token ids from the root to its end. What a leaving row put into the tree lies on the
path of the row's text. The tree itself splits and evicts. What no step of the law explains is a finding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from conformance.driver.lockstep import Finding, Law
from conformance.driver.protocol import Key
from conformance.stems.lock_ref.protocol import NodeSnapshot
from conformance.stems.swa_mapping.projection import waits_in_group
from conformance.stems.swa_mapping.protocol import SwaMappingSnapshot
from spec.cache_state import CacheState, home
from spec.lock_ref_state import ROOT, begin
from spec.mamba_slots_state import OWN
from spec.session_trim_state import full_pool


class EarlyLock(NamedTuple):
    """A lock that an engine took for a request before the request had a row.

    ``top``: the key of the node at which its window ended then. ``after``: how many splits were put off before it.
    """

    top: Key
    after: int


class CacheNodes:
    """``at``: the law's number of each node, by its key. ``seen``: the nodes as the engine shows them,
    parents first.

    The law takes the lock of a request together with its row. An engine that puts a batch together locks a node for one
    request, then splits nodes for the next one, and gives out rows last. Where a window ends is decided when the lock
    is taken. So a split of the node at which the window of such a lock ends is put off: the law takes it after the
    lock, as the engine did.
    """

    def __init__(self, page_size: int, law: Law) -> None:
        self.page_size, self.law = page_size, law
        self.at: dict[Key, int] = {}
        self.seen: Mapping[Key, NodeSnapshot] = {}
        self._early: dict[int, EarlyLock] = {}  # of requests that have no row yet
        self._put_off: list[Key] = []  # the upper parts that these splits made, in their order

    @property
    def state(self) -> CacheState:
        """The law's state."""
        found: CacheState = self.law.state
        return found

    def grown(self) -> bool:
        """The tree has nodes."""
        return bool(self.at)

    def pages(self, key: Sequence[int]) -> int:
        """How many whole pages a key has."""
        return len(key) // self.page_size

    # What the tree does without being asked.

    def follow(self) -> None:
        """Explains splits and evictions. Raises ``Finding`` if the tree has something that no row left to it."""
        self.split()
        for key in self._settled():
            if key not in self.at or self._revived(key):
                what = "is in the tree" if key not in self.at else "has SWA slots again"
                raise self._wrong("insert_leaf", f"node {list(key)} {what}, and no row inserted it")
        if given := self.given():
            raise self._wrong("state_copy", f"node {list(given[0])} has a state, and no request gave it one")
        self.lose(set(self.at) - set(self.seen))

    def split(self) -> None:
        """Explains new nodes that end inside a node of the law: they are upper parts of this node. Then explains nodes
        that have taken in their parents. A split of a node at which the window of an early lock ends is put off.
        """
        if not self._early:
            self._put_off.clear()
        tops = {lock.top for lock in self._early.values()}
        for key in self._settled():
            if key not in self.at and (child := self._across(key)):
                if child in tops:
                    self._put_off.append(key)
                else:
                    self._cut(child, key)
        for key in [key for key in self.seen if key in self.at]:
            self._merge(key)

    def _cut(self, child: Key, key: Key) -> None:
        """Explains that ``key`` is an upper part of the node ``child`` now."""
        new = self.spare()
        self.law.engine_step("split", self.at[child], new, self.pages(key))
        self.at[key] = new

    def _settled(self) -> list[Key]:
        """The engine's nodes without those that splits made which are put off."""
        return [key for key in self.seen if key not in self._put_off]

    def locked_early(self, request: int, top: Key) -> None:
        """The engine has locked a node for a request that has no row yet. ``top``: where the window ends."""
        self._early[request] = EarlyLock(top, len(self._put_off))

    def top_of_early(self, request: int) -> int | None:
        """The law's node at which the window of a request's early lock ended when it was taken; ``None``: it has no
        such lock. First the splits are explained that were put off and came before this lock. The request gets its row
        next; other requests must do so in the order of their locks.
        """
        lock = self._early.pop(request, None)
        if lock is None:
            return None
        for key in self._put_off[: lock.after]:
            if key not in self.at and (child := self._across(key)):
                self._cut(child, key)
        return self.at.get(lock.top, -1)

    def _merge(self, key: Key) -> None:
        """Explains that the engine's node begins above the law's: its first pages are those of the nodes above."""
        number, shown = self.at[key], self._pages_at(key)
        own = self._pages_of(key, number)
        while len(own) < len(shown):
            tree = self.state.tree
            above = tree.parent(number)
            upper = key[: begin(tree, number) * self.page_size]
            if above == ROOT or upper in self.seen:
                return
            own = self._pages_of(upper, above) + own
            if shown[-len(own) :] != own:
                return
            self.law.engine_step("merge", number, above)
            del self.at[upper]

    def _across(self, key: Key) -> Key | None:
        """The key of the node of which ``key`` is an upper part: it begins before the end of ``key``, and goes on
        beyond it.

        It was split if the node still has its pages below the split, or if the new node has its pages above. Otherwise
        the node was evicted, and a row left other pages in its place.
        """
        below = (known for known in self.at if known[: len(key)] == key)
        split = (k for k in below if begin(self.state.tree, self.at[k]) < self.pages(key))
        return next((k for k in split if self._goes_on(k) or self._same(key, self.at[k])), None)

    def _goes_on(self, key: Key) -> bool:
        """The last pages of the law's node are those of the engine's node."""
        now = self._pages_at(key) if key in self.seen else []
        return bool(now) and self._pages_of(key, self.at[key])[-len(now) :] == now

    def _same(self, key: Key, number: int) -> bool:
        """Up to the end of ``key`` the law's node has the pages of the engine's node."""
        return self._pages_of(key, number) == self._pages_at(key)

    def _pages_of(self, key: Key, number: int) -> list[int]:
        """The full pages that the law's node has up to the end of ``key``."""
        st = self.state
        table = full_pool(st.rows).table
        return [table(home(st, number), i) for i in range(begin(st.tree, number), self.pages(key))]

    def _pages_at(self, key: Key) -> list[int]:
        """The full pages that the engine's node has."""
        slots = self.seen[key].parts["full"].slots or []
        return [slot // self.page_size for slot in slots[:: self.page_size]]

    def lose(self, gone: set[Key]) -> None:
        """Explains that these nodes have left the tree, and that others lost their SWA pages or their state.

        A node that left and has nodes below it was evicted to a tombstone first.
        """
        for key in sorted(gone, key=len, reverse=True):
            if key in self.seen and any(other[: len(key)] == key for other in self.at if other != key):
                self.law.engine_step("evict_swa", self.at[key])
                continue
            number = self.at.pop(key)
            stateful = self.state.tree.mamba(number) == 1
            self.law.engine_step("evict_leaf_and_state" if stateful else "evict_leaf", number)
        for key, number in self.at.items():
            if key in self.seen and self.state.tree.swa(number) == 1 and not self._has(key, "swa"):
                self.law.engine_step("evict_swa", number)
            if key in self.seen and self.state.tree.mamba(number) == 1 and not self.has_state(key, number):
                self.law.engine_step("state_evict", number)

    def lose_state(self, slot: int) -> None:
        """Explains that the tree gave up the state in this slot, if the law has it there and the engine does not."""
        for key, number in self.at.items():
            if self.state_slot(number) == slot and not (key in self.seen and self.has_state(key, number)):
                self.law.engine_step("state_evict", number)

    def replaced(self) -> set[Key]:
        """The nodes that left, and those in whose place a row left other pages."""
        return {key for key in self.at if key not in self.seen or self._other(key)}

    def _other(self, key: Key) -> bool:
        """The node is no tombstone in the law, and the engine's node has other full pages."""
        number, tree = self.at[key], self.state.tree
        live = tree.swa(number) == 1 or not tree.windowed
        return bool(live) and not self._same(key, number)

    # What rows insert.

    def new(self, text: Sequence[int]) -> list[Key]:
        """The keys on the path of a text that are new nodes or revived tombstones, parents first."""
        mine = (key for key in self._settled() if tuple(text[: len(key)]) == key)
        return sorted((key for key in mine if key not in self.at or self._revived(key)), key=len)

    def take(self, row: int, text: Sequence[int], pools: SwaMappingSnapshot) -> None:
        """Explains what a leaving row put into the tree on the path of its text. Its pages between the new nodes are
        duplicates. ``pools``: as the engine shows them.
        """
        for key in self.new(text):
            first = self.pages(key) - self.pages(self.seen[key].key)
            self.duplicates(row, first)
            if key in self.at:
                self._revive(row, key, first, pools)
                continue
            under, number = self.at.get(key[: first * self.page_size], ROOT), self.spare()
            self.law.engine_step("insert_leaf", row, under, number, self.pages(key), self._has(key, "swa"))
            self.at[key] = number

    def _revive(self, row: int, key: Key, first: int, pools: SwaMappingSnapshot) -> None:
        """Explains that a node got SWA pages of a leaving row. ``first``: the index of the first of these pages."""
        number, rows = self.at[key], self.state.rows
        if not self._same(key, number):
            self.law.engine_step("revive_tombstone", row, number)
            return
        later = waits_in_group(rows.pools.group, full_pool(rows).table(row, first), pools)
        self.law.engine_step("revive_in_place", row, number, later)

    def duplicates(self, row: int, upto: int) -> None:
        """Explains that the row's own pages below page index ``upto`` were freed as duplicates of the tree's."""
        if self.state.rows.protected(row) < upto:
            self.law.engine_step("drop_duplicates", row, upto)

    def given(self) -> list[Key]:
        """The keys of nodes that have a state now and had none."""
        tree = self.state.tree
        return [key for key, n in self.at.items() if key in self.seen and self._has(key, "mamba") and not tree.mamba(n)]

    def has_bare(self, page: int) -> bool:
        """The engine's tree has this full page, and not its SWA page."""
        return any(page in self._pages_at(key) and not self._has(key, "swa") for key in self.seen)

    def _has(self, key: Key, side: str) -> bool:
        part = self.seen[key].parts.get(side)
        return part is not None and part.slots is not None

    def has_state(self, key: Key, number: int) -> bool:
        """The engine's node has the state that the law's node has. It may have lost that one and got another."""
        return self.seen[key].parts["mamba"].slots == [self.state_slot(number)]

    def state_slot(self, number: int) -> int:
        """The state slot of the law's node, 0 where it has none."""
        st = self.state.states
        return int(st.table(st.first_node + number, OWN))

    def _revived(self, key: Key) -> bool:
        return self._has(key, "swa") and self.state.tree.swa(self.at[key]) != 1

    def spare(self) -> int:
        """A number that no node has. Raises ``Finding`` if there is none."""
        taken = set(self.at.values())
        number: int | None = next((n for n in self.state.tree.nodes.items() if n not in taken), None)
        if number is None:
            raise self._wrong("node_owns_its_key", "the tree has more nodes than the pool has pages")
        return number

    def _wrong(self, name: str, what: str) -> Finding:
        stem = self.law.stem
        known = stem.transitions.get(name) or stem.invariants[name].holds
        return Finding(name, " ".join((known.__doc__ or "").split()), what)

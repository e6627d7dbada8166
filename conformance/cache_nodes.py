"""The nodes of a cache's tree, and the steps of the law by which they became what they are.

A node is known by the tokens from the root to its end. What a row put into the tree lies on the path of its text, and
is the row's leaving; cuts and evictions are the tree's own. What no step of the law explains is a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from conformance.machine import Finding
from conformance.subjects.treeview import Node
from conformance.tree_slots import Key
from spec.cache import stem
from spec.rows import full_pool
from spec.states import OWN
from spec.tree import ROOT, begin
from spec.whole import Whole, home

Must = Callable[..., None]
State = Callable[[], Whole]


class TreeNodes:
    """``at``: the law's number of each node; ``seen``: the nodes as the subject shows them, parents first."""

    def __init__(self, page_size: int, state: State, must: Must) -> None:
        self.page_size, self.state, self.must = page_size, state, must
        self.at: dict[Key, int] = {}
        self.seen: dict[Key, Node] = {}

    def grown(self) -> bool:
        """The tree has something."""
        return bool(self.at)

    def pages(self, key: Sequence[int]) -> int:
        """How many pages so many tokens have."""
        return len(key) // self.page_size

    # The tree's own doings.

    def follow(self, _: Any = None) -> None:
        """What was cut, and what was given back; nothing is there that no row left."""
        self.cut()
        for key in self.seen:
            if key not in self.at or self._revived(key):
                what = "is in the tree" if key not in self.at else "has its SWA part back"
                raise _wrong("leave", f"the node {list(key)} {what}, and no row left it there")
        if given := self.given():
            raise _wrong("state_copy", f"the node {list(given[0])} has a state, and nobody gave it one")
        self.lose(set(self.at) - set(self.seen))

    def cut(self) -> None:
        """Nodes that end where a longer one did not are its upper parts."""
        for key in self.seen:
            if key not in self.at and (child := self._across(key)):
                new = self.spare()
                self.must("split", self.at[child], new, self.pages(key))
                self.at[key] = new

    def _across(self, key: Key) -> Key | None:
        """The node of which ``key`` is an upper part: it begins before the end of ``key``, and goes on beyond it.

        It was cut there if it still has its own pages below the cut, or if ``key`` has its pages above. Otherwise it
        has left, and a row has left its own pages in its place.
        """
        below = (known for known in self.at if known[: len(key)] == key)
        cut = (k for k in below if begin(self.state().tree, self.at[k]) < self.pages(key))
        return next((k for k in cut if self._goes_on(k) or self._same(key, self.at[k])), None)

    def _goes_on(self, key: Key) -> bool:
        """What the subject's node has are the last pages that the law's has."""
        now = self._pages_at(key) if key in self.seen else []
        return bool(now) and self._pages_of(key, self.at[key])[-len(now) :] == now

    def _same(self, key: Key, number: int) -> bool:
        """Up to its end the subject's node has the pages of the law's."""
        return self._pages_of(key, number) == self._pages_at(key)

    def _pages_of(self, key: Key, number: int) -> list[int]:
        """The pages that the law's node has up to the end of ``key``."""
        tree, table = self.state().tree, full_pool(self.state().life).table
        return [table(home(self.state(), number), i) for i in range(begin(tree, number), self.pages(key))]

    def _pages_at(self, key: Key) -> list[int]:
        """The pages that the subject's node has."""
        slots = self.seen[key].parts["full"].slots or []
        return [slot // self.page_size for slot in slots[:: self.page_size]]

    def lose(self, gone: set[Key]) -> None:
        """These nodes have left, those with nodes below them their window; others lost that, or their state."""
        for key in sorted(gone, key=len, reverse=True):
            if key in self.seen and any(other[: len(key)] == key for other in self.at if other != key):
                self.must("evict_swa", self.at[key])
                continue
            number = self.at.pop(key)
            self.must("evict_leaf_and_state" if self.state().tree.mamba(number) == 1 else "evict_leaf", number)
        for key, number in self.at.items():
            if key in self.seen and self.state().tree.swa(number) == 1 and not self._has(key, "swa"):
                self.must("evict_swa", number)
            if key in self.seen and self.state().tree.mamba(number) == 1 and not self._has_state(key, number):
                self.must("state_evict", number)

    def replaced(self) -> set[Key]:
        """The nodes that left, and those in whose place a row left others."""
        return {key for key in self.at if key not in self.seen or self._other(key)}

    def _other(self, key: Key) -> bool:
        """A node that has its window, and not the pages that it had."""
        number = self.at[key]
        live = self.state().tree.swa(number) == 1
        return bool(live) and not self._same(key, number)

    # What rows leave to it.

    def new(self, text: Sequence[int]) -> list[Key]:
        """The nodes on the path of a text that were not there, or were tombstones, parents first."""
        mine = (key for key in self.seen if tuple(text[: len(key)]) == key)
        return sorted((key for key in mine if key not in self.at or self._revived(key)), key=len)

    def take(self, row: int, text: Sequence[int]) -> None:
        """A leaving row has put what is new on its path into the tree; what lies between are copies."""
        for key in self.new(text):
            first = self.pages(key) - self.pages(self.seen[key].key)
            self.copies(row, first)
            if key in self.at:
                self.must("leave_window", row, self.at[key])
                continue
            under, number = self.at.get(key[: first * self.page_size], ROOT), self.spare()
            self.must("leave", row, under, number, self.pages(key), self._has(key, "swa"))
            self.at[key] = number

    def copies(self, row: int, upto: int) -> None:
        """The row's pages below ``upto`` that it still owns are copies of the tree's."""
        if self.state().life.protected(row) < upto:
            self.must("leave_copies", row, upto)

    def given(self) -> list[Key]:
        """The nodes that have a state now, and had none."""
        tree = self.state().tree
        return [key for key, n in self.at.items() if key in self.seen and self._has(key, "mamba") and not tree.mamba(n)]

    def _has(self, key: Key, side: str) -> bool:
        part = self.seen[key].parts.get(side)
        return part is not None and part.slots is not None

    def _has_state(self, key: Key, number: int) -> bool:
        """The node has the state that it had; it may have lost that, and have another one since."""
        part, st = self.seen[key].parts["mamba"], self.state().states
        return part.slots == [st.table(st.first_node + number, OWN)]

    def _revived(self, key: Key) -> bool:
        return self._has(key, "swa") and self.state().tree.swa(self.at[key]) != 1

    def spare(self) -> int:
        """A number that no node has."""
        taken = set(self.at.values())
        number: int | None = next((n for n in self.state().tree.nodes.items() if n not in taken), None)
        if number is None:
            raise _wrong("node_owns_its_key", "the tree has more nodes than the pool has pages")
        return number


def _wrong(name: str, what: str) -> Finding:
    law = stem.transitions.get(name) or stem.invariants[name].holds
    return Finding(name, " ".join((law.__doc__ or "").split()), what)

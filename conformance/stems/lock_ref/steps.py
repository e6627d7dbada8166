"""Explains a radix tree that an engine shows as steps of the law: which nodes it has split, merged, evicted, given
slots again, and added.

What a call has done is told by the nodes before and after it, and most of all by their full slots: they say whether a
node is the one that was there, or another with its key. The ways are tried in this order, and the first that the law
allows is the explanation:

1. A node whose full slots are those of the insert now was evicted and inserted anew, and so was all below it. It is no
   such node if it is a tombstone that came to life (5) or if something below it kept its slots.
2. A new node that ends inside a known one was split off it.
3. A node that begins above a known one with its key has taken in its parent.
4. Parts that a node does not show any more were evicted, a state that it shows now was given to it.
5. A tombstone that shows SWA slots came to life: with its own full slots, or with those of the insert.
6. A known node that is not shown any more was evicted, after those below it.
7. Any other new node is a leaf with slots of the insert.

A way that the law does not allow is a finding, and so is a tree that shows other slots than the steps say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from conformance.driver.lockstep import Finding, Law
from conformance.driver.protocol import Key
from conformance.stems.lock_ref.contents import along
from conformance.stems.lock_ref.projection import has_part
from conformance.stems.lock_ref.protocol import NodeSnapshot
from spec import lock_ref_state
from spec.finite import Domain
from spec.lock_ref_state import ROOT, LockRefState
from spec.logic import but

Nodes = Mapping[Key, NodeSnapshot]


class TreeSteps:
    """The law's steps for what an engine shows of its tree.

    ``numbers``: the law's number of each node, by its key. ``keys``: the key of each number, also of a node that has
    left the tree, until another node gets its number. ``rows``: the full slots of each insert, by position; the index
    is the number of the insert.
    """

    def __init__(self, law: Law, page_size: int, most_nodes: int) -> None:
        self.law, self.page_size, self.most_nodes = law, page_size, most_nodes
        self.numbers: dict[Key, int] = {}
        self.keys: dict[int, Key] = {}
        self.rows: dict[int, list[int]] = {}
        self._lawful: tuple[Any, dict[Key, list[int]]] = (None, {})

    @property
    def state(self) -> LockRefState:
        """The law's tree."""
        state: LockRefState = self.law.state
        return state

    def explain(self, shown: Nodes, source: int) -> None:
        """Explains the nodes that the engine shows. ``source``: the number of the insert from which new slots come, or
        0 after any other call.
        """
        numbers = self.numbers
        if source:
            self._evict(self._inserted_anew(shown, self.rows[source]))
        for key in sorted(shown.keys() - numbers.keys()):
            self._explain_split(key)
        for key in sorted(shown.keys() & numbers.keys(), key=len):
            self._explain_merge(key, shown[key])
        for key in sorted(shown.keys() & numbers.keys()):
            self._explain_parts(key, shown[key], source)
        self._evict(numbers.keys() - shown.keys())
        for key in sorted(shown.keys() - numbers.keys()):
            self._explain_leaf(key, shown[key], source)

    def lawful_slots(self) -> dict[Key, list[int]]:
        """The full slots that each node must have, by its key."""
        st = self.state
        if self._lawful[0] is not st:
            slots = {
                k: self.rows[st.source(n)][lock_ref_state.begin(st, n) : st.stop(n)] for k, n in self.numbers.items()
            }
            self._lawful = (st, slots)
        return self._lawful[1]

    # Nodes that were evicted.

    def _evict(self, keys: set[Key]) -> None:
        """The nodes with these keys were evicted, the longest keys first, so that each is a leaf then."""
        for key in sorted(keys, key=len, reverse=True):
            self.law.engine_step("evict_leaf", self.numbers[key])
            del self.numbers[key]

    def _inserted_anew(self, shown: Nodes, row: list[int]) -> set[Key]:
        """The keys of the nodes that were evicted in an insert although the engine shows their tokens: it has inserted
        them anew, with slots of ``row``, which is the row of the insert.
        """
        now = {key: self._shown_slots(key, shown) for key in self.numbers}
        fresh = {key for key, slots in now.items() if all(row[at : at + 1] == [slot] for at, slot in slots.items())}
        found: set[Key] = set()
        for key in fresh:
            if self._has_other_slots(key, now[key]) and not self._comes_to_life(key, shown):
                below = {other for other in self.numbers if other[: len(key)] == key}
                found |= below if below <= fresh else set()
        return found

    def _shown_slots(self, key: Key, shown: Nodes) -> dict[int, int]:
        """The full slots that the engine shows for the tokens of a known node, by position. Tokens that its tree does
        not have are left out.
        """
        first = lock_ref_state.begin(self.state, self.numbers[key])
        return {at: slot for at, slot in along(shown, key, "full", self.page_size).items() if at >= first}

    def _has_other_slots(self, key: Key, now: Mapping[int, int]) -> bool:
        """Some tokens of a known node are shown with other slots than it has."""
        first, lawful = lock_ref_state.begin(self.state, self.numbers[key]), self.lawful_slots()[key]
        return any(lawful[at - first] != slot for at, slot in now.items())

    def _comes_to_life(self, key: Key, shown: Nodes) -> bool:
        """A known node is a tombstone, and a node that ends where it ends, or inside it, shows SWA slots."""
        st, number = self.state, self.numbers[key]
        ends = (shown.get(key[:at]) for at in range(lock_ref_state.begin(st, number) + 1, len(key) + 1))
        return bool(st.windowed) and st.swa(number) == 0 and any(node and has_part(node, "swa") for node in ends)

    # Nodes that are split and merged.

    def _explain_split(self, key: Key) -> None:
        if child := next(self._cut_by(key), None):
            new = self._number_for(key)
            self.law.engine_step("split", self.numbers[child], new, len(key))

    def _cut_by(self, key: Key) -> Iterator[Key]:
        """The known nodes inside of which the key ends."""
        st = self.state
        return (k for k, n in self.numbers.items() if k[: len(key)] == key and lock_ref_state.begin(st, n) < len(key))

    def _explain_merge(self, key: Key, node: NodeSnapshot) -> None:
        """The engine's node begins above the law's node: it has taken in its parent."""
        number, first = self.numbers[key], len(key) - len(node.key)
        while first < lock_ref_state.begin(self.state, number):
            st = self.state
            above = st.parent(number)
            begin, stop = lock_ref_state.begin(st, above), st.stop(above)
            self.law.engine_step("merge", number, above)
            # From now on the slots of both are slots of the node's insert.
            self.rows[st.source(number)][begin:stop] = self.rows[st.source(above)][begin:stop]
            del self.numbers[key[:stop]]

    # Parts of nodes.

    def _explain_parts(self, key: Key, node: NodeSnapshot, source: int) -> None:
        number, st = self.numbers[key], self.state
        if has_part(node, "swa") and st.swa(number) != 1:
            self._explain_revival(key, node, source)
        elif st.swa(number) == 1 and not has_part(node, "swa"):
            self.law.engine_step("evict_swa", number)
        if has_part(node, "mamba") != (st.mamba(number) == 1):
            self.law.engine_step("evict_mamba" if st.mamba(number) == 1 else "set_mamba", number)

    def _explain_revival(self, key: Key, node: NodeSnapshot, source: int) -> None:
        """A tombstone has SWA slots again: with the full slots that it had, or with those of the insert."""
        self._must_be_inserted("restore", key, source)
        if node.parts["full"].slots == self.lawful_slots()[key]:
            self.law.engine_step("restore_swa", self.numbers[key])
        else:
            self.law.engine_step("restore", self.numbers[key], source)

    # New nodes.

    def _explain_leaf(self, key: Key, node: NodeSnapshot, source: int) -> None:
        self._must_be_inserted("add_leaf", key, source)
        under = self.numbers.get(key[: len(key) - len(node.key)], ROOT)
        new = self._number_for(key)
        parts = has_part(node, "swa"), has_part(node, "mamba")
        self.law.engine_step("add_leaf", under, new, len(key), source, *parts)

    def _must_be_inserted(self, name: str, key: Key, source: int) -> None:
        """Raises ``Finding`` if the call was no insert, since only an insert brings slots."""
        if not source:
            what = f"node {list(key)} has new slots, and the call was no insert"
            raise Finding(name, self.law.sentence(name), what)

    def _number_for(self, key: Key) -> int:
        """A number for a new node.

        The law's tree gets room for the node only now, so that laws about pairs and triples of nodes look at few
        nodes.
        """
        taken = set(self.numbers.values())
        number = next(n for n in range(1, len(taken) + 2) if n not in taken)
        if number > self.most_nodes:
            raise Finding("own_slots", self.law.stem.invariants["own_slots"].sentence, "more nodes than pages")
        if not self.state.nodes.has(number):
            self.law.state = but(self.state, nodes=Domain(1, number))
        self.numbers[key], self.keys[number] = number, key
        return number

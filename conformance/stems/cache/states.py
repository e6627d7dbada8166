"""The mamba states of a cache: explains as steps of the law which slots requests, sessions and nodes name.

``spec.mamba_in_cache`` says which owner number a request, a session's slot and a node have in the law.
"""

from __future__ import annotations

from collections.abc import Mapping

from conformance.driver.lockstep import Finding, Law
from conformance.driver.protocol import Key
from conformance.stems.cache.nodes import CacheNodes
from conformance.stems.mamba_slots.projection import record_of
from conformance.stems.mamba_slots.protocol import MambaSlotsSnapshot, Three
from conformance.stems.requests.calls import RequestCalls
from spec.finite import Seq
from spec.mamba_slots_state import ABSENT, IDLE, OWN, ROLES, MambaSlotsState, across, has_two, kept, needed


class CacheStates:
    """The states of one cache. ``seen``: as the engine shows them."""

    def __init__(self, law: Law, nodes: CacheNodes) -> None:
        self.law, self.nodes = law, nodes
        self.calls: RequestCalls
        self.seen = MambaSlotsSnapshot([], 0)

    @property
    def state(self) -> MambaSlotsState:
        """The law's states."""
        found: MambaSlotsState = self.law.state.states
        return found

    def owners(self) -> Mapping[Key, int]:
        """The law's owner number of each node, by the node's key."""
        return {key: self.state.first_node + n for key, n in self.nodes.at.items()}

    def named(self, request: int) -> Three:
        """The slots that a request names now. Raises ``Finding`` if the engine shows no record of the request."""
        return record_of(self.seen, request).slots

    # A request comes.

    def begin(self, request: int, row: int, copied: bool = True) -> None:
        """Explains that a request that has a row got the state slots that it lacked; first a copy of the matched
        node's state.
        """
        tree, handle, named = self.law.state.tree, self.law.state.handle(row), self.named(request)
        node = tree.node(handle) if handle and copied else 0
        if node and tree.mamba(node) == 1 and self.state.names(request, OWN) == ABSENT:
            self._copy(request, node, named[OWN])
        new = [ABSENT if self.state.names(request, k) else named[k] for k in ROLES]
        self.law.engine_step("state_admit", row, request, *new)

    def _copy(self, request: int, node: int, slot: int) -> None:
        self.law.engine_step("state_group_begin", 1, Seq([slot]))
        self.law.engine_step("state_match", request, node, slot)
        self.law.engine_step("state_group_end")

    def copied(self, request: int) -> None:
        """Explains that a request that waits may have got a copy: of the deepest state on its path."""
        named, text = self.seen.requests.get(request), self.calls.requests[request].tokens
        if named is None or named.slots[OWN] in (ABSENT, self.state.names(request, OWN)):
            return
        on_path = [key for key, slot in self.seen.nodes.items() if tuple(text[: len(key)]) == key and slot]
        if not on_path:
            what = f"request {request} has a copy, and no node on its path has a state"
            raise Finding("state_match", self.law.sentence("state_match"), what)
        self._copy(request, self._number(max(on_path, key=len)), named.slots[OWN])

    def _number(self, key: Key) -> int:
        """The law's number of a node that has a state. Raises ``Finding`` if the tree does not have the node."""
        if key not in self.nodes.at:
            raise self._no_node(key, "has a state, and is not in the tree")
        return self.nodes.at[key]

    def _slot(self, key: Key) -> int:
        """The state slot of a node of the tree. Raises ``Finding`` if the engine shows none."""
        if key not in self.seen.nodes:
            raise self._no_node(key, "has a state in the tree, and no slot of it is shown")
        return self.seen.nodes[key]

    def _no_node(self, key: Key, what: str) -> Finding:
        return Finding("state_copy", self.law.sentence("state_copy"), f"node {list(key)} {what}")

    def withdrawn(self, request: int) -> None:
        """Explains that a request that waited has freed its slots."""
        if self.state.phase(request) != IDLE:
            self.law.engine_step("state_release", request)

    def fits(self, request: int, copied: bool) -> bool:
        """There are enough states for a request that comes. If not, the step that finds too few is counted
        as refused.
        """
        need, have = sum(map(int, needed(self.state, request))), self.state.available
        if need > have:
            self.law.count("state_match" if copied and not have else "state_admit", "refused")
        return bool(need <= have)

    # A request works.

    def tracked(self, request: int) -> None:
        """The law's step for a state that was written to the track buffer. The next track changes here unless the
        buffer is lazy.
        """
        if self.state.doubled and not self.state.lazy:
            self.law.caller_step("state_track", request)

    def second(self, request: int) -> None:
        """Explains that a lazy track buffer got its second slot, or that none was free."""
        role = across(self.state, request)
        if self.state.names(request, role) != ABSENT:
            return
        if slot := self.named(request)[role]:
            self.law.engine_step("state_second", request, slot)
        else:
            self.law.refused("state_second", self.state.available > 0)

    def share(self, request: int) -> None:
        """Explains what a request that goes on gave to nodes: a track, in exchange for a new one, or a copy of its
        state. Where the tree had the state already, it gave to no node and may have a new track all the same. In both
        cases the track may be that of a lazy buffer from before a tracking boundary.
        """
        turned = self._turned(request)
        if turned:
            self.law.engine_step("state_turn_lazy", request)
        for key in self.nodes.given():
            (was, now), number = self._newest(request), self.nodes.at[key]
            self.law.engine_step("state_copy", number, self._slot(key) if was == now else now)
            if was != now:
                self.law.engine_step("state_swap", request, number)
        self._renew(request)
        if turned:
            self.law.engine_step("state_turn_lazy", request)

    def _turned(self, request: int) -> bool:
        """A request that goes on gave away the track of its lazy buffer from before a tracking boundary."""
        other = self._other_track(request)
        return other != ABSENT and self.named(request)[across(self.state, request)] != other

    def _other_track(self, request: int) -> int:
        """The slot of a lazy buffer from before a tracking boundary; ABSENT where the request has none."""
        st = self.state
        return int(st.table(request, across(st, request))) if st.lazy and has_two(st) else ABSENT

    def _renew(self, request: int) -> None:
        """Explains that a request got a new track in exchange for its newest state, which the tree had already."""
        was, now = self._newest(request)
        if was != now and self.state.buffered:
            self.law.engine_step("state_renew", request, self._without_state(), now)

    def _without_state(self) -> int:
        """The number of a node whose owner has no state slot. A full tree has no number to spare, and then it is a node
        of the tree.
        """
        first, numbers = self.state.first_node, self.law.state.tree.nodes.items()
        bare = (n for n in numbers if self.state.names(first + n, OWN) == ABSENT)
        number = next(bare, None)
        return self.nodes.spare() if number is None else number

    def _newest(self, request: int) -> tuple[int, int]:
        """The slot of the newest state that the request can give away, in the law and as the engine shows it."""
        role = kept(self.state, request)
        return self.state.table(request, role), self.named(request)[role]

    def kept_for_want(self, row: int) -> None:
        """Counts that a row keeps pages which the tree could take, since there is no state slot for a node."""
        rows = self.law.state.rows
        if not self.state.available and rows.protected(row) < rows.committed(row):
            self.law.counts["state_copy", "refused"] += 1

    # A request leaves.

    def leave(self, row: int) -> None:
        """Explains that a request that ends gave its newest state to a node, and freed its other slots."""
        request = self.law.state.mine(row) - 1
        for key in self.nodes.given():
            if (other := self._other_track(request)) != ABSENT and self._slot(key) == other:
                self.law.engine_step("state_turn_lazy", request)
            self.law.engine_step("state_donate", request, self.nodes.at[key])
        self.law.engine_step("state_release", request)

    def save(self, row: int, session: int) -> None:
        """Explains that all slots of a turn went to its session's slot."""
        self.law.engine_step("state_save", self.law.state.mine(row) - 1, session)

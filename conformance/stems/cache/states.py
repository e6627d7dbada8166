"""The mamba states of a cache: explains as steps of the law which slots requests, sessions and nodes name.

``spec.mamba_in_cache`` says which owner number a request, a session's slot and a node have in the law. The law has as
many numbers of requests as it needs at a time: a request has one of them from its first state on until it has none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from conformance.driver.lockstep import Finding, Law
from conformance.driver.protocol import Key
from conformance.stems.cache.nodes import CacheNodes
from conformance.stems.mamba_slots.projection import owner_names, project_states, record_of, state_problems
from conformance.stems.mamba_slots.protocol import NO_SLOTS, MambaSlotsSnapshot, SlotNames, Three
from conformance.stems.requests.calls import RequestCalls
from spec.finite import Seq
from spec.lengths import in_pages
from spec.mamba_slots_state import (
    ABSENT,
    FIRST,
    IDLE,
    OWN,
    ROLES,
    SECOND,
    MambaSlotsState,
    across,
    has_two,
    kept,
    needed,
)


class CacheStates:
    """The states of one cache. ``seen``: as the engine shows them."""

    def __init__(self, law: Law, nodes: CacheNodes) -> None:
        self.law, self.nodes = law, nodes
        self.calls: RequestCalls
        self.seen = MambaSlotsSnapshot([], 0)
        self._numbers: dict[int, int] = {}
        self._tracked: dict[int, int] = {}  # after how many tokens the last state of each request was tracked

    @property
    def state(self) -> MambaSlotsState:
        """The law's states."""
        found: MambaSlotsState = self.law.state.states
        return found

    def owners(self) -> Mapping[Key, int]:
        """The law's owner number of each node, by the node's key."""
        return {key: self.state.first_node + n for key, n in self.nodes.at.items()}

    def of(self, request: int) -> int:
        """The law's number of a request. Raises ``Finding`` where more requests have states than can have one."""
        known = {r: n for r, n in self._numbers.items() if r == request or self.state.phase(n) != IDLE}
        if request not in known:
            number = next((n for n in range(self.state.limit) if n not in known.values()), None)
            if number is None:
                what = f"request {request} has a state, and {self.state.limit} other requests have all that there are"
                raise Finding("state_admit", self.law.sentence("state_admit"), what)
            known[request] = number
        self._numbers = known
        return known[request]

    def here(self) -> Collection[int]:
        """The law's numbers of the requests that have a row."""
        return [self.of(request) for request in self.calls.row_of]

    def numbered(self) -> MambaSlotsSnapshot:
        """The states as the engine shows them, with the law's numbers of the requests that have states in the law."""
        seen, there = self.seen, {r: n for r, n in self._numbers.items() if self.state.phase(n) != IDLE}
        requests = {n: seen.requests[r] for r, n in there.items() if r in seen.requests}
        return replace(seen, requests=requests, rows={n: seen.rows[r] for r, n in there.items() if r in seen.rows})

    def project(self) -> MambaSlotsState:
        """The law's states as the engine shows them; the law's own object if nothing differs."""
        return project_states(self.state, self.numbered(), self.owners(), self.here(), {})

    def problems(self) -> list[str]:
        """What the engine shows and the law's state has no field for, in words."""
        return state_problems(self.state, self.numbered(), self.here())

    def owner_name(self, owner: int) -> str:
        """An owner of state slots, as people know it."""
        request = next((r for r, n in self._numbers.items() if n == owner), None)
        return owner_names(self.state, self.owners())(owner) if request is None else f"request {request}"

    def step(self, name: str, request: int, *more: Any) -> None:
        """A step of the law that the engine takes, of a request."""
        self.law.engine_step(name, self.of(request), *more)

    def named(self, request: int) -> Three:
        """The slots that a request names now. Raises ``Finding`` if the engine shows no record of the request."""
        return record_of(self.seen, request).slots

    # A request comes.

    def begin(self, request: int, row: int, copied: bool = True, arrives: bool = False) -> None:
        """Explains that a request that has a row got the state slots that it lacked; first a copy of the matched
        node's state. ``arrives``: the state was computed elsewhere, with the row's tokens. Where the engine does not
        show which states it copies, the state that the request begins with is taken to be right.
        """
        arrives = arrives or self.seen.copies is None
        self._tracked.pop(request, None)
        tree, handle, named = self.law.state.tree, self.law.state.handle(row), self.named(request)
        node = tree.node(handle) if handle and copied else 0
        number = self.of(request)
        if node and tree.mamba(node) == 1 and self.state.names(number, OWN) == ABSENT:
            self._copy(request, node, named[OWN])
        new = [ABSENT if self.state.names(number, k) else named[k] for k in ROLES]
        self.law.engine_step("state_admit", row, number, *new, arrives)

    def _copy(self, request: int, node: int, slot: int) -> None:
        """A copy of a node's state, in the group of the batch; in one of its own where none is open."""
        alone = self.state.group == 0
        if alone:
            self.law.engine_step("state_group_begin", 1, Seq([slot]))
        self.step("state_match", request, node, slot, slot in self.seen.at_once)
        if alone:
            self.law.engine_step("state_group_end")

    def copied(self, request: int) -> None:
        """Explains that a request that waits may have got a copy: of the deepest state on its path. The last token of
        an input is always computed, so no copy is as long as the input.
        """
        named, text = self.seen.requests.get(request), self.calls.requests[request].tokens
        if named is None or named.slots[OWN] == ABSENT:
            return
        if named.slots[OWN] == self.state.names(self.of(request), OWN):
            self._copied_again(request, named.slots[OWN])
            return
        on_path = [key for key, slot in self.seen.nodes.items() if tuple(text[: len(key)]) == key and slot]
        on_path = [key for key in on_path if len(key) < len(text)]
        if not on_path:
            what = f"request {request} has a copy, and no node on its path has a state"
            raise Finding("state_match", self.law.sentence("state_match"), what)
        self._copy(request, self._number(max(on_path, key=len)), named.slots[OWN])

    def _copied_again(self, request: int, slot: int) -> None:
        """Explains that the state of another node was copied into the slot that a request has already."""
        source = next((source for source, target in reversed(self.seen.copies or ()) if target == slot), ABSENT)
        node = next((n for n in self.nodes.at.values() if source and self.nodes.state_slot(n) == source), None)
        if node is not None:
            self.step("state_match_again", request, node, slot in self.seen.at_once)

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
        if self.state.phase(self.of(request)) != IDLE:
            self.step("state_release", request)

    def given_back(self) -> None:
        """Explains that requests that wait have given back the copies that they had."""
        for request in list(self._numbers):
            if request not in self.calls.row_of and self.seen.requests.get(request, SlotNames()).slots == NO_SLOTS:
                self.withdrawn(request)

    def group_begun(self, need: int) -> None:
        """Explains that a batch has set slots aside, or none if there were too few."""
        self.law.engine_step("state_group_begin", need, Seq(self.seen.waiting))

    def group_ended(self) -> None:
        """Explains that a batch has given back the slots that it had set aside and not used."""
        self.given_back()
        self.law.engine_step("state_group_end")

    def fits(self, request: int, copied: bool) -> bool:
        """There are enough states for a request that comes. If not, the step that finds too few is counted
        as refused.
        """
        need, have = sum(map(int, needed(self.state, self.of(request)))), self.state.available
        if need > have:
            self.law.count("state_match" if copied and not have else "state_admit", "refused")
        return bool(need <= have)

    # A request works.

    def tracked(self, request: int, upto: int) -> None:
        """The law's steps for the state after ``upto`` tokens, which was written to the track that is written next. The
        next track changes here unless the buffer is lazy.
        """
        number = self.of(request)
        self._tracked[request] = upto
        if self.state.buffered:
            track = FIRST + self.state.next(number)
            self.law.caller_step("state_write", number, track, in_pages(upto, self.nodes.page_size))
        if self.state.doubled and not self.state.lazy:
            self.law.caller_step("state_track", number)

    def written(self, request: int, slot: int, upto: int) -> None:
        """Explains that a forward pass has written the state after ``upto`` tokens to a slot of the track buffer."""
        self._tracked[request] = upto
        track = FIRST + self.tracks(request).index(slot)
        self.step("state_write", request, track, in_pages(upto, self.nodes.page_size))

    def newest_length(self, request: int, computed: int) -> int:
        """After how many tokens the newest state is that a request can give away. ``computed``: its own state's."""
        return self._tracked.get(request, 0) if self.state.buffered else computed

    def tracks(self, request: int) -> tuple[int, ...]:
        """The slots of the track buffer that the kernels write for a request."""
        return self.seen.rows.get(request, NO_SLOTS)[FIRST:]

    def follow_tracks(self, request: int) -> None:
        """Explains what became of a request's track buffer since the last event: which track is written next, and the
        second slot of a lazy one.
        """
        st, number = self.state, self.of(request)
        shown = self.seen.requests.get(request, SlotNames())
        if not has_two(st) or shown.slots[OWN] == ABSENT:
            return
        last = shown.slots[FIRST + 1 - shown.next]
        if not st.lazy:
            if shown.next != st.next(number):
                self.law.caller_step("state_track", number)
            return
        if last and st.names(number, across(st, number)) == ABSENT:
            self.second(request)
        if shown.next != self.state.next(number):
            self.step("state_turn_lazy", request)
        if not last and self.state.names(number, across(self.state, number)) != ABSENT:
            self.law.caller_step("state_give_second", number)

    def second(self, request: int) -> None:
        """Explains that a lazy track buffer got its second slot, or that none was free."""
        number = self.of(request)
        role = across(self.state, number)
        if self.state.names(number, role) != ABSENT:
            return
        if slot := self.named(request)[role]:
            self.nodes.lose_state(slot)  # a server's event may tell of both
            self.step("state_second", request, slot)
        else:
            self.law.refused("state_second", self.state.available > 0)

    def share(self, request: int) -> None:
        """Explains what a request that goes on gave to nodes: a track, in exchange for a new one, or a copy of its
        state. Where the tree had the state already, it gave to no node and may have a new track all the same. In both
        cases the track may be that of a lazy buffer from before a tracking boundary.
        """
        turned = self._turned(request)
        if turned:
            self._turn(self.of(request))
        for key in self.nodes.given():
            (was, now), number = self._newest(request), self.nodes.at[key]
            if was == now:
                slot = self._slot(key)
                self.step("state_copy", request, number, slot, slot in self.seen.at_once)
            else:
                self.step("state_swap", request, number, now)
        self._renew(request)
        if turned:
            self._turn(self.of(request))

    def _turn(self, number: int) -> None:
        """The other track counts as the newest from now on."""
        if self.state.lazy:
            self.law.engine_step("state_turn_lazy", number)
        else:
            self.law.caller_step("state_track", number)

    def _turned(self, request: int) -> bool:
        """A request that goes on gave away the track of its buffer from before a tracking boundary."""
        number = self.of(request)
        other = self._other_track(number)
        return other != ABSENT and self.named(request)[self._other_role(number)] != other

    def _other_role(self, number: int) -> int:
        """The track of a buffer of two slots that is not the newest."""
        return FIRST + SECOND - int(kept(self.state, number))

    def _other_track(self, number: int) -> int:
        """The slot of a buffer from before a tracking boundary; ABSENT where the request of this number has none."""
        st = self.state
        return int(st.table(number, self._other_role(number))) if has_two(st) else ABSENT

    def _renew(self, request: int) -> None:
        """Explains that a request got a new track in exchange for its newest state, which the tree had already."""
        was, now = self._newest(request)
        if was != now and self.state.buffered:
            self.step("state_renew", request, self.nodes.spare(), now)

    def _newest(self, request: int) -> tuple[int, int]:
        """The slot of the newest state that the request can give away, in the law and as the engine shows it."""
        number = self.of(request)
        role = kept(self.state, number)
        return self.state.table(number, role), self.named(request)[role]

    def kept_for_want(self, row: int) -> None:
        """Counts that a row keeps pages which the tree could take, since there is no state slot for a node."""
        rows = self.law.state.rows
        if not self.state.available and rows.protected(row) < rows.committed(row):
            self.law.counts["state_copy", "refused"] += 1

    # A request leaves.

    def leave(self, row: int) -> None:
        """Explains that a request that ends gave its newest state to a node, and freed its other slots."""
        number = self.law.state.mine(row) - 1
        for key in self.nodes.given():
            if (other := self._other_track(number)) != ABSENT and self._slot(key) == other:
                self._turn(number)
            self.law.engine_step("state_donate", number, self.nodes.at[key])
        self.law.engine_step("state_release", number)

    def taken_back(self, session: int) -> None:
        """Explains that a session whose row was cut took an earlier state back, where the engine shows its copies."""
        own = self.state.table(self.state.limit + session - 1, OWN)
        for source, target in self.seen.copies or ():
            if target == own != ABSENT:
                self.law.engine_step("state_take_back", session, source, own in self.seen.at_once)

    def save(self, row: int, session: int) -> None:
        """Explains that all slots of a turn went to its session's slot, where a state may have been tracked just
        before.
        """
        number, shown = self.law.state.mine(row) - 1, self.seen.sessions.get(session)
        if shown is not None and has_two(self.state) and shown.next != self.state.next(number):
            self._turn(number)
        self.law.engine_step("state_save", number, session)

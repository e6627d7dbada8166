"""The states of a cache in lock-step, beside its rows: who names what is read off and asked of the law one by one.

In the law a request has its own number, a session's slot and a node follow; see ``spec.carried``.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from conformance.machine import Finding
from conformance.states import StatesRun
from conformance.subjects.stateview import Key, Seen, Three
from spec.finite import Seq
from spec.states import ABSENT, IDLE, OWN, ROLES, MambaSlots, across, kept, needed

if TYPE_CHECKING:
    from conformance.cache import CacheRun


class CarriedStates(StatesRun):
    """The states of one cache; ``seen``: as the engine shows them."""

    def __init__(self, run: CacheRun) -> None:
        # Looks at the run's own state, and takes no steps of its own.
        self.run, self.seen, self.lent = run, Seen([], 0), {}
        self.limit, self.session_count = run.state.states.limit, run.config["sessions"]
        self.subject = SimpleNamespace(observe=lambda: self.seen)

    @property
    def state(self) -> MambaSlots:  # type: ignore[override]
        """The law's states."""
        found: MambaSlots = self.run.state.states
        return found

    @property
    def at(self) -> dict[Key, int]:  # type: ignore[override]
        """The owner that each node is."""
        return {key: self.state.first_node + n for key, n in self.run.tree.at.items()}

    @property
    def here(self) -> dict[int, int]:  # type: ignore[override]
        """The requests that run."""
        return self.run.row_of

    def named(self, request: int) -> Three:
        """What a request names now."""
        return self.seen.requests[request].slots

    # A request comes.

    def begin(self, request: int, row: int, copied: bool = True) -> None:
        """A request that has a row gets what it has not; a copy of the state that it matched is set aside first."""
        tree, handle, named = self.run.state.tree, self.run.state.handle(row), self.named(request)
        node = tree.node(handle) if handle and copied else 0
        if node and tree.mamba(node) == 1 and self.state.names(request, OWN) == ABSENT:
            self._copy(request, node, named[OWN])
        new = [ABSENT if self.state.names(request, k) else named[k] for k in ROLES]
        self.run.must("state_admit", row, request, *new)

    def _copy(self, request: int, node: int, slot: int) -> None:
        self.run.must("state_group_begin", 1, Seq([slot]))
        self.run.must("state_match", request, node, slot)
        self.run.must("state_group_end")

    def copied(self, request: int, text: list[int]) -> None:
        """A request that waits may have a copy already: of the deepest state on its path."""
        named = self.seen.requests.get(request)
        if named is None or named.slots[OWN] in (ABSENT, self.state.names(request, OWN)):
            return
        on_path = [key for key, slot in self.seen.nodes.items() if tuple(text[: len(key)]) == key and slot]
        if not on_path:
            raise Finding("state_match", self.run.sentence("state_match"), f"request {request} has a copy of no state")
        self._copy(request, self.run.tree.at[max(on_path, key=len)], named.slots[OWN])

    def withdrawn(self, request: int) -> None:
        """A request that waited gives back what it has."""
        if self.state.phase(request) != IDLE:
            self.run.must("state_release", request)

    def fits(self, request: int, copied: bool) -> bool:
        """There are states for a request that comes; what finds none is what is refused."""
        need, have = sum(map(int, needed(self.state, request))), self.state.available
        if need > have:
            self.run.counts["state_match" if copied and not have else "state_admit", "refused"] += 1
        return bool(need <= have)

    # It works.

    def tracked(self, request: int) -> None:
        """The state at a boundary was written to the buffer; a lazy one changes at boundaries alone."""
        if self.state.doubled and not self.state.lazy:
            self.run.step("state_track", request)

    def second(self, request: int) -> None:
        """Before a boundary a lazy buffer has its second slot, if there was room."""
        role = across(self.state, request)
        if self.state.names(request, role) != ABSENT:
            return
        if slot := self.named(request)[role]:
            self.run.must("state_second", request, slot)
        else:
            self.run.judge_refusal("state_second", self.state.available > 0)

    def share(self, request: int) -> None:
        """What a request that goes on has given to nodes: a track, in whose place it has a new one, or a copy."""
        for key in self.run.tree.given():
            self._give(request, key)
        self.renew(request)

    def renew(self, request: int) -> None:
        """Where the tree had its newest state already, a request may have a new track in its place."""
        if not self.run.stateful:
            return
        was, now = self._newest(request)
        if was != now and self.state.buffered:
            self.run.must("state_renew", request, self.run.tree.spare(), now)

    def _give(self, request: int, key: Key) -> None:
        (was, now), number = self._newest(request), self.run.tree.at[key]
        self.run.must("state_copy", number, self.seen.nodes[key] if was == now else now)
        if was != now:
            self.run.must("state_swap", request, number)

    def _newest(self, request: int) -> tuple[int, int]:
        """The newest state that the request can give away, in the law and as the engine shows it."""
        role = kept(self.state, request)
        return self.state.table(request, role), self.named(request)[role]

    def kept_for_want(self, row: int) -> None:
        """A row keeps what the tree could have, since there is no state for a node."""
        life = self.run.life
        if self.run.stateful and not self.state.available and life.protected(row) < life.committed(row):
            self.run.counts["state_copy", "refused"] += 1

    # It leaves.

    def leave(self, row: int) -> None:
        """The newest state of a request that ends is a node's; the rest it gives back."""
        request = self.run.state.mine(row) - 1
        for key in self.run.tree.given():
            self.run.must("state_donate", request, self.run.tree.at[key])
        self.run.must("state_release", request)

    def save(self, row: int, session: int) -> None:
        """All that a turn has goes to its session's slot."""
        self.run.must("state_save", self.run.state.mine(row) - 1, session)

    def differ(self, seen: Any) -> list[str]:
        """How these states differ from the law's."""
        found = self.differences(seen)
        return [found] if found else []

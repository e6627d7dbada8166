"""The states of a cache in lock-step: what a request that waits has, and what one that runs does with its own."""

from __future__ import annotations

from typing import Any

from conformance.cache_states import CarriedStates
from conformance.machine import Misuse
from conformance.session_busy import SessionRun
from spec.whole import Whole


class CarriedRun(SessionRun):
    """Requests, sessions and their states; ``stateful``: the cache has states."""

    subject: Any
    state: Whole
    carried: CarriedStates
    stateful: bool

    # A request that waits.

    def op_look(self, request: int, more: int = 0, session: int = 0, fork: int = 0) -> None:
        """A request looks for its prefix and is not admitted; it may keep a copy of a state."""
        super().op_look(request, more, session, fork)
        self._waits(request)

    def op_admit(self, request: int, more: int = 0, session: int = 0, fork: int = 0, chunk: int = 0) -> None:
        """A request is admitted; one that is not may keep a copy of a state."""
        super().op_admit(request, more, session, fork, chunk)
        self._waits(request)

    def _waits(self, request: int) -> None:
        if self.stateful and request not in self.row_of:
            self.carried.copied(request, self.asked[request].tokens)

    def op_cancel(self, request: int) -> None:
        """A request that waits is aborted, and gives back the state that it has."""
        super().op_cancel(request)
        if self.stateful:
            self.carried.withdrawn(request)

    def offers(self, name: str) -> bool:
        """The engine has the operation; what it turns away it aborts, too."""
        lazy = self.stateful and self.state.states.lazy and "lazy_session" in self.avoid
        leaks = lazy or (self.stateful and "session_abort" in self.avoid)
        return super().offers(name) and not (leaks and name == "second")

    def may_abort(self, request: int) -> bool:
        """The states of turns that are aborted are known to leak in some releases."""
        leaks = self.stateful and "session_abort" in self.avoid and self.asked[request].session
        return not leaks and super().may_abort(request)

    # States.

    def room_for(self, request: int, prefix: int, upto: int) -> bool:
        """There is all that a request needs to come; a turn has its states."""
        session = self.asked[request].session
        turn = not self.stateful or (session and self.life.slot(session))
        return super().room_for(request, prefix, upto) and bool(turn or self.carried.fits(request, prefix > 0))

    def forward(self, request: int) -> None:
        """What has slots is computed, and the state at its last page boundary tracked."""
        if self.stateful and self.state.states.buffered and self.passed(request):
            self.op_track(request)

    def passed(self, request: int) -> bool:
        """A request that runs has computed a page beyond the tree's part."""
        row = self.row_of[request]
        return bool(self.computed(request) // self.page_size > self.life.protected(row))

    def op_boundary(self, request: int) -> None:
        """Before a boundary a lazy buffer gets its second slot, if there is room."""
        self.must_offer("boundary")
        self.running(request)
        self.ask("boundary", lambda: self.subject.boundary(request))
        self.read()
        self.carried.second(request)

    def op_track(self, request: int) -> None:
        """A boundary: the state is tracked."""
        self.must_offer("track")
        self.running(request)
        if self.computed(request) // self.page_size < self.life.protected(self.row_of[request]):
            raise Misuse("a boundary lies beyond the tree's part")
        self.carried.tracked(request)
        self.ask("track", lambda: self.subject.track(request))

    def op_settle(self, request: int) -> None:
        """After a boundary a lazy buffer gives the older slot back."""
        self.must_offer("settle")
        self.running(request)
        self.step("state_give_second", request)
        self.ask("settle", lambda: self.subject.settle(request))

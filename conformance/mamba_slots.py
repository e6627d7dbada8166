"""Mamba state slots in lock-step: requests that come, work and leave, sessions, the tree, groups.

Which slots are handed out, what the tree keeps and what it gives up for a call are the subject's choice. They are read
off what everybody names after each call and asked of the law one by one; what is left over is a finding.
"""

from __future__ import annotations

from conformance.machine import Misuse
from conformance.states import StatesRun
from conformance.subjects.stateview import NONE, Named, OutOfSlots
from spec.finite import Seq
from spec.states import ABSENT, GROUPED, IDLE, LEAVING, OWN, ROLES, across, kept, owns_nothing


class MambaSlotsRun(StatesRun):
    """The operations of requests, sessions, the tree and the pool."""

    # A request comes.

    def op_match(self, request: int, tokens: list[int], session: int = 0, same: bool = False) -> None:
        """A request comes, the same object again or a new one; a later turn goes on from its session."""
        busy = session and session in self.here.values()
        if request in self.here or busy or (same and (request not in self.known or session)):
            raise Misuse("the request is there, or its session is busy")
        self.here[request] = session
        self.known.add(request)
        if session and not owns_nothing(self.state, self.session(session)):
            self.step("restore", self.session(session), request)
            self.lent[session] = request
        try:
            copied = self.ask("match", lambda: self.subject.match(request, tokens, session, same))
        except OutOfSlots:
            del self.here[request]
            self.refused("alloc_for_match", 1)
            return
        seen = self.follow()
        if copied is not None:
            slot = seen.requests[request].slots[OWN]
            self.step("alloc_for_match", request, self.at[copied], slot)

    def op_admit(self, requests: list[int]) -> None:
        """A batch is admitted; a running request asks for another chunk and keeps what it has."""
        if self.depth or not requests or len(set(requests)) < len(requests) or not set(requests) <= self.here.keys():
            raise Misuse("a batch of requests that have come is admitted outside a group")
        before = {r: tuple(self.state.names(r, k) for k in ROLES) for r in requests}
        try:
            self.ask("admit", lambda: self.subject.admit(requests))
        except OutOfSlots:
            self.refused("alloc", sum(map(self.missing, requests)))
            return
        seen = self.follow()
        for request in requests:
            named = seen.requests[request].slots
            new = [ABSENT if had else now for had, now in zip(before[request], named, strict=True)]
            self.step("alloc", request, *new)

    # A request works.

    def op_track(self, request: int) -> None:
        """A boundary: the state is tracked."""
        self.must_run(request)
        if not self.state.buffered:
            raise Misuse("the request has no track buffer")
        if self.state.doubled and not self.state.lazy:
            self.step("track", request)
        self.ask("track", lambda: self.subject.track(request))

    def op_boundary(self, request: int) -> None:
        """Before a boundary a lazy buffer gets its second slot, if there is room."""
        self.must_be_lazy(request)
        self.ask("boundary", lambda: self.subject.boundary(request))
        seen, role = self.follow(), across(self.state, request)
        if self.state.names(request, role) != ABSENT:
            return
        slot = seen.requests[request].slots[role]
        if slot == ABSENT:
            self.refused("alloc_second", 1)
        else:
            self.step("alloc_second", request, slot)

    def op_settle(self, request: int) -> None:
        """After a boundary a lazy buffer gives the other slot back."""
        self.must_be_lazy(request)
        self.step("give_second", request)
        self.ask("settle", lambda: self.subject.settle(request))

    def op_slide(self, request: int) -> None:
        """A long decode moves the window past what was tracked."""
        self.must_offer("slide")
        self.must_run(request)
        self.ask("slide", lambda: self.subject.slide(request))

    def op_cache(self, request: int) -> None:
        """A request that goes on puts its state into the tree: the tree takes one, or has it already."""
        self.must_run(request)
        try:
            self.ask("cache", lambda: self.subject.cache(request))
        except OutOfSlots:
            self.refused("alloc_copy", 1)
            return
        seen = self.follow(new_nodes=False)
        fresh = [key for key in seen.nodes if key not in self.at]
        role = kept(self.state, request)
        was, now = self.state.table(request, role), seen.requests[request].slots[role]
        for key in fresh:
            self.new_node(key, now if seen.nodes[key] == was else seen.nodes[key])
        if now == was:
            return
        carrier = self.at[fresh[0]] if fresh else self.number()
        if not fresh:
            self.step("alloc_copy", carrier, now)
        self.step("donate_and_replace", request, carrier)
        if not fresh:
            self.step("evict", carrier)

    # A request leaves.

    def op_finish(self, request: int) -> None:
        """A request ends well."""
        self.must_run(request)
        self.leave("finish", request)

    def op_abort(self, request: int) -> None:
        """A running request is aborted."""
        self.must_run(request)
        self.leave("abort", request)

    def op_retract(self, request: int) -> None:
        """A running request makes room."""
        self.must_run(request)
        self.leave("retract", request)

    def op_withdraw(self, request: int) -> None:
        """A waiting request is aborted."""
        if request not in self.here or self.running(request):
            raise Misuse("the request is not waiting")
        self.leave("withdraw", request)

    def leave(self, name: str, request: int) -> None:
        """The request is gone: its newest state may be the tree's, or all it has its session's; the rest is free."""
        session = self.here.pop(request)
        self.ask(name, lambda: getattr(self.subject, name)(request))
        self.lent.pop(session, None)
        seen = self.follow(new_nodes=False)
        for key in [key for key in seen.nodes if key not in self.at]:
            self.at[key] = self.number()
            self.step("donate", request, self.at[key])
        if self.state.phase(request) == IDLE:
            return
        if session and seen.sessions.get(session, Named()).slots != NONE and self.state.phase(request) != LEAVING:
            self.step("save", request, self.session(session))
        else:
            self.step("release", request)

    def op_close(self, session: int) -> None:
        """A session ends between turns."""
        if session in self.here.values():
            raise Misuse("a turn of the session is there")
        self.step("close", self.session(session))
        self.ask("close", lambda: self.subject.close(session))

    # The pool and the tree.

    def op_evict(self, states: int) -> None:
        """The tree gives up states."""
        self.ask("evict", lambda: self.subject.evict(states))
        self.follow()

    def op_begin(self, need: int) -> None:
        """A group sets slots aside."""
        self.must_offer("begin")
        self.ask("begin", lambda: self.subject.begin(need))
        new = [s for s in self.subject.observe().waiting if self.state.place(s) != GROUPED]
        self.step("begin_group", need, Seq(new))
        self.depth += 1

    def op_end(self) -> None:
        """A group ends."""
        self.step("end_group")
        self.depth -= 1
        self.ask("end", self.subject.end)

    def op_clear(self) -> None:
        """Everything starts anew between requests."""
        if self.here:
            raise Misuse("a request is there")
        self.step("clear")
        self.ask("clear", self.subject.clear)
        self.at, self.depth = {}, 0

    def op_audit(self) -> None:
        """At the end: nobody has anything, and the pool is full."""
        if self.here or self.depth or not self.idle():
            raise Misuse("somebody has a slot")
        self.counts["quiescence", "done"] += 1

"""Hypothesis draws the runs of mamba state slots: few slots, requests, sessions, and every kind of track buffer.

A rule sends what the engine's scheduler can send in this state, and nothing else. Each run ends in quiescence: requests
leave, sessions close, the tree is evicted, and the pool must be full.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from conformance.machine import Finding, Json
from conformance.mamba_slots import MambaSlotsRun
from conformance.stateful import Machine

REQUESTS, SESSIONS = 3, 2
TREES = ("mamba_radix", "unified", "unified_swa")
TWO, LAZY, ONE, NO_BUFFER = (True, True, False), (True, True, True), (True, False, False), (False, False, False)
BUFFERS = (TWO, LAZY, TWO, ONE, NO_BUFFER)  # buffered, doubled, lazy; what the engine does by default comes twice
CONFIG = {
    "size": st.sampled_from((7, 4, 5, 6, 7, 8, 9)),
    "tree": st.integers(0, len(TREES) - 1),
    "buffer": st.integers(0, len(BUFFERS) - 1),
}
TEXTS = ([1, 2, 3, 4], [1, 2, 3, 4, 5, 6], [1, 2, 7, 8], [9, 10])
BAD = ("free_padding", "free_outside", "free_again", "alloc_negative", "donate_nothing", "row_of_nobody")
picks, texts = st.integers(0, 11), st.sampled_from((0, 1, 0, 1, 2, 3))
requests, sessions = st.integers(0, REQUESTS - 1), st.integers(0, SESSIONS + 1)


class MambaSlotsRuns(Machine):
    """Requests that come, work and leave, sessions, and a tree."""

    run: MambaSlotsRun
    failed = False

    @initialize(config=st.fixed_dictionaries(CONFIG))
    def start(self, config: Json) -> None:
        """A subject and a spec of a drawn size and kind; kinds that the subject lacks are passed over."""
        kinds = [(tree, buffer) for buffer in BUFFERS for tree in TREES]
        rows = REQUESTS + SESSIONS
        first = config["buffer"] * len(TREES) + config["tree"]
        for tree, buffer in (*kinds[first:], *kinds[:first]):
            size = max(config["size"], rows if "more_rows" in self.avoid else 0)
            known = {"size": size, "requests": REQUESTS, "sessions": SESSIONS, "tree": tree}
            known |= dict(zip(("buffered", "doubled", "lazy"), buffer, strict=True))
            subject = type(self).make(known)
            if not subject.missing:
                self.run = MambaSlotsRun(subject, known, self.strict, self.avoid)
                return

    def do(self, op: str, **arguments: Any) -> None:
        """One operation; a run that has failed does not go on."""
        try:
            super().do(op, **arguments)
        except Finding:
            self.failed = True
            raise

    def teardown(self) -> None:
        """Everybody leaves, and the pool must be full."""
        try:
            if self.run is not None and not self.failed:
                self.drain()
        finally:
            super().teardown()

    def drain(self) -> None:
        """To quiescence."""
        run = self.run
        for _ in range(run.depth):
            self.do("end")
        for request in list(run.here):
            self.do("retract" if run.running(request) else "withdraw", request=request)
        for session in range(1, SESSIONS + 1):
            if not self.avoids("close"):
                self.do("close", session=session)
        self.do("evict", states=len(run.at))
        if not run.at and run.idle():
            self.do("audit")

    # Rules.

    @rule(moves=st.lists(st.tuples(requests, picks, texts, sessions, st.booleans()), min_size=2, max_size=4))
    def go(self, moves: list[tuple[int, int, int, int, bool]]) -> None:
        """Requests do their next steps: they come, are admitted, work, leave."""
        for request, how, text, session, same in moves:
            if request in self.run.here:
                self._go_on(request, how)
            else:
                self._come(request, TEXTS[text], session, same)

    def _go_on(self, request: int, how: int) -> None:
        run = self.run
        if run.depth:
            self.do("end")
        elif run.running(request) and how % 4:
            self._work(request, how)
        elif run.running(request):
            self._leave(request, ("finish", "abort", "retract")[how // 4])
        elif how:
            self._admit(request, how)
        else:
            self.do("withdraw", request=request)

    def _come(self, request: int, tokens: list[int], session: int, same: bool) -> None:
        run = self.run
        session = session if session <= SESSIONS and session not in run.here.values() else 0
        session = 0 if run.state.lazy and self.avoids("lazy_session") else session
        same = same and request in run.known and not session and not self.avoids("same_again")
        self.do("match", request=request, tokens=tokens, session=session, same=same)

    def _admit(self, request: int, how: int) -> None:
        run = self.run
        batch = [r for r in run.here if not run.running(r)] if how % 2 else [request]
        if not self.avoids("short_admit") or run.surely_fits(batch):
            self.do("admit", requests=batch)

    def _work(self, request: int, how: int) -> None:
        run = self.run
        known, lazy = run.state, run.state.lazy
        possible = {"cache": True, "track": known.buffered, "boundary": lazy, "settle": lazy}
        possible["slide"] = run.offers("slide") and not self.avoids("slide")
        names = [name for name, can in possible.items() if can]
        self.do(names[how % len(names)], request=request)

    def _leave(self, request: int, how: str) -> None:
        session = self.run.here[request]
        if not (how == "abort" and session and self.avoids("session_abort")):
            self.do(how, request=request)

    @rule(session=st.integers(1, SESSIONS), states=st.integers(1, 2), close=st.booleans())
    def give_back(self, session: int, states: int, close: bool) -> None:
        """A session ends, or somebody needs states of the tree."""
        run = self.run
        if close and session in run.saved() and not self.avoids("close"):
            self.do("close", session=session)
        elif run.at:
            self.do("evict", states=states)

    @rule(need=st.integers(0, 4), how=picks)
    def group(self, need: int, how: int) -> None:
        """A batch begins to be made, or has been made; now and then a group in a group, or a new start in one."""
        depth = self.run.depth
        if how == 0 and not self.run.here and not (depth and self.avoids("clear_in_group")):
            self.do("clear")
        elif depth and (how > 2 or depth > 1 or self.avoids("nested_state_group")):
            self.do("end")
        elif self.offered("begin"):
            self.do("begin", need=need)

    @rule(kind=st.sampled_from(BAD))
    @precondition(lambda self: self.run.subject.traits.rejects)
    def bad(self, kind: str) -> None:
        """Bad input, for subjects that promise to answer it."""
        self.do("bad", kind=kind)

"""The machine that draws runs of ``mamba_slots``: few state slots, requests, sessions, and every kind of track buffer.

A rule sends what an engine's scheduler can send in the present state, and nothing else. Each run ends with ``drain``:
requests leave, sessions close, the tree is evicted, and then every state slot must be free.
"""

from __future__ import annotations

from typing import get_args

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from conformance.driver.protocol import Json
from conformance.stems.kinds import STATEFUL
from conformance.stems.lock_ref.exclusions import LockRefExclusion
from conformance.stems.machine import StemMachine, started
from conformance.stems.mamba_slots.exclusions import MambaSlotsExclusion as Exclusion
from conformance.stems.mamba_slots.run import BadCall, MambaSlotsRun

REQUESTS, SESSIONS = 3, 2
TWO, LAZY, ONE, NO_BUFFER = (True, True, False), (True, True, True), (True, False, False), (False, False, False)
BUFFERS = (
    TWO,
    LAZY,
    TWO,
    ONE,
    NO_BUFFER,
)  # each: buffered, doubled, lazy; TWO is the default of engines, so it comes twice
CONFIG = {
    "size": st.sampled_from((7, 4, 5, 6, 7, 8, 9)),
    "tree": st.integers(0, STATEFUL - 1),  # which of the trees that the engine declares
    "buffer": st.integers(0, len(BUFFERS) - 1),
}
TEXTS = ([1, 2, 3, 4], [1, 2, 3, 4, 5, 6], [1, 2, 7, 8], [9, 10])
BAD = get_args(BadCall)
picks, texts = st.integers(0, 11), st.sampled_from((0, 1, 0, 1, 2, 3))
requests, sessions = st.integers(0, REQUESTS - 1), st.integers(0, SESSIONS + 1)


class MambaSlotsMachine(StemMachine):
    """Requests that come, work and leave, sessions, and a tree."""

    run: MambaSlotsRun | None

    @initialize(config=st.fixed_dictionaries(CONFIG))
    def start(self, config: Json) -> None:
        """Makes an engine of a drawn size and kind, and the law. A kind that the engine does not support is replaced
        by the next one.
        """
        trees = self.kinds.stateful
        kinds = [(tree, buffer) for buffer in BUFFERS for tree in trees]
        rows = REQUESTS + SESSIONS
        first = config["buffer"] * len(trees) + config["tree"] % max(1, len(trees))
        size = max(config["size"], rows if self.excludes(Exclusion.MORE_ROWS) else 0)
        for tree, buffer in (*kinds[first:], *kinds[:first]):
            known = {"size": size, "requests": REQUESTS, "sessions": SESSIONS, "tree": tree}
            if self.begin({**known, **dict(zip(("buffered", "doubled", "lazy"), buffer, strict=True))}):
                return

    @property
    def begun(self) -> MambaSlotsRun:
        """The run, after the start."""
        assert self.run is not None
        return self.run

    def teardown(self) -> None:
        """Ends everything, unless the run has failed before."""
        try:
            if self.run is not None and not self.failed:
                self.drain()
        finally:
            super().teardown()

    def drain(self) -> None:
        """Ends groups, requests and sessions, evicts the tree, and checks that the pool is full. A session that may not
        be closed keeps its slots, so then nothing is checked.
        """
        run = self.begun
        for _ in range(run.depth):
            self.do("end_group")
        for request in list(run.here):
            self.do("retract" if run.running(request) else "withdraw", request=request)
        for session in range(1, SESSIONS + 1):
            if not self.excludes(Exclusion.CLOSE):
                self.do("close", session=session)
        self.do("evict", states=len(run.nodes))
        if run.callers_are_idle():
            self.do("audit")

    # Rules.

    @rule(moves=st.lists(st.tuples(requests, picks, texts, sessions, st.booleans()), min_size=2, max_size=4))
    def go(self, moves: list[tuple[int, int, int, int, bool]]) -> None:
        """A few requests do their next step: they come, are admitted, work or leave."""
        if self.run is None:  # Hypothesis needs one rule that is always possible
            return
        for request, how, text, session, again in moves:
            if request in self.begun.here:
                self._go_on(request, how)
            else:
                self._come(request, TEXTS[text], session, again)

    def _go_on(self, request: int, how: int) -> None:
        run = self.begun
        if run.depth:
            self.do("end_group")
        elif run.running(request) and how % 4:
            self._work(request, how)
        elif run.running(request):
            self._leave(request, ("finish", "abort", "retract")[how // 4])
        elif how:
            self._admit(request, how)
        else:
            self.do("withdraw", request=request)

    def _come(self, request: int, tokens: list[int], session: int, again: bool) -> None:
        run = self.begun
        if self.excludes(LockRefExclusion.COPY_ON_WRITE) and run.state.available == 0:
            return
        session = session if session <= SESSIONS and session not in run.here.values() else 0
        session = 0 if run.state.lazy and self.excludes(Exclusion.LAZY_SESSION) else session
        again = again and request in run.known and not session and not self.excludes(Exclusion.SAME_AGAIN)
        self.do("match", request=request, tokens=tokens, session=session, again=again)

    def _admit(self, request: int, how: int) -> None:
        run = self.begun
        if request in run.stale:
            self.do("withdraw", request=request)
            return
        batch = [r for r in run.here if not run.running(r) and r not in run.stale] if how % 2 else [request]
        if not self.excludes(Exclusion.SHORT_ADMIT) or run.surely_fits(batch):
            self.do("admit", requests=batch)

    def _work(self, request: int, how: int) -> None:
        state = self.begun.state
        surely = state.available > 0 or not self.excludes(Exclusion.SHORT_CACHE)
        surely = surely and request not in self.begun.decoded
        possible = {"cache": surely, "track": bool(state.buffered), "boundary": bool(state.lazy)}
        possible["settle"] = possible["boundary"]
        possible["slide"] = "slide" not in self.begun.lacks and not self.excludes(Exclusion.SLIDE)
        names = [name for name, can in possible.items() if can]
        if names:
            self.do(names[how % len(names)], request=request)

    def _leave(self, request: int, how: str) -> None:
        session = self.begun.here[request]
        if not (how == "abort" and session and self.excludes(Exclusion.SESSION_ABORT)):
            self.do(how, request=request)

    @rule(session=st.integers(1, SESSIONS), states=st.integers(1, 2), close=st.booleans())
    @precondition(started)
    def give_back(self, session: int, states: int, close: bool) -> None:
        """A session ends, or the tree is asked to free states."""
        run = self.begun
        if close and session in run.saved() and not self.excludes(Exclusion.CLOSE):
            self.do("close", session=session)
        elif run.nodes:
            self.do("evict", states=states)

    @rule(need=st.integers(0, 4), how=picks)
    @precondition(started)
    def group(self, need: int, how: int) -> None:
        """A group of state slots begins or ends. In some runs groups nest, or the pool is cleared inside a group."""
        run, depth = self.begun, self.begun.depth
        if how == 0 and not run.here and not (depth and self.excludes(Exclusion.CLEAR_IN_GROUP)):
            self.do("clear")
        elif depth and (how > 2 or depth > 1 or self.excludes(Exclusion.NESTED_GROUP)):
            self.do("end_group")
        elif self.offers("begin_group"):
            self.do("begin_group", need=need)

    @rule(kind=st.sampled_from(BAD), how=picks)
    @precondition(lambda self: started(self) and "bad" not in self.run.lacks)
    def bad(self, kind: str, how: int) -> None:
        """Bad input, now and then, for engines that promise to answer it. Otherwise request 0 does its next step, since
        most drawn operations concern the pool.
        """
        if how == 0:
            self.do("bad", kind=kind)
        elif 0 in self.begun.here:
            self._go_on(0, how)

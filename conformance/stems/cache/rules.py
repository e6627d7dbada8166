"""The machine that draws runs of ``cache``: the rules of ``conformance.stems.requests.rules``, and rules for requests
without a session and for mamba states.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import product
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from conformance.driver.protocol import Json
from conformance.stems.cache.excluded import breaks
from conformance.stems.cache.exclusions import CacheExclusion
from conformance.stems.lock_ref.exclusions import LockRefExclusion
from conformance.stems.machine import started
from conformance.stems.mamba_slots.exclusions import MambaSlotsExclusion
from conformance.stems.mamba_slots.rules import LAZY, NO_BUFFER, ONE, TWO
from conformance.stems.requests.rules import (
    CONFIG,
    REQUESTS,
    ROWS,
    RequestRules,
    chunks,
    few,
    forks,
    lengths,
    picks,
    sessions,
    some,
)
from conformance.stems.session_trim.exclusions import SessionTrimExclusion

# The laws look at every page, row and node number, so small pools are fast.
POOLS = {
    "size": st.integers(3, 8),
    "size_swa": st.integers(3, 8),
    "size_mamba": st.sampled_from((5, 4, 8, 15, 4, 10)),
}
SMALL = {**CONFIG, **POOLS}
ARRIVES = ("admit", "look")
INSERTS = (*ARRIVES, "chunk", "finish", "abort")
BUFFERS = (TWO, LAZY, None, LAZY, ONE, NO_BUFFER)  # each: buffered, doubled, lazy; None: a cache without states


class CacheMachine(RequestRules):
    """Requests and sessions over one tree."""

    @initialize(config=st.fixed_dictionaries(SMALL), kind=picks, more=lengths, session=sessions, chunk=chunks)
    def start(self, config: Json, kind: int, more: int, session: int, chunk: int) -> None:
        """Makes an engine of a drawn size and kind and the law, and sends the first request. A kind that the engine
        does not support is replaced by the next one.
        """
        if any(self.set_up_kind(one, kind % len(BUFFERS)) for one in self.variants(config)):
            self.arrive_now(more, session, 0, chunk)

    def set_up_kind(self, config: Json, first: int) -> bool:
        """Starts a run of a drawn size, of the first kind of states from this one on that the engine supports."""
        kinds = [*BUFFERS[first:], *BUFFERS[:first]]
        if self.parts is not None:
            kinds = [buffer for buffer in kinds if (buffer is not None) == ("mamba" in self.parts)]
        for buffer, rows in product(kinds, range(ROWS, 0, -1)):
            states = {} if buffer is None else dict(zip(("buffered", "doubled", "lazy"), buffer, strict=True))
            components = ["full", *(["swa"] if config["windowed"] else []), *(["mamba"] if states else [])]
            if self.set_up({**config, **states, "components": components, "rows": rows}):
                return True
        return False

    def do(self, op: str, **arguments: Any) -> None:
        """Sends one operation, unless it is a known difference."""
        if "slide" in arguments and self.excludes(CacheExclusion.SLIDE_PAST_LEAF):
            arguments = {**arguments, "slide": False}
        if op == "decode" and self.steps_overlap():
            arguments = {**arguments, "flies": True}
        if op not in INSERTS or not self._breaks(op, arguments):
            super().do(op, **arguments)
        if op == "boundary" and self.excludes(CacheExclusion.UNWRITTEN_TRACK):
            super().do("track", **arguments)

    def steps_overlap(self) -> bool:
        """The pass of the next decode step stays in flight: in half of the steps, where that can be."""
        return (
            self.run.overlaps and len(self.lock.trace.steps) % 2 == 1 and not self.excludes(CacheExclusion.COPY_AT_ONCE)
        )

    def _breaks(self, op: str, arguments: Json) -> bool:
        request = arguments["request"]
        if op not in ARRIVES or request in self.calls.requests:
            return breaks(self.run, self.exclude, op, request)
        self.calls.arrive(**{name: value for name, value in arguments.items() if name not in ("chunk", "unknown")})
        known = breaks(self.run, self.exclude, op, request)
        del self.calls.requests[request]
        return known

    def offers(self, op: str) -> bool:
        """The engine has the operation. An overlapping turn is left out where its end is known to leak states: the
        engine turns it away, so it is aborted.
        """
        lazy = self.run.stateful and self.run.law.state.states.lazy and self.excludes(MambaSlotsExclusion.LAZY_SESSION)
        leaks = lazy or (self.run.stateful and self.excludes(MambaSlotsExclusion.SESSION_ABORT))
        return not (op == "overlapping_turn" and leaks) and super().offers(op)

    def without_session(self, session: int) -> bool:
        """A new request must come without its session, also where sessions with states, or those with lazy track
        buffers, are a known difference.
        """
        if self.run.stateful and self.excludes(MambaSlotsExclusion.CLOSE):
            return bool(session)
        lost = self.excludes(MambaSlotsExclusion.LAZY_SESSION) and self.run.stateful
        return bool(lost and self.run.law.state.states.lazy) or super().without_session(session)

    def excludes(self, difference: StrEnum) -> bool:
        """The run has to avoid this known difference. Where a cut of a session's row leaves its state as it was, a run
        with states avoids what cuts the row.
        """
        cuts = difference in (SessionTrimExclusion.OVERSHOOT, SessionTrimExclusion.OVERLAP)
        states = cuts and started(self) and self.run.stateful and CacheExclusion.CUT_STATE in self.exclude
        return super().excludes(difference) or bool(states)

    def may_abort(self, request: int) -> bool:
        """The abort of this request is not a known difference, also not for its states."""
        leaks = self.run.stateful and self.excludes(MambaSlotsExclusion.SESSION_ABORT)
        return not (leaks and self.calls.requests[request].session) and super().may_abort(request)

    # Requests without a session.

    @rule(visits=st.lists(st.tuples(st.integers(1, 3), few, forks, st.integers(0, 5)), min_size=1, max_size=2))
    @precondition(lambda self: started(self) and len(self.calls.row_of) < self.calls.limit)
    def visit(self, visits: list[tuple[int, int, int, int]]) -> None:
        """Requests without a session come, answer and end. Lengths count pages.

        Pages that leave the window of one become a tombstone, which the next request with as long a prompt can revive.
        """
        size = self.calls.page_size
        for prompt, more, fork, answer in visits:
            self.come_and_go(prompt * size + more, fork, answer)
            if answer > 1:
                self.come_and_go((prompt + answer - 1) * size + more, fork, 0)

    def come_and_go(self, prompt: int, fork: int, answer: int) -> None:
        """A request comes with ``prompt`` tokens, answers with ``answer`` pages and one token, and ends."""
        asked, size = self.new(1, 0, fork), self.calls.page_size
        if asked is None:
            return
        self.do("admit", **{**asked, "more": min(prompt, self.most)})
        request = asked["request"]
        for _ in range(answer if request in self.answering and self.offers("reserve") else 0):
            self.step_draft(request, size, size, False)
        if request in self.decoding and self.room(request, 1):
            self.do("decode", requests=[request], slide=answer > 1)
        if request in self.answering:
            self.use_state(request, 0)
            self.do("finish", request=request)

    @rule(more=few, fork=forks)
    @precondition(lambda self: started(self) and self.run.stateful)
    def burst(self, more: int, fork: int) -> None:
        """As many requests as possible come with similar prompts, and track their states; states may run out."""
        for longer in range(REQUESTS):
            if (asked := self.new(1, 0, fork)) is not None:
                self.do("admit", **{**asked, "more": min(self.calls.page_size + more + longer, self.most)})
                if asked["request"] in self.answering:
                    self.use_state(asked["request"], 1)

    @rule(drawn=picks, pages=st.integers(1, 3), swa=st.integers(0, 3))
    @some("answering")
    def short_prompt(self, drawn: int, pages: int, swa: int) -> None:
        """A short request comes, whose prompt is a prefix of the text of a request that runs.

        Before it the tree may be asked for SWA pages. Then the first nodes of the long request, which its window has
        left, are tombstones. In some runs the short request ends at once: its pages bring such a tombstone to life.
        """
        long = self.calls.requests[self.answering[drawn % len(self.answering)]]
        if (asked := self.new(1, 0, 0)) is not None:
            if swa:
                self.do("evict", full=0, swa=swa * self.calls.page_size)
            self.do("admit", **{**asked, "fork": long.fork, "more": min(pages * self.calls.page_size, self.most)})
            if drawn % 2 and asked["request"] in self.answering:
                self.do("finish", request=asked["request"])

    @rule(drawn=picks, times=st.sampled_from((8, 0, 2, 5)), swa=st.integers(0, 3))
    @some("decoding")
    def release_early(self, drawn: int, times: int, swa: int) -> None:
        """A request decodes until its window has left its cached prefix, and gives back the SWA part of its lock.

        Then the tree may be asked for SWA pages, and the request decodes again.
        """
        request = self.decoding[drawn % len(self.decoding)]
        for left in range(times):
            if request in self.decoding and self.room(request, 1):
                self.do("decode", requests=[request], slide=left % 2 == 0)
        if not self.early_release_breaks(request):
            self.do("release_swa", request=request)
        if swa:
            self.do("evict", full=0, swa=swa * self.calls.page_size)
        if request in self.decoding and self.room(request, 1):
            self.do("decode", requests=[request])

    def early_release_breaks(self, request: int) -> bool:
        """That this request gives back a part of its lock is a known difference, at once or when its session ends."""
        known = self.calls.requests[request]
        turn = bool(known.session) and self.excludes(LockRefExclusion.SESSION_AFTER_EARLY)
        state = self.run.stateful and self.excludes(LockRefExclusion.EARLY_RELEASE_STATE)
        answers = known.cached > len(known.tokens) and self.excludes(CacheExclusion.EARLY_RELEASE_OF_ANSWER)
        return turn or state or answers or self.excludes(LockRefExclusion.EARLY_RELEASE)

    @rule(drawn=picks)
    @some("answering")
    def reserve_all(self, drawn: int) -> None:
        """A request reserves all slots that its row has room for, in some runs. Then other requests may find no
        memory.
        """
        request = self.answering[drawn % len(self.answering)]
        left = self.most - self.calls.tokens(self.calls.row_of[request])
        if drawn % 3 or not left or not self.offers("reserve"):
            return
        self.arrive_now(8, 0, 0, 1)
        self.do("reserve", request=request, more=left)
        if others := self.decoding:
            self.do("decode", requests=others)
        for other in self.prefilling[:1]:
            self.do("chunk", request=other)

    # States.

    @rule(drawn=picks, how=picks)
    @some("answering")
    def state(self, drawn: int, how: int) -> None:
        """A request that decodes tracks its state at a boundary, or is before or after one."""
        self.use_state(self.answering[drawn % len(self.answering)], how)

    def use_state(self, request: int, how: int) -> None:
        """A call on the request's state, if the cache has states."""
        op = ("track", "boundary", "settle")[how % 3]
        if self.run.stateful and self.offers(op) and (op != "track" or self.run.passed(request)):
            self.do(op, request=request)

    @rule()
    @precondition(lambda self: started(self) and self.run.tree.grown())
    def compact(self) -> None:
        """The tree merges nodes."""
        if self.offers("compact"):
            self.do("compact")

    @rule(states=st.integers(1, 4))
    @precondition(lambda self: started(self) and self.run.stateful and self.run.tree.grown())
    def evict_states(self, states: int) -> None:
        """The tree is asked to free states."""
        self.do("evict", states=states)

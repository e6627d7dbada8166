"""The rules of the whole cache: those of requests and sessions, and visitors that leave their prompts to the tree."""

from __future__ import annotations

from itertools import product
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from conformance.busy_rules import SessionRuns
from conformance.cache import CacheRun
from conformance.cache_known import breaks
from conformance.machine import Json
from conformance.mamba_rules import LAZY, NO_BUFFER, ONE, TWO
from conformance.session_rules import CONFIG, REQUESTS, ROWS, chunks, few, forks, lengths, picks, sessions, some

# The laws go through every page, row and node there can be, so pools are small.
POOLS = {
    "size": st.integers(3, 8),
    "size_swa": st.integers(3, 8),
    "size_mamba": st.sampled_from((5, 4, 8, 15, 4, 10)),
}
SMALL = {**CONFIG, **POOLS}
ARRIVES = ("admit", "look")
INSERTS = (*ARRIVES, "chunk", "finish", "abort")
BUFFERS = (TWO, LAZY, None, LAZY, ONE, NO_BUFFER)  # buffered, doubled, lazy; none: a cache without states


class CacheRuns(SessionRuns):
    """Requests and sessions over one tree."""

    run: CacheRun

    @initialize(config=st.fixed_dictionaries(SMALL), kind=picks, more=lengths, session=sessions, chunk=chunks)
    def start(self, config: Json, kind: int, more: int, session: int, chunk: int) -> None:
        """A subject and a spec of a drawn size and kind, and the first request; kinds that the subject lacks are
        passed over.
        """
        first = kind % len(BUFFERS)
        for buffer, rows in product((*BUFFERS[first:], *BUFFERS[:first]), range(ROWS, 0, -1)):
            states = {} if buffer is None else dict(zip(("buffered", "doubled", "lazy"), buffer, strict=True))
            components = ["full", "swa", *(["mamba"] if states else [])]
            self.set_up({**config, **states, "components": components, "rows": rows})
            if not self.run.subject.missing:
                break
        self.arrive_now(more, session, 0, chunk)

    @rule(visits=st.lists(st.tuples(st.integers(1, 3), few, forks, st.integers(0, 5)), min_size=1, max_size=2))
    @precondition(lambda self: self.run is not None and len(self.run.row_of) < self.run.limit)
    def visit(self, visits: list[tuple[int, int, int, int]]) -> None:
        """Requests without a session come, answer and end; lengths count pages. What of one has left the window is a
        tombstone then, which comes to life with the next one that asks as much of the same.
        """
        size = self.run.page_size
        for prompt, more, fork, answer in visits:
            self.come_and_go(prompt * size + more, fork, answer)
            if answer > 1:
                self.come_and_go((prompt + answer - 1) * size + more, fork, 0)

    def new(self, more: int, session: int, fork: int) -> Json | None:
        """As ever; without its session, where a lazy buffer is known not to outlive its turn."""
        lost = self.avoids("lazy_session") and self.run.stateful and self.run.state.states.lazy
        return super().new(more, 0 if lost else session, fork)

    def do(self, op: str, **arguments: Any) -> None:
        """One operation, unless it is one that the engine is known to break."""
        if "slide" in arguments and self.avoids("slide_past_leaf"):
            arguments = {**arguments, "slide": False}
        if op not in ARRIVES or arguments["request"] in self.run.asked:
            known = op in INSERTS and breaks(self.run, op, arguments["request"])
        else:
            asked = {name: value for name, value in arguments.items() if name != "chunk"}
            self.run.arrive(**asked)
            known = breaks(self.run, op, arguments["request"])
            del self.run.asked[arguments["request"]]
        if not known:
            super().do(op, **arguments)

    def come_and_go(self, prompt: int, fork: int, answer: int) -> None:
        """A request comes with so many tokens, answers with so many pages and a token more, and ends."""
        asked, size = self.new(1, 0, fork), self.run.page_size
        if asked is None:
            return
        self.do("admit", **{**asked, "more": min(prompt, self.run.config["size"] * size)})
        request = asked["request"]
        for _ in range(answer if request in self.answering and self.offered("reserve") else 0):
            self.step_draft(request, size, size, False)
        if request in self.decoding and self.room(request, 1):
            self.do("decode", requests=[request], slide=answer > 1)
        if request in self.answering:
            self.see_state(request, 0)
            self.do("finish", request=request)

    @rule(more=few, fork=forks)
    @precondition(lambda self: self.run is not None and self.run.stateful)
    def crowd(self, more: int, fork: int) -> None:
        """As many requests as can be there ask much the same, and go on; states may be lacking for some."""
        for longer in range(REQUESTS):
            if (asked := self.new(1, 0, fork)) is not None:
                size = self.run.page_size
                self.do("admit", **{**asked, "more": min(size + more + longer, self.run.config["size"] * size)})
                if asked["request"] in self.answering:
                    self.see_state(asked["request"], 1)

    @rule(drawn=picks, pages=st.integers(1, 3))
    @some("answering")
    def alike(self, drawn: int, pages: int) -> None:
        """A short request begins as one that runs does, whose window may have left the tree there."""
        long = self.run.asked[self.answering[drawn % len(self.answering)]]
        if (asked := self.new(1, 0, 0)) is not None:
            most = self.run.config["size"] * self.run.page_size
            self.do("admit", **{**asked, "fork": long.fork, "more": min(pages * self.run.page_size, most)})

    @rule(drawn=picks)
    @some("answering")
    def greed(self, drawn: int) -> None:
        """A request reserves all that its row has room for, now and then; others may find nothing."""
        request = self.answering[drawn % len(self.answering)]
        left = self.run.config["size"] * self.run.page_size - self.run.tokens(self.run.row_of[request])
        if drawn % 3 or not left or not self.offered("reserve"):
            return
        self.arrive_now(8, 0, 0, 1)
        self.do("reserve", request=request, more=left)
        if others := self.decoding:
            self.do("decode", requests=others)
        for other in self.prefilling[:1]:
            self.do("chunk", request=other)

    @rule(drawn=picks, how=picks)
    @some("answering")
    def state(self, drawn: int, how: int) -> None:
        """A request that decodes is at a boundary, or after one."""
        self.see_state(self.answering[drawn % len(self.answering)], how)

    def see_state(self, request: int, how: int) -> None:
        """A call on its state, where it has one."""
        op = ("track", "boundary", "settle")[how % 3]
        if self.run.stateful and self.offered(op) and (op != "track" or self.run.passed(request)):
            self.do(op, request=request)

    @rule(states=st.integers(1, 4))
    @precondition(lambda self: self.run is not None and self.run.stateful and self.run.tree.grown())
    def shed(self, states: int) -> None:
        """Somebody needs states."""
        self.do("evict", states=states)

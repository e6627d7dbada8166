"""Hypothesis draws the runs of requests and sessions: a few of each over tiny pools, prompts that share prefixes.

A rule sends what a scheduler can send in this state, and nothing else. A run ends with the end of everything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from conformance.machine import Json
from conformance.row_seen import lengths_of
from conformance.session_trim import SessionTrimRun
from conformance.stateful import Machine
from spec import rows as noun
from spec.lengths import in_pages

REQUESTS, SESSIONS, ROWS = 3, 2, 3
CONFIG = {
    "page_size": st.integers(0, 11),
    "size": st.integers(3, 10),  # pages
    "size_swa": st.integers(3, 10),
    "window": st.integers(1, 5),
    "need_sort": st.booleans(),
    "tree": st.sampled_from(("unified", "swa_radix")),
}
sessions, lengths = st.sampled_from((1, 0, 1, 2)), st.sampled_from((5, 2, 3, 1, 8, 0))
picks, few, forks, chunks = st.integers(0, 11), st.integers(1, 4), st.integers(0, 2), st.integers(0, 2)
BAD = ("row_outside", "row_twice", "longer_than_a_row", "shrinks", "nobodys_slot", "not_finished", "padding_for_prefix")


def some(what: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A precondition: the list ``what`` of the machine is not empty."""
    return precondition(lambda self: self.run is not None and bool(getattr(self, what)))


class SessionTrimRuns(Machine):
    """Requests that come, grow and leave, and sessions that stay between them."""

    run: SessionTrimRun
    page_sizes = (1, 2, 4, 16)

    @initialize(config=st.fixed_dictionaries(CONFIG), more=lengths, session=sessions, chunk=chunks)
    def start(self, config: Json, more: int, session: int, chunk: int) -> None:
        """A subject and a spec of a drawn size (in pages; the window counts tokens), and the first request."""
        self.set_up(config)
        self.arrive_now(more, session, 0, chunk)

    def set_up(self, config: Json) -> None:
        """A subject and a spec."""
        page_size = self.page_sizes[config["page_size"] % len(self.page_sizes)]
        known = {"rows": ROWS, **config, "page_size": page_size, "sessions": SESSIONS}
        known["window"] = self.scaled(config["window"], page_size)
        run_class: Any = type(self).run_class
        self.run = run_class(type(self).make(known), known, self.strict, self.avoid)

    def teardown(self) -> None:
        """The end of everything, where the run has not failed before."""
        failed = self.sink.failure is not None and self.sink.failure[1] is self.run.trace
        if self.run is not None and not failed:
            self.do("end")
        super().teardown()

    # What a caller can send now.

    @staticmethod
    def scaled(tokens: int, page_size: int) -> int:
        """Large pages need long texts."""
        return tokens * max(1, page_size // 4)

    def tokens(self, drawn: int) -> int:
        """A number of tokens."""
        return self.scaled(drawn, self.run.page_size)

    @property
    def waiting(self) -> list[int]:
        """The requests that wait."""
        return [r for r in self.run.asked if r not in self.run.row_of]

    @property
    def prefilling(self) -> list[int]:
        """The requests whose prompt is computed in part."""
        return [r for r in self.run.row_of if self.run.prefilling(r)]

    @property
    def answering(self) -> list[int]:
        """The requests that have a first token of their answer."""
        return [r for r in self.run.row_of if not self.run.prefilling(r)]

    @property
    def decoding(self) -> list[int]:
        """Those of them that nothing is allocated ahead for."""
        return [r for r in self.answering if self.run.decoding(r)]

    def ahead(self, request: int) -> int:
        """How many tokens are allocated and not computed."""
        row = self.run.row_of[request]
        return self.run.tokens(row) - self.run.computed(request)

    def new(self, more: int, session: int, fork: int) -> Json | None:
        """What a request that is not there yet asks, if it may; without its session where that has a turn."""
        run = self.run
        session = 0 if any(asked.session == session for asked in run.asked.values()) else session
        free = [r for r in range(REQUESTS) if r not in run.asked]
        known, slot = len(run.texts.get(session, [])), run.life.slot(session) - 1 if session else -1
        held = lengths_of(run.life, slot).protected if slot >= 0 else 0
        more = min(self.tokens(more), run.config["size"] * run.page_size - known)
        if not free or more < 0 or known + more <= held or (self.avoids("no_new_token") and not more):
            return None
        return {"request": free[0], "more": more, "session": session, "fork": self.tokens(3) * fork}

    def cuts_window(self, request: int, to: int) -> bool:
        """A request that goes on at ``to`` has given its window back, and the engine is known not to see it."""
        st, row = self.run.life, self.run.row_of[request]
        return self.avoids("cut_into_window") and not noun.resumable(st, row, in_pages(to, self.run.page_size))

    def settle(self, request: int) -> None:
        """The draft of a turn that leaves becomes part of its answer, where a tail is known to stay."""
        if self.avoids("tail") and self.run.asked[request].session and not self.run.prefilling(request):
            self.accept(request, self.ahead(request))

    def forgets(self, request: int, long: int) -> bool:
        """The engine is known to go wrong with a turn that is retracted now, and asks so many tokens then."""
        turn = bool(self.run.asked[request].session)
        again = self.avoids("retract_twice") and request in self.run.retracted
        return turn and (self.avoids("retract") or again or (self.avoids("one_token") and long == 1))

    # Rules.

    @rule(more=lengths, session=sessions, fork=forks, chunk=chunks, drawn=picks)
    def arrive(self, more: int, session: int, fork: int, chunk: int, drawn: int) -> None:
        """A request comes and is admitted, or (now and then) only looked at."""
        if drawn % 4 != 3:
            self.arrive_now(more, session, fork, chunk)
        elif self.offered("look") and (asked := self.new(more, session, fork)) is not None:
            self.do("look", **asked)

    def arrive_now(self, more: int, session: int, fork: int, chunk: int) -> None:
        """A request comes and is admitted."""
        asked = self.new(more, session, fork)
        if asked is not None:
            self.do("admit", **asked, chunk=chunk)

    @rule(drawn=picks, chunk=chunks, look=st.booleans())
    @some("waiting")
    def again(self, drawn: int, chunk: int, look: bool) -> None:
        """A request that waits is looked at again, or admitted."""
        request = self.waiting[drawn % len(self.waiting)]
        if look and self.offered("look"):
            self.do("look", request=request)
        elif not look:
            self.do("admit", request=request, chunk=chunk)

    @rule(drawn=picks, chunk=chunks)
    @some("prefilling")
    def chunk(self, drawn: int, chunk: int) -> None:
        """The next chunk of a prompt."""
        self.do("chunk", request=self.prefilling[drawn % len(self.prefilling)], chunk=chunk)

    @rule(batch=st.lists(picks, min_size=1, max_size=3), times=st.integers(1, 4), slide=st.booleans())
    @some("decoding")
    def decode(self, batch: list[int], times: int, slide: bool) -> None:
        """A few steps of a batch; the windows may move in the last."""
        for left in reversed(range(times)):
            ready = self.decoding
            chosen = list(dict.fromkeys(ready[n % len(ready)] for n in batch)) if ready else []
            fits = chosen and self.run.fits([(n, n + 1) for n in map(self.run.computed, chosen)])
            if chosen and (fits or left == 0):
                self.do("decode", requests=chosen, slide=slide and left == 0)

    @rule(drawn=picks, times=st.integers(3, 12), ahead=st.integers(0, 3), sent=st.sampled_from((-1, 0, 2)))
    @some("answering")
    def answer(self, drawn: int, times: int, ahead: int, sent: int) -> None:
        """A long answer, drafted or not: the window moves; it may have ended long before."""
        request = self.answering[drawn % len(self.answering)]
        for left in reversed(range(times)):
            if ahead and self.offered("reserve"):
                more = self.tokens(ahead)
                self.step_draft(request, more, more - (left + 1) % 2, left % 3 == 0)
            elif request in self.decoding and self.room(request, 1):
                self.do("decode", requests=[request], slide=left % 3 == 0)
        if sent >= 0 and not self.avoids("overshoot"):
            self.end(request, max(0, len(self.run.asked[request].sampled) - sent))

    def room(self, request: int, more: int) -> bool:
        """The request can grow by so many tokens at once."""
        now = self.run.tokens(self.run.row_of[request])
        return now + more <= self.run.config["size"] * self.run.page_size and self.run.fits([(now, now + more)])

    def step_draft(self, request: int, more: int, accepted: int, slide: bool) -> None:
        """A draft where there is room, and what of it is accepted."""
        if self.room(request, more):
            self.do("reserve", request=request, more=more, slide=slide)
        self.accept(request, accepted)

    def accept(self, request: int, accepted: int) -> None:
        """So many draft tokens are accepted, if there are any."""
        if accepted and self.ahead(request):
            self.do("commit", request=request, count=min(accepted, self.ahead(request)))

    @rule(drawn=picks, more=few, accepted=st.integers(0, 4), slide=st.booleans())
    @some("answering")
    def draft(self, drawn: int, more: int, accepted: int, slide: bool) -> None:
        """A draft, and what of it is accepted."""
        request = self.answering[drawn % len(self.answering)]
        now = self.run.tokens(self.run.row_of[request])
        if now + more <= self.run.config["size"] * self.run.page_size and self.offered("reserve"):
            self.do("reserve", request=request, more=more, slide=slide)
        self.accept(request, accepted)

    @rule(drawn=picks, lost=st.sampled_from((0, 2, 6, 1)))
    @some("answering")
    def finish(self, drawn: int, lost: int) -> None:
        """A request ends; decoding may have run past what was sent."""
        request = self.answering[drawn % len(self.answering)]
        self.end(request, 0 if self.avoids("overshoot") else self.tokens(lost))

    def end(self, request: int, lost: int) -> None:
        """A request ends, and so many of its last tokens do not reach the caller."""
        self.settle(request)
        asked = self.run.asked[request]
        sent = max(0, len(asked.sampled) - lost)
        if not lost or (asked.session and self.cuts_window(request, len(asked.tokens) + sent)):
            self.do("finish", request=request)
        else:
            self.do("finish", request=request, sent=sent)

    @rule(drawn=picks, unknown=st.booleans())
    @some("answering")
    def retract(self, drawn: int, unknown: bool) -> None:
        """A request gives its row up; an overlapping scheduler does not know its last token yet."""
        request = self.answering[drawn % len(self.answering)]
        asked, held = self.run.asked[request], lengths_of(self.run.life, self.run.row_of[request]).protected
        sent = len(asked.sampled) - unknown
        long = len(asked.tokens) + sent
        fits = (held if asked.session else 0) < long <= self.run.config["size"] * self.run.page_size
        known = self.forgets(request, long) or (unknown and self.avoids("overlap"))
        if fits and not known and not self.cuts_window(request, long - 1) and self.offered("retract"):
            self.do("retract", request=request, **({"sent": sent} if unknown else {}))

    @rule(drawn=picks)
    @precondition(lambda self: self.run is not None and bool(self.run.row_of))
    def abort(self, drawn: int) -> None:
        """A request is aborted while it runs, now and then."""
        ready = sorted(self.run.row_of)
        request = ready[drawn % len(ready)]
        known = self.avoids("abort") or not self.run.may_abort(request)
        if drawn % 3 == 0 and not known and (request in self.answering or self.offered("abort_chunked")):
            self.settle(request)
            self.do("abort", request=request)

    @rule(drawn=picks)
    @some("waiting")
    def cancel(self, drawn: int) -> None:
        """A request that waits is aborted, now and then."""
        request = self.waiting[drawn % len(self.waiting)]
        if drawn % 2 and not (self.avoids("cancel") and self.run.asked[request].session):
            self.do("cancel", request=request)

    @rule(drawn=picks, session=st.integers(1, SESSIONS))
    def close(self, drawn: int, session: int) -> None:
        """A session ends, now and then."""
        turns = [r for r, asked in self.run.asked.items() if asked.session == session]
        waits = bool(turns) and (self.avoids("close_waiting") or not self.offered("close_waiting"))
        if drawn % 3 == 0 and self.run.texts.get(session) and not waits and not set(turns) & set(self.run.row_of):
            self.do("close", session=session)

    @rule(full=st.integers(0, 3), swa=few, drawn=picks)
    @precondition(lambda self: self.run is not None and self.run.tree.grown())
    def evict(self, full: int, swa: int, drawn: int) -> None:
        """Somebody needs room in the tree, now and then."""
        if drawn % 3 == 0:
            self.do("evict", full=full * self.run.page_size, swa=swa * self.run.page_size)

    @rule(batch=st.lists(picks, max_size=2))
    @some("answering")
    def results(self, batch: list[int]) -> None:
        """An engine goes through the results of a batch: what ends gives its pages back together."""
        if self.avoids("group"):
            return
        self.do("begin")
        for drawn in batch:
            ready = self.answering
            if ready:
                request = ready[drawn % len(ready)]
                self.settle(request)
                self.do("finish", request=request)
        self.do("close_group")

    @rule(kind=st.sampled_from(BAD), drawn=picks)
    @precondition(lambda self: self.run is not None and self.run.subject.traits.rejects)
    def bad(self, kind: str, drawn: int) -> None:
        """Bad input, now and then, for subjects that promise to answer it."""
        if drawn == 7:
            self.do("bad", kind=kind)

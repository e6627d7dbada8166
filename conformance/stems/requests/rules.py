"""The rules of a scheduler and its clients: a few requests and sessions over tiny pools, with prompts that share
prefixes.

A rule sends what a scheduler, or a client that does not wait, can send in the present state, and nothing else. It
avoids known differences of the engine. Each run ends with ``quiesce``: everything ends, and nothing may be leaked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import product
from random import Random
from typing import Any, get_args
from zlib import crc32

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from conformance.driver.protocol import Json
from conformance.stems.configs import WINDOWED
from conformance.stems.machine import StemMachine, started
from conformance.stems.requests.calls import BadCall, RequestCalls
from conformance.stems.session_trim.exclusions import SessionTrimExclusion as Exclusion
from spec import session_trim_state as noun

REQUESTS, SESSIONS, ROWS = 3, 2, 3
CONFIG = {
    "page_size": st.integers(0, 11),  # an index into ``page_sizes`` of the machine
    "size": st.integers(3, 10),  # pages
    "size_swa": st.integers(3, 10),
    "window": st.integers(1, 5),  # tokens
    "need_sort": st.booleans(),
    "tree": st.sampled_from((False, True)),  # the newest that the engine has for the model, or the oldest
    "windowed": st.sampled_from((True, True, True, False)),  # the model has sliding-window layers
}
sessions, lengths = st.sampled_from((1, 0, 1, 2)), st.sampled_from((5, 2, 3, 1, 8, 0))
picks, few, forks, chunks = st.integers(0, 11), st.integers(1, 4), st.integers(0, 2), st.integers(0, 2)
BAD = get_args(BadCall)
TOGETHER = 12  # decode steps of one batch, at most

# The arguments of ``quiesce``, and the known difference that each of them avoids.
AVOIDED_AT_THE_END = {
    "accept_drafts": Exclusion.DRAFT_TAIL,
    "finish_retracted": Exclusion.RETRACT_ABORT,
    "admit_waiting": Exclusion.CANCEL,
}


def some(what: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A precondition: the machine's list ``what`` is not empty."""
    return precondition(lambda self: self.run is not None and bool(getattr(self, what)))


class RequestRules(StemMachine):
    """Requests that come, grow and leave, sessions that stay between their turns, and clients that do not wait."""

    page_sizes = (1, 2, 4, 16)

    def drawn(self, config: Json) -> Json:
        """A drawn configuration, of a model with or without sliding-window layers as the search asks for it."""
        return config if self.parts is None else {**config, "windowed": {"full", "swa"} <= set(self.parts)}

    def variants(self, config: Json) -> list[Json]:
        """The drawn configuration, and then those of every other kind, for an engine that does not support it. Their
        order depends on the drawn one alone.
        """
        kinds = product(range(len(self.page_sizes)), (False, True), (True, False), (False, True))
        rest = [
            {**config, "page_size": page_size, "tree": older, "windowed": windowed, "need_sort": sorts}
            for page_size, older, windowed, sorts in kinds
        ]
        named = {**config, "tree": self.kinds.serving(WINDOWED, config["tree"])}
        Random(crc32(json.dumps(named, sort_keys=True).encode())).shuffle(rest)
        return [self.drawn(one) for one in (config, *rest)]

    def set_up(self, config: Json) -> bool:
        """Starts a run of a drawn size. False if the engine does not support it.

        A model without sliding-window layers is told by its ``components``. In some runs it is replaced by one that has
        no other layers, where the engine has such models.
        """
        page_size = self.page_sizes[config["page_size"] % len(self.page_sizes)]
        known = {"rows": ROWS, **config, "page_size": page_size, "sessions": SESSIONS}
        known["window"] = self.scaled(config["window"], page_size)
        parts: Sequence[str] = WINDOWED
        if not known.pop("windowed"):
            if self._all_sliding(known) and self._begin_sliding(known, config["window"]):
                return True
            parts = known["components"] = known.get("components", ["full"])
        known["tree"] = self.kinds.serving(parts, known["tree"])
        return known["tree"] is not None and self.begin(known)

    def _all_sliding(self, known: Json) -> bool:
        """The model of a drawn configuration without sliding-window layers is to have no other layers."""
        if self.parts is not None:
            return self.parts == ("swa",)
        stateful = "mamba" in known.get("components", ())
        return not stateful and known["tree"] and (known["size"] + known["need_sort"]) % 2 == 0

    def _begin_sliding(self, known: Json, window: int) -> bool:
        """Starts a run of a model whose layers all have a sliding window: of the drawn size, or else with pages of one
        token: then there are twice as many, and the window is one that a short answer leaves. Such a model has no
        sessions.
        """
        first = {name: value for name, value in known.items() if name != "tree"}
        first |= {"components": ["swa"], "sessions": 0}
        tokens = {"page_size": 1, "size": 2 * known["size"], "window": min(window, 2)}
        aware = known["size_swa"] % 2 == 0 or self.excludes(Exclusion.GAP_IN_TREE)
        kinds = [aware, *([False] if aware and not self.excludes(Exclusion.GAP_IN_TREE) else [])]
        return any(self.begin({**first, **more, "prefill_aware": kind}) for kind in kinds for more in ({}, tokens))

    def do(self, op: str, **arguments: Any) -> None:
        """Sends one operation. The window stays where it is, where its move is a known difference."""
        if arguments.get("slide") and self.part_pages(Exclusion.SLIDE_OF_PART_PAGES):
            arguments = {**arguments, "slide": False}
        super().do(op, **arguments)

    def teardown(self) -> None:
        """Ends everything, unless the run has failed before."""
        if self.run is not None and not self.failed:
            avoided = {argument: True for argument, known in AVOIDED_AT_THE_END.items() if self.excludes(known)}
            self.do("quiesce", **avoided)
        super().teardown()

    # What a caller can send now.

    @property
    def calls(self) -> RequestCalls:
        """The scheduler's side of the run."""
        found: RequestCalls = self.run.calls
        return found

    @staticmethod
    def scaled(tokens: int, page_size: int) -> int:
        """More tokens where pages are large, so that texts have several pages."""
        return tokens * max(1, page_size // 4)

    def tokens(self, drawn: int) -> int:
        """A drawn number of tokens, scaled to the page size."""
        return self.scaled(drawn, self.calls.page_size)

    @property
    def most(self) -> int:
        """How many tokens a row can have."""
        return int(self.run.config["size"]) * self.calls.page_size

    @property
    def waiting(self) -> list[int]:
        """The requests that wait."""
        return [r for r in self.calls.requests if r not in self.calls.row_of]

    @property
    def prefilling(self) -> list[int]:
        """The requests that run and whose prompt is not computed to its end."""
        return [r for r in self.calls.row_of if self.calls.prefilling(r)]

    @property
    def answering(self) -> list[int]:
        """The requests that run and have the first token of their answer, without those that the engine turned away."""
        turned_away, known = self.calls.turned_away, self.calls.requests
        return [r for r in self.calls.row_of if known[r].sampled and r not in turned_away]

    @property
    def decoding(self) -> list[int]:
        """The requests of ``answering`` for which nothing is allocated ahead."""
        return [r for r in self.answering if self.calls.decoding(r)]

    @property
    def rejected(self) -> list[int]:
        """The requests that the engine turned away, and in whose place it runs one token."""
        return [r for r in self.calls.row_of if r in self.calls.turned_away]

    @property
    def busy(self) -> list[int]:
        """The sessions that have a request."""
        return sorted({known.session for known in self.calls.requests.values()} - {0})

    @property
    def free(self) -> list[int]:
        """Request numbers that are not in use."""
        return [r for r in range(REQUESTS) if r not in self.calls.requests]

    def ahead(self, request: int) -> int:
        """How many tokens of the request are allocated and not computed."""
        return self.calls.tokens(self.calls.row_of[request]) - self.calls.computed(request)

    def without_session(self, session: int) -> bool:
        """A new request must come without its session.

        The session has a request already; or it is known that an overlapping request which was turned away confuses
        the engine about the session's turns.
        """
        marked = self.excludes(Exclusion.OVERLAPPING_TURN) and session in self.calls.turned_away.values()
        return marked or bool(session and self.calls.turns(session))

    def new(self, more: int, session: int, fork: int, drawn: int = 0) -> Json | None:
        """The arguments of a new request; ``None`` if none may come. Where it has no session, its text has one of two
        marks for some drawn numbers.
        """
        none = session > self.run.config["sessions"] or self.without_session(session)
        session = 0 if none else session
        known = len(self.calls.texts.get(session, []))
        more = min(self.tokens(more), self.most - known)
        nothing = self.excludes(Exclusion.NO_NEW_TOKEN) and not more
        if not self.free or more < 0 or not known + more or nothing:
            return None
        asked = {"request": self.free[0], "more": more, "session": session, "fork": self.tokens(3) * fork}
        return asked if session or drawn % 5 != 4 else {**asked, "mark": 1 + drawn // 5 % 2}

    def settle(self, request: int) -> None:
        """Accepts the draft of a session's turn before it leaves, if the engine is known to keep draft slots then."""
        turn = self.calls.requests[request].session
        if self.excludes(Exclusion.DRAFT_TAIL) and turn and not self.calls.prefilling(request):
            self.accept(request, self.ahead(request))

    def forgets(self, request: int, long: int) -> bool:
        """A retract of this turn, with an input of ``long`` tokens afterwards, is a known difference."""
        again = self.excludes(Exclusion.RETRACT_TWICE) and request in self.calls.retracted
        one = self.excludes(Exclusion.ONE_TOKEN) and long == 1
        return bool(self.calls.requests[request].session) and (self.excludes(Exclusion.RETRACT) or again or one)

    def may_abort(self, request: int) -> bool:
        """The abort of this request is not a known difference."""
        turn = bool(self.calls.requests[request].session)
        return not (turn and self.excludes(Exclusion.RETRACT_ABORT) and request in self.calls.retracted)

    def room(self, request: int, more: int) -> bool:
        """The request can grow by ``more`` tokens at once."""
        now = self.calls.tokens(self.calls.row_of[request])
        return now + more <= self.most and self.calls.fits([(now, now + more)])

    # Requests come.

    @rule(more=lengths, session=sessions, fork=forks, chunk=chunks, drawn=picks)
    def arrive(self, more: int, session: int, fork: int, chunk: int, drawn: int) -> None:
        """A new request is admitted, or sometimes only looks. It has no precondition, since Hypothesis needs one rule
        that is always possible.
        """
        if self.run is None:
            return
        if drawn == 11:  # in place of a look, so that as many requests arrive and stay
            self.arrive_in_passing(more, session, fork, drawn)
        elif drawn % 4 != 3:
            self.arrive_now(more, session, fork, chunk, drawn)
        elif self.offers("look") and (asked := self.new(more, session, fork, drawn)) is not None:
            self.do("look", **asked)

    def arrive_now(self, more: int, session: int, fork: int, chunk: int, drawn: int = 0) -> None:
        """A new request is admitted."""
        asked = self.new(more, session, fork, drawn)
        if asked is not None:
            self.do("admit", **asked, chunk=chunk)

    def arrive_in_passing(self, more: int, session: int, fork: int, drawn: int) -> None:
        """A new request is admitted, and leaves before the first token of its answer is known."""
        asked = self.new(more, session, fork, drawn)
        if asked is None or self.excludes(Exclusion.OVERLAP) or self.excludes(Exclusion.OVERSHOOT):
            return
        request = asked["request"]
        self.do("admit", **asked, unknown=True)
        if request not in self.calls.row_of:
            return
        if fork % 2 or not self.may_retract(request, len(self.calls.requests[request].tokens)):
            self.do("finish", request=request)
        else:
            self.do("retract", request=request)

    @rule(more=lengths, pages=st.integers(0, 3), session=sessions, fork=forks, drawn=picks)
    @precondition(started)
    def arrive_computed(self, more: int, pages: int, session: int, fork: int, drawn: int) -> None:
        """A new request is admitted whose prompt is computed elsewhere; it decodes, and its window moves, in some runs.

        ``pages``: so much longer is its prompt, so that the tail is a part of it.
        """
        later = session and (self.run.rows.slot(session) or self.calls.texts.get(session))
        asked = self.new(more, 0 if later else session, fork)
        if drawn % 2 or asked is None or not self.offers("admit_tail"):
            return
        long = min(max(asked["more"], 1) + pages * self.calls.page_size, self.most)
        if self.tail_is_known(long):
            return
        self.do("admit_tail", **{**asked, "more": long})
        if drawn % 3 == 0 and asked["request"] in self.decoding and self.room(asked["request"], 1):
            self.do("decode", requests=[asked["request"]], slide=True)

    def tail_is_known(self, long: int) -> bool:
        """The admission of a prompt of ``long`` tokens that is computed elsewhere is a known difference."""
        short = self.excludes(Exclusion.TAIL_WITHOUT_ROOM) and not self.calls.fits([(0, long)])
        behind = self.excludes(Exclusion.TAIL_BEHIND_PREFIX) and self.run.tree.grown()
        return short or behind or self.part_pages(Exclusion.TAIL_OF_PART_PAGES)

    def part_pages(self, difference: Exclusion) -> bool:
        """The window is no whole pages, and this known difference comes of it."""
        return self.excludes(difference) and int(self.run.config["window"]) % self.calls.page_size > 0

    @rule(more=lengths, session=sessions, fork=forks, chunk=chunks, drawn=picks)
    @precondition(started)
    def arrive_in_vain(self, more: int, session: int, fork: int, chunk: int, drawn: int) -> None:
        """An exception ends the admission of a new request, or of one that waits, in some runs."""
        if drawn % 3 or not self.offers("interrupted_admit"):
            return
        if self.waiting:
            self.do("interrupted_admit", request=self.waiting[drawn % len(self.waiting)], chunk=chunk)
        elif (asked := self.new(more, session, fork)) is not None:
            self.do("interrupted_admit", **asked, chunk=chunk)

    @rule(drawn=picks, chunk=chunks)
    @precondition(lambda self: started(self) and bool(self.calls.row_of))
    def fail(self, drawn: int, chunk: int) -> None:
        """An exception ends the next chunk of a prompt or a decode step, in some runs; then the step is sent again."""
        if drawn % 2:
            return
        if self.prefilling and self.offers("interrupted_chunk"):
            request = self.prefilling[drawn % len(self.prefilling)]
            self.do("interrupted_chunk", request=request, chunk=chunk)
            self.do("chunk", request=request, chunk=chunk)
        elif (ready := self.decoding) and self.offers("interrupted_decode"):
            self.do("interrupted_decode", requests=ready)
            self.do("decode", requests=ready)

    @rule(drawn=picks, chunk=chunks, look=st.booleans())
    @some("waiting")
    def again(self, drawn: int, chunk: int, look: bool) -> None:
        """A request that waits looks again, or is admitted."""
        request = self.waiting[drawn % len(self.waiting)]
        if look and self.offers("look"):
            self.do("look", request=request)
        elif not look:
            self.do("admit", request=request, chunk=chunk)

    @rule(drawn=picks, chunk=chunks)
    @some("prefilling")
    def chunk(self, drawn: int, chunk: int) -> None:
        """The next chunk of a prompt."""
        self.do("chunk", request=self.prefilling[drawn % len(self.prefilling)], chunk=chunk)

    # Requests grow.

    @rule(batch=st.lists(picks, min_size=1, max_size=3), times=st.integers(1, 4), slide=st.booleans())
    @some("decoding")
    def decode(self, batch: list[int], times: int, slide: bool) -> None:
        """A few decode steps of a batch. The windows may move before the last step."""
        for left in reversed(range(times)):
            ready = self.decoding
            chosen = list(dict.fromkeys(ready[n % len(ready)] for n in batch)) if ready else []
            fits = chosen and self.calls.fits([(n, n + 1) for n in map(self.calls.computed, chosen)])
            if chosen and (fits or left == 0):
                self.do("decode", requests=chosen, slide=slide and left == 0)

    @rule(more=few, drawn=picks, slide=st.booleans())
    @precondition(started)
    def crowd(self, more: int, drawn: int, slide: bool) -> None:
        """As many requests as there can be decode in one batch until there is no memory for all of them, in some runs.
        The last batch is refused, although some of its requests would fit alone.
        """
        if drawn % 2:
            return
        while self.free and (asked := self.new(more, 0, drawn % 3)) is not None:
            self.do("admit", **asked, chunk=0)
            if asked["request"] not in self.calls.row_of:
                break
        for request in self.prefilling:
            self.do("chunk", request=request, chunk=0)
        fits = True
        for left in reversed(range(TOGETHER)):
            if not fits or len(ready := self.decoding) < 2:
                break
            fits = self.calls.fits([(n, n + 1) for n in map(self.calls.computed, ready)])
            self.do("decode", requests=ready, slide=slide and left % 3 == 0)

    @rule(drawn=picks, times=st.integers(3, 12), ahead=st.integers(0, 3), sent=st.sampled_from((-1, 0, 2)))
    @some("answering")
    def answer(self, drawn: int, times: int, ahead: int, sent: int) -> None:
        """A long answer, with or without drafts, so that the window moves. Decoding may run past what is sent."""
        request = self.answering[drawn % len(self.answering)]
        for left in reversed(range(times)):
            if ahead and self.offers("reserve"):
                more = self.tokens(ahead)
                self.step_draft(request, more, more - (left + 1) % 2, left % 3 == 0)
            elif request in self.decoding and self.room(request, 1):
                self.do("decode", requests=[request], slide=left % 3 == 0)
        if sent >= 0 and not self.excludes(Exclusion.OVERSHOOT):
            self.end(request, max(0, len(self.calls.requests[request].sampled) - sent))

    def step_draft(self, request: int, more: int, accepted: int, slide: bool) -> None:
        """A draft where there is room, and how much of it is accepted."""
        if self.room(request, more):
            self.do("reserve", request=request, more=more, slide=slide)
        self.accept(request, accepted)

    def accept(self, request: int, accepted: int) -> None:
        """So many draft tokens are accepted, or as many as there are."""
        if accepted and self.ahead(request):
            self.do("commit", request=request, count=min(accepted, self.ahead(request)))

    @rule(drawn=picks, more=few, accepted=st.integers(0, 4), slide=st.booleans())
    @some("answering")
    def draft(self, drawn: int, more: int, accepted: int, slide: bool) -> None:
        """A draft, which may find too little memory, and how much of it is accepted."""
        request = self.answering[drawn % len(self.answering)]
        now = self.calls.tokens(self.calls.row_of[request])
        if now + more <= self.most and self.offers("reserve"):
            self.do("reserve", request=request, more=more, slide=slide)
        self.accept(request, accepted)

    @rule(drawn=picks, count=few)
    @some("answering")
    def leave_out(self, drawn: int, count: int) -> None:
        """A draft is not accepted: its slots, or the last of them, are given back."""
        request = self.answering[drawn % len(self.answering)]
        if not self.ahead(request) and self.offers("roll_back") and self.offers("reserve"):
            self.step_draft(request, self.tokens(count) + 1, 0, False)
        if ahead := self.ahead(request):
            self.do("roll_back", request=request, count=min(count, ahead))

    @rule(drawn=picks, pages=few)
    @some("answering")
    def checkpoint(self, drawn: int, pages: int) -> None:
        """A request that decodes puts what it has computed into the tree, or the first ``pages`` pages of it."""
        request = self.answering[drawn % len(self.answering)]
        known, most = self.calls.requests[request], self.calls.computed(request)
        most = min(most, len(known.tokens)) if known.session else most
        upto = min(pages * self.calls.page_size, most) if drawn % 2 else most
        upto = max(upto, self.calls.run.least_checkpoint(request))
        if upto <= most:
            self.do("checkpoint", request=request, upto=upto)

    # Requests leave.

    @rule(drawn=picks, lost=st.sampled_from((0, 2, 6, 1)))
    @some("answering")
    def finish(self, drawn: int, lost: int) -> None:
        """A request ends. Decoding may have run past what was sent."""
        request = self.answering[drawn % len(self.answering)]
        self.end(request, 0 if self.excludes(Exclusion.OVERSHOOT) else self.tokens(lost))

    def end(self, request: int, lost: int) -> None:
        """A request ends, and the last ``lost`` tokens of its answer do not reach the caller."""
        self.settle(request)
        known = self.calls.requests[request]
        sent = max(self.calls.shortest(known), known.cached - len(known.tokens), len(known.sampled) - lost)
        self.do("finish", request=request, **({"sent": sent} if lost else {}))

    @rule(drawn=picks, unknown=st.booleans())
    @some("answering")
    def retract(self, drawn: int, unknown: bool) -> None:
        """A request gives up its row. ``unknown``: an overlapping scheduler does not know its last token yet."""
        request = self.answering[drawn % len(self.answering)]
        self.settle(request)
        known = self.calls.requests[request]
        unknown = unknown and self.calls.shortest(known) < len(known.sampled) and not self.excludes(Exclusion.OVERLAP)
        sent = len(known.sampled) - unknown
        if self.may_retract(request, len(known.tokens) + sent):
            self.do("retract", request=request, **({"sent": sent} if unknown else {}))

    def may_retract(self, request: int, long: int) -> bool:
        """The request can be retracted, with an input of ``long`` tokens then, and that is no known difference."""
        left_out = self.forgets(request, long) or self.before_window(request)
        return 0 < long <= self.most and not left_out and self.offers("retract")

    def before_window(self, request: int) -> bool:
        """A retract of this request is a known difference: each of its layers has a window, which nothing has left."""
        rows, row = self.run.rows, self.calls.row_of[request]
        whole = noun.has_gaps(rows) and noun.is_whole(rows, row)
        return bool(whole) and self.excludes(Exclusion.RETRACT_BEFORE_WINDOW)

    @rule(drawn=picks)
    @precondition(lambda self: started(self) and bool(self.calls.row_of))
    def abort(self, drawn: int) -> None:
        """A request is aborted while it runs, in some runs."""
        ready = sorted(self.calls.row_of)
        request = ready[drawn % len(ready)]
        left_out = self.excludes(Exclusion.ABORT) or not self.may_abort(request)
        if drawn % 3 == 0 and not left_out and (request in self.answering or self.offers("abort_chunked")):
            self.settle(request)
            self.do("abort", request=request)

    @rule(drawn=picks)
    @some("waiting")
    def cancel(self, drawn: int) -> None:
        """A request that waits is aborted, in some runs."""
        request = self.waiting[drawn % len(self.waiting)]
        if drawn % 2 and not (self.excludes(Exclusion.CANCEL) and self.calls.requests[request].session):
            self.do("cancel", request=request)

    @rule(drawn=picks, session=st.integers(1, SESSIONS))
    @precondition(started)
    def close(self, drawn: int, session: int) -> None:
        """A session ends between two turns, or while a turn waits, in some runs."""
        turns = set(self.calls.turns(session))
        waits = turns and (self.excludes(Exclusion.CLOSE_WAITING) or not self.offers("close_waiting"))
        if drawn % 3 == 0 and self.calls.texts.get(session) and not waits and not turns & set(self.calls.row_of):
            self.do("close", session=session)

    # The tree, groups, bad input.

    @rule(full=st.integers(0, 3), swa=few, drawn=picks)
    @precondition(lambda self: started(self) and self.run.tree.grown())
    def evict(self, full: int, swa: int, drawn: int) -> None:
        """Another user of the memory makes the tree evict, in some runs."""
        if drawn % 3 == 0:
            self.do("evict", full=full * self.calls.page_size, swa=swa * self.calls.page_size)

    def end_rule(self) -> None:
        """A free group is open only while results are processed: no batch is made then."""
        if self.run.rows.pools.group:
            self.do("end_group")

    @rule(batch=st.lists(picks, max_size=2))
    @some("answering")
    def results(self, batch: list[int]) -> None:
        """An engine processes the results of a batch: requests that end in it free their pages together. Before that,
        the window of a request moves in some runs, as where an engine frees SWA slots in a group, too.
        """
        if self.excludes(Exclusion.GROUP) or not self.offers("begin_group") or not self.offers("end_group"):
            return
        moves = len(batch) < 2
        for _ in range(8 * moves):
            self.step_first(slide=False)
        self.do("begin_group")
        if moves:
            self.step_first(slide=True)
        for drawn in batch:
            ready = self.answering
            if ready:
                request = ready[drawn % len(ready)]
                self.settle(request)
                self.do("finish", request=request)
        self.do("end_group")

    def step_first(self, slide: bool) -> None:
        """One decode step of the first request that can go on, if it fits.

        ``slide``: its window moves, and a free group is open. No engine evicts from its tree there, so that a page more
        must fit: engines ask for a page for each request that decodes.
        """
        first, more = self.decoding[:1], 1 + slide * self.calls.page_size
        if first and self.calls.fits([(n, n + more) for n in map(self.calls.computed, first)]):
            self.do("decode", requests=first, slide=slide)

    @rule(kind=st.sampled_from(BAD), drawn=picks)
    @precondition(lambda self: started(self) and "bad" not in self.run.lacks)
    def bad(self, kind: str, drawn: int) -> None:
        """Bad input, in some runs, for engines that promise to answer it."""
        if drawn == 7:
            self.do("bad", kind=kind)

    # Clients that do not wait.

    @rule(drawn=picks, more=st.integers(1, 3))
    @some("busy")
    def overlapping_turn(self, drawn: int, more: int) -> None:
        """A client does not wait for its answer before it sends the next turn, in some runs."""
        left_out = self.excludes(Exclusion.OVERLAPPING_TURN)
        if drawn % 3 == 0 and self.free and not left_out and self.offers("overlapping_turn"):
            session = self.busy[drawn % len(self.busy)]
            self.do("overlapping_turn", request=self.free[0], session=session, more=more)

    @rule(drawn=picks, session=st.integers(1, SESSIONS))
    @precondition(started)
    def unsupported_turn(self, drawn: int, session: int) -> None:
        """A client sends a request that its session does not serve, in some runs."""
        overlaps = self.excludes(Exclusion.OVERLAPPING_TURN) and self.calls.turns(session)
        left_out = self.excludes(Exclusion.UNSUPPORTED_TURN) or overlaps or session > self.run.config["sessions"]
        if drawn == 5 and self.free and not left_out and self.offers("overlapping_turn"):
            self.do("overlapping_turn", request=self.free[0], session=session, unsupported=True)

    @rule(drawn=picks)
    @some("rejected")
    def reject(self, drawn: int) -> None:
        """The engine aborts what it runs in the place of a request that it turned away."""
        self.do("abort", request=self.rejected[drawn % len(self.rejected)])

    @rule(drawn=picks, session=st.integers(1, SESSIONS))
    @precondition(lambda self: started(self) and bool(self.calls.row_of))
    def close_running(self, drawn: int, session: int) -> None:
        """A client closes its session while a turn runs, in some runs."""
        runs = set(self.calls.turns(session)) & set(self.calls.row_of)
        if drawn % 4 == 0 and runs and not self.excludes(Exclusion.CLOSE_RUNNING) and self.offers("close_running"):
            self.do("close", session=session)

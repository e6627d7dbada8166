"""Rows and session slots in lock-step: what a scheduler does with requests, and what an engine makes of it.

Operations name requests, sessions and numbers of tokens. What the engine chooses (the prefix, the pages, how far the
window moves, what its tree takes) is read off it and asked of the law; what the law does not allow is a finding.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from conformance.asked import Asked
from conformance.machine import Finding, Misuse
from conformance.row_run import RowRun
from conformance.row_seen import lengths_of
from spec.lengths import in_pages
from spec.rows import IDLE

QUIESCENT = "quiescent"
QUIET = "With no request, no session and an evicted tree, every pool is full and every row is idle."


class SessionTrimRun(RowRun):
    """The operations on requests and sessions."""

    # A request arrives.

    def op_look(self, request: int, more: int = 0, session: int = 0, fork: int = 0) -> None:
        """A request looks for its prefix and is not admitted."""
        self.must_offer("look")
        asked = self.arrive(request, more, session, fork)
        prefix = self.ask("look", lambda: self.subject.look(request, asked.session, list(asked.tokens)))
        self.read()
        self._looked(asked, prefix)

    def op_admit(self, request: int, more: int = 0, session: int = 0, fork: int = 0, chunk: int = 0) -> None:
        """A request is admitted, and its first ``chunk`` pages are computed (0: all of its input)."""
        asked = self.arrive(request, more, session, fork)
        most = chunk * self.page_size or len(asked.tokens)
        call = (request, asked.session, list(asked.tokens), most)
        answer = self.ask("admit", lambda: self.subject.admit(*call))
        self.read()
        self._looked(asked, answer.prefix)
        upto = min(answer.prefix + most, len(asked.tokens))
        if not answer.granted:
            self.judge_refusal("admit", self.room_for(request, answer.prefix, upto))
            return
        self._begin(request, asked, answer.prefix)
        self._prefilled(request, upto)

    def _looked(self, asked: Asked, prefix: int) -> None:
        if asked.session and self.life.slot(asked.session):
            self.must("restore", asked.session, in_pages(prefix, self.page_size))

    def _begin(self, request: int, asked: Asked, prefix: int) -> None:
        if asked.session and self.life.slot(asked.session):
            row = self.life.slot(asked.session) - 1
            self.resume_row(request, row, asked)
        else:
            row = next(r for r in range(self.limit) if self.life.phase(r) == IDLE)
            if prefix % self.page_size:
                raise Finding("admit", self.sentence("admit"), f"it goes on at {prefix} tokens of the tree's")
            self.begin_row(request, row, asked, prefix // self.page_size)
            label = self.view(request).row
            self.label = {**{r: known for r, known in self.label.items() if known != label}, row: label}
        self.row_of[request] = row

    # It grows.

    def op_chunk(self, request: int, chunk: int = 0) -> None:
        """The next ``chunk`` pages of a prompt are computed (0: the rest)."""
        asked, row = self.running(request), self.row_of[request]
        if not self.prefilling(request):
            raise Misuse("the prompt is computed")
        most, now = chunk * self.page_size or len(asked.tokens), self.tokens(row)
        upto = min(now + most, len(asked.tokens))
        granted = self.ask("chunk", lambda: self.subject.chunk(request, most))
        self.read()
        if not granted:
            self.judge_refusal("extend", self.fits([(now, upto)]))
            return
        self._prefilled(request, upto)

    def _prefilled(self, request: int, upto: int) -> None:
        """The row has its slots; then the prompt goes to the tree, as far as the engine does that."""
        self.grow("extend", request, upto)
        self.compare("extend")
        self.forward(request)
        asked, row = self.asked[request], self.row_of[request]
        sampled = None if self.prefilling(request) else asked.next()[0]
        self.ask("cache", lambda: self.subject.cache(request, sampled))
        asked.sampled += [] if sampled is None else [sampled]
        self.pass_on(request, row)
        self.read()

    def op_decode(self, requests: list[int], slide: bool = False) -> None:
        """One step of a batch; before it the windows may move."""
        if not all(self.decoding(r) for r in requests):
            raise Misuse("a request decodes when nothing is allocated beyond what is computed")
        growth = [(n, n + 1) for n in (self.tokens(self.row_of[r]) for r in requests)]
        self._slide(requests if slide and self.fits(growth) else [])
        sampled = [self.asked[r].next()[0] for r in requests]
        granted = self.ask("decode", lambda: self.subject.decode(list(requests), list(sampled)))
        self.read()
        if not granted:
            self.judge_refusal("decode", self.fits(growth))
            return
        for request, one in zip(requests, sampled, strict=True):
            self.grow("decode", request, self.tokens(self.row_of[request]) + 1)
            self.asked[request].sampled.append(one)

    def op_reserve(self, request: int, more: int, slide: bool = False) -> None:
        """Slots for draft tokens; before it the window may move."""
        self.must_offer("reserve")
        self.running(request)
        if self.prefilling(request) or more < 1:
            raise Misuse("a draft has a token, and follows a prompt")
        now = self.tokens(self.row_of[request])
        self._slide([request] if slide and self.fits([(now, now + more)]) else [])
        granted = self.ask("reserve", lambda: self.subject.reserve(request, more))
        self.read()
        if not granted:
            self.judge_refusal("reserve", self.fits([(now, now + more)]))
            return
        self.grow("reserve", request, now + more)

    def op_commit(self, request: int, count: int) -> None:
        """So many draft tokens are accepted."""
        asked, row = self.running(request), self.row_of[request]
        if count < 1:
            raise Misuse("a verified draft has one token at least")
        to = self.computed(request) + count
        accepted = asked.next(count)
        self.step("commit", row, in_pages(to, self.page_size))
        self.ask("commit", lambda: self.subject.commit(request, list(accepted)))
        asked.sampled += accepted
        self.read()

    def _slide(self, requests: Sequence[int]) -> None:
        for request in requests:
            self.ask("slide", partial(self.subject.slide, request))
            self.read()
            row, at = self.row_of[request], self.view(request).lengths.cursor
            law_now = lengths_of(self.life, row)
            if at > max(law_now.cursor, law_now.protected):
                self.must("slide", row, at // self.page_size)
            self.compare("slide")

    # It leaves.

    def op_finish(self, request: int, sent: int | None = None) -> None:
        """A request ends; ``sent`` tokens of its answer reached the caller (``None``: all)."""
        asked = self.running(request)
        out = len(asked.sampled) if sent is None else sent
        if self.prefilling(request) or not 0 <= out <= len(asked.sampled):
            raise Misuse("a request ends with an answer, of which so much was sent")
        self.ask("finish", lambda: self.subject.finish(request, out))
        self._left(request, asked.tokens + asked.sampled[:out])

    def op_abort(self, request: int) -> None:
        """A request is aborted while it runs."""
        asked = self.running(request)
        if self.prefilling(request):
            self.must_offer("abort_chunked")
        self.ask("abort", lambda: self.subject.abort(request))
        self._left(request, asked.tokens + asked.sampled)

    def may_abort(self, request: int) -> bool:
        """The engine is not known to break what the request has when it is aborted."""
        turn = bool(self.asked[request].session)
        return not (turn and "retract_abort" in self.avoid and request in self.retracted)

    def op_retract(self, request: int, sent: int | None = None) -> None:
        """A request gives its row up and waits, with ``sent`` tokens of its answer (``None``: all) in its input."""
        self.must_offer("retract")
        asked = self.running(request)
        out = len(asked.sampled) if sent is None else sent
        if self.prefilling(request) or not len(asked.sampled) - 1 <= out <= len(asked.sampled):
            raise Misuse("a request that decodes is retracted, with all of its answer but the last token at most")
        again = Asked(asked.session, asked.tokens + asked.sampled[:out], asked.fork)
        self._may_ask(again)
        self.ask("retract", lambda: self.subject.retract(request, out))
        self._left(request, again.tokens)
        self.asked[request] = again

    def _left(self, request: int, text: list[int]) -> None:
        """The engine has kept the row in the session's slot, or has given it back."""
        row, asked = self.row_of.pop(request), self.asked.pop(request)
        session, seen = asked.session, self.look()
        if session in seen.sessions and seen.sessions[session].row not in seen.free_rows:
            self.save_row(row, session, text)
            self.texts[session] = text
        else:
            self.give_row_up(row, asked.tokens + asked.sampled)
        self.read()

    def op_cancel(self, request: int) -> None:
        """A request that waits is aborted."""
        if request not in self.asked or request in self.row_of:
            raise Misuse("the request does not wait")
        self.ask("cancel", lambda: self.subject.cancel(request))
        del self.asked[request]
        self.read()

    def op_close(self, session: int) -> None:
        """A session ends between turns, unless the engine puts it off."""
        turns = [r for r, asked in self.asked.items() if asked.session == session]
        if any(r in self.row_of for r in turns) or not self.life.sessions.has(session):
            raise Misuse("a session ends between turns")
        if turns:
            self.must_offer("close_waiting")
        closed = self.ask("close", lambda: self.subject.close(session))
        self.read()
        if closed:
            self.closed(session)

    def closed(self, session: int) -> None:
        """A session has ended, and its slot, if it had one, is empty."""
        if self.life.slot(session):
            self.close_slot(session)
        self.texts.pop(session, None)

    # The rest.

    def op_begin(self) -> None:
        """A free group opens, while an engine goes through the results of a batch."""
        self.step("free_group_begin")
        self.ask("free_group_begin", self.subject.begin)

    def op_close_group(self) -> None:
        """The free group ends."""
        self.step("free_group_end")
        self.ask("free_group_end", self.subject.end)

    def op_evict(self, full: int = 0, swa: int = 0) -> None:
        """The tree is asked for so many tokens of either side; it chooses them."""
        self.ask("evict", lambda: self.subject.evict(full, swa))
        self.counts["evict", "done"] += 1

    def op_end(self) -> None:
        """Everything ends: requests, sessions, and what the tree keeps. Then all must be as at the start."""
        if self.life.pools.group:
            self.then("close_group")
        for request in sorted(self.asked):
            waits = request not in self.row_of
            if waits or self.prefilling(request):
                self.then("cancel" if waits else "abort", request=request)
            else:
                self.then("finish", request=request)
        for session in self.life.sessions.items():
            self.then("close", session=session)
        self.then("evict", full=self.config["size"] * self.page_size, swa=self.config["size_swa"] * self.page_size)
        self._is_quiet()

    def then(self, op: str, **arguments: Any) -> None:
        """One step of the end, compared as any other."""
        getattr(self, "op_" + op)(**arguments)
        self.compare(op)

    def _is_quiet(self) -> None:
        seen = self.read()
        sides = (("full", seen.full, self.config["size"]), ("SWA", seen.swa, self.config["size_swa"]))
        found = [
            f"{size - len({*lists.free, *lists.released})} {name} pages are leaked"
            for name, lists, size in sides
            if len({*lists.free, *lists.released}) != size
        ]
        found += [f"the tree keeps pages {sorted(seen.tree)}"] if seen.tree else []
        found += [f"{self.limit - len(seen.free_rows)} rows are taken"] if len(seen.free_rows) != self.limit else []
        if found:
            raise Finding(QUIESCENT, QUIET, "; ".join(found))

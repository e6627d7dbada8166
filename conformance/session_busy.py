"""What clients send while a session is busy, and the end of a run: the engine decides what becomes of it.

A second request of a session, and a close under a turn: an engine takes them, turns them away or puts them off. What
it takes must keep the law as any other call.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from conformance.asked import Asked
from conformance.machine import ENOUGH, Finding, Json, Misuse
from conformance.session_trim import SessionTrimRun

SECOND = 900  # the first token of a second request
# What runs look past by these names: an allocator that says no early, and entries of freed slots that stay.
LATENT_KNOWN = {ENOUGH: "short", "free_maps_to_nothing": "stale"}
# What comes of those entries when a page is handed out again: no step of a caller can be left out to prevent it.
KNOWN = {"mapping_is_live": "inherited"}
CLIENTS = ("second", "close_running")  # what engines alone offer that have a front door of their own


class SessionRun(SessionTrimRun):
    """Requests and sessions, and clients that do not wait."""

    def __init__(self, subject: Any, config: Json, strict: bool = True, avoid: Iterable[str] = ()) -> None:
        super().__init__(subject, config, strict, avoid)
        # Requests in whose place the engine runs one token, and then aborts it, and the sessions that they named.
        self.turned_away: dict[int, int] = {}

    def offers(self, name: str) -> bool:
        """The engine has the operation."""
        return hasattr(self.subject, "second") if name in CLIENTS else super().offers(name)

    def report(self, finding: Finding) -> None:
        """A finding that is known is looked past where it occurs, if no caller can do anything about it."""
        known = {**KNOWN, **LATENT_KNOWN} if finding.latent else KNOWN
        if known.get(finding.law) not in self.avoid:
            super().report(finding)

    def op_second(self, request: int, session: int, more: int = 1, wrong: bool = False) -> None:
        """A request of a session arrives while another one of it runs or waits, or one that sessions do not serve."""
        self.must_offer("second")
        if request in self.asked or not (wrong or self.turns(session)):
            raise Misuse("a second request comes while another one of its session is there")
        subject: Any = self.subject
        new = [SECOND + n for n in range(more)]
        kind, text = self.ask("second", lambda: subject.second(request, session, new, wrong))
        if kind == "stub":
            self.turned_away[request] = session
        self.asked[request] = Asked(session if kind == "turn" else 0, text, 0)
        self.read()

    def turns(self, session: int) -> list[int]:
        """The requests of a session, those that wait too."""
        return [request for request, asked in self.asked.items() if asked.session == session]

    def _begin(self, request: int, asked: Asked, prefix: int) -> None:
        assert self.seen is not None, "an admission reads before it looks"
        if asked.session in self.seen.sessions:
            law = self.stem.invariants["one_row_a_session"]
            row, other = self.view(request).row, self.seen.sessions[asked.session].row
            raise Finding(law.name, law.sentence, f"request {request} got row {row}, the slot has row {other}")
        super()._begin(request, asked, prefix)

    def op_close(self, session: int) -> None:
        """A session ends, unless the engine puts that off because of a turn."""
        turns = self.turns(session)
        if turns:
            self.must_offer("close_running" if set(turns) & set(self.row_of) else "close_waiting")
        if not self.life.sessions.has(session):
            raise Misuse(f"there is no session {session}")
        closed = self.ask("close", lambda: self.subject.close(session))
        self.read()
        if not closed and not turns:
            raise Finding("close", self.sentence("close"), "it is put off, though no turn of the session runs or waits")
        if closed:
            self.closed(session)

    def op_retract(self, request: int, sent: int | None = None) -> None:
        """A request gives its row up and waits."""
        super().op_retract(request, sent)
        self.retracted.add(request)

    def _left(self, request: int, text: list[int]) -> None:
        self.turned_away.pop(request, None)
        self.retracted.discard(request)
        super()._left(request, text)

    # The end, looking past what is known.

    def op_end(self) -> None:
        """Everything ends: requests, sessions, and what the tree keeps. Then all must be as at the start."""
        if self.life.pools.group:
            self.then("close_group")
        if not all(self._let_go(request) for request in self._deepest_first()):
            return
        self._make_room()
        if all(self._dismiss(request) for request in self._turns_first()):
            self._make_room()
            self._is_quiet()

    def _deepest_first(self) -> list[int]:
        """The requests that run, those first that have most of the tree: others may read what they have."""
        return sorted(self.row_of, key=lambda request: (-self.life.protected(self.row_of[request]), request))

    def _turns_first(self) -> list[int]:
        """The requests that wait, those first for which a slot waits that holds something."""
        return sorted(self.asked, key=lambda request: (not self.life.slot(self.asked[request].session), request))

    def _let_go(self, request: int) -> bool:
        """A request that runs ends. An engine that aborts between chunks does that, another computes the prompt first;
        false: it could not.
        """
        before = -1
        while self.prefilling(request) and not (self.offers("abort_chunked") and self.may_abort(request)):
            if before == self.computed(request):
                return False
            before = self.computed(request)
            self.then("chunk", request=request)
        if self.prefilling(request) or request in self.turned_away:
            self.then("abort", request=request)
            return True
        self._settle(request)
        self.then("finish", request=request, sent=len(self.asked[request].sampled))
        return True

    def _settle(self, request: int) -> None:
        """The draft of a turn becomes part of its answer, where a tail is known to stay."""
        ahead = self.tokens(self.row_of[request]) - self.computed(request)
        if "tail" in self.avoid and self.asked[request].session and ahead:
            self.then("commit", request=request, count=ahead)

    def _dismiss(self, request: int) -> bool:
        """A request that waits is aborted, or has its turn where an engine is known to forget the abort of a turn."""
        if not self.asked[request].session or "cancel" not in self.avoid:
            self.then("cancel", request=request)
            return True
        self.then("admit", request=request)
        left = request in self.row_of and self._let_go(request)
        self._make_room()
        return left

    def _make_room(self) -> None:
        """Sessions without a turn end, and the tree gives everything back."""
        for session in self.life.sessions.items():
            if not self.turns(session):
                self.then("close", session=session)
        size, size_swa = (self.config[name] * self.page_size for name in ("size", "size_swa"))
        self.then("evict", full=size, swa=size_swa)

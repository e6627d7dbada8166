"""The rules of requests and sessions, and of clients that do not wait."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from conformance.machine import Json
from conformance.session_busy import SessionRun
from conformance.session_rules import REQUESTS, SESSIONS, SessionTrimRuns, picks, some


class SessionRuns(SessionTrimRuns):
    """What is known to be broken in an engine is looked past by the name of what a rule would send."""

    run: SessionRun

    @property
    def answering(self) -> list[int]:
        """The requests that have a first token of their answer."""
        return [request for request in super().answering if request not in self.run.turned_away]

    @property
    def rejected(self) -> list[int]:
        """The requests that run in the place of those that were turned away."""
        return [request for request in self.run.row_of if request in self.run.turned_away]

    @property
    def busy(self) -> list[int]:
        """The sessions with a turn."""
        return sorted({asked.session for asked in self.run.asked.values()} - {0})

    def new(self, more: int, session: int, fork: int) -> Json | None:
        """As ever; without its session, where the abort of one that was turned away is known to end a turn's mark."""
        marked = self.avoids("second") and session in self.run.turned_away.values()
        return super().new(more, 0 if marked else session, fork)

    @rule(drawn=picks, more=st.integers(1, 3))
    @some("busy")
    def second(self, drawn: int, more: int) -> None:
        """A client does not wait for its answer, now and then."""
        free = [request for request in range(REQUESTS) if request not in self.run.asked]
        if drawn % 3 == 0 and free and not self.avoids("second") and self.offered("second"):
            self.do("second", request=free[0], session=self.busy[drawn % len(self.busy)], more=more)

    @rule(drawn=picks, session=st.integers(1, SESSIONS))
    @precondition(lambda self: self.run is not None)
    def wrong(self, drawn: int, session: int) -> None:
        """A client asks what its session does not serve, now and then."""
        free = [request for request in range(REQUESTS) if request not in self.run.asked]
        known = self.avoids("wrong") or (self.avoids("second") and self.run.turns(session))
        if drawn == 5 and free and not known and self.offered("second"):
            self.do("second", request=free[0], session=session, wrong=True)

    @rule(drawn=picks)
    @some("rejected")
    def reject(self, drawn: int) -> None:
        """The engine aborts what it runs in the place of a request that it turned away."""
        self.do("abort", request=self.rejected[drawn % len(self.rejected)])

    @rule(drawn=picks, session=st.integers(1, SESSIONS))
    @precondition(lambda self: self.run is not None and bool(self.run.row_of))
    def close_busy(self, drawn: int, session: int) -> None:
        """A client closes its session under a turn, now and then."""
        runs = set(self.run.turns(session)) & set(self.run.row_of)
        if drawn % 4 == 0 and runs and not self.avoids("close_running") and self.offered("close_running"):
            self.do("close", session=session)

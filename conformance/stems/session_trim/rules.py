"""The machine that draws runs of ``session_trim``: the rules of ``conformance.stems.requests.rules``."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import initialize

from conformance.driver.protocol import Json
from conformance.stems.requests.rules import CONFIG, RequestRules, chunks, lengths, sessions


class SessionTrimMachine(RequestRules):
    """Requests and sessions over request rows."""

    @initialize(config=st.fixed_dictionaries(CONFIG), more=lengths, session=sessions, chunk=chunks)
    def start(self, config: Json, more: int, session: int, chunk: int) -> None:
        """Makes an engine of a drawn size and the law, and sends the first request."""
        if any(map(self.set_up, self.variants(config))):
            self.arrive_now(more, session, 0, chunk)

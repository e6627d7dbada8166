"""A run of ``server`` that is played from a recording: the server has acted already, and is judged."""

from __future__ import annotations

from conformance.driver.lockstep import INVARIANT, Calls, EngineCall, Finding
from conformance.driver.operations import operation
from conformance.driver.protocol import Json
from conformance.stems.server.protocol import ServerEvent
from conformance.stems.server.recorded.player import PlayedServer
from conformance.stems.server.recorded.texts import RecordedTexts
from conformance.stems.server.run import Midway, ServerRun
from conformance.stems.server.served import GOES_ON, GOES_ON_SENTENCE
from spec.cache_state import CacheState
from spec.finite import Domain
from spec.logic import but


class RecordedServerRun(ServerRun):
    """The events of a recording. ``engine`` plays them. ``config``: the shape of the server, with ``nodes``, as many as
    its tree has at most, and ``longest``, as many pages as a row or a path has at most.
    """

    engine: PlayedServer

    def __init__(self, engine: PlayedServer, config: Json, texts: RecordedTexts) -> None:
        super().__init__(engine, config, sampled=texts.token)  # type: ignore[arg-type]
        self.law.state = _with_indices(self.law.state, config["longest"])

    @operation
    def play(self) -> Calls:
        """All events."""
        midway = Midway()
        while self.engine.played < len(self.engine.events):
            event: ServerEvent = yield EngineCall("go_on", self.engine.go_on, unjudged=midway.now)
            self.shadow.step, self.law.operation = self.engine.played, self.engine.last.function
            self._takes(event)
            midway.after(event.kind)

    def _arrived(self, event: ServerEvent) -> None:
        self.forks.update((request, request) for request in event.requests)
        super()._arrived(event)

    def _raised(self, _: ServerEvent) -> None:
        """A call has raised an exception. If it was the last that the server did, that has ended it."""
        if self.engine.played == len(self.engine.events):
            raise Finding(GOES_ON, GOES_ON_SENTENCE, self.engine.last.function, kind=INVARIANT)

    def _strayed(self, _: ServerEvent) -> None:
        """Pools or rows were changed by a call that nothing explains: what it changed is a difference."""


def _with_indices(st: CacheState, pages: int) -> CacheState:
    """The law's first state, where no row or path has more than so many pages. Without that a law of each page of each
    node looks at as many places as the pool has pages.
    """
    pair, indices = st.rows.pools.now, Domain(0, pages)
    sides = {"full": but(pair.full, indices=indices), "swa": but(pair.swa, indices=indices)}
    return but(st, rows=but(st.rows, pools=but(st.rows.pools, now=but(pair, **sides))))

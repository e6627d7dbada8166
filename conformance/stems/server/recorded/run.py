"""A run of ``server`` that is played from a recording: the server has acted already, and is judged."""

from __future__ import annotations

from conformance.driver.lockstep import Calls, EngineCall
from conformance.driver.operations import operation
from conformance.driver.protocol import Json
from conformance.stems.server.protocol import ServerEvent
from conformance.stems.server.recorded.player import PlayedServer
from conformance.stems.server.recorded.texts import RecordedTexts
from conformance.stems.server.run import Midway, ServerRun


class RecordedServerRun(ServerRun):
    """The events of a recording. ``engine`` plays them."""

    engine: PlayedServer

    def __init__(self, engine: PlayedServer, config: Json, texts: RecordedTexts) -> None:
        super().__init__(engine, config, sampled=texts.token)  # type: ignore[arg-type]

    @operation
    def play(self) -> Calls:
        """All events."""
        midway = Midway()
        while self.engine.played < len(self.engine.events):
            event: ServerEvent = yield EngineCall("go_on", self.engine.go_on, unjudged=midway.now)
            self.shadow.step = self.engine.played
            self._takes(event)
            midway.after(event.kind)

    def _arrived(self, event: ServerEvent) -> None:
        self.forks.update((request, request) for request in event.requests)
        super()._arrived(event)

    def _strayed(self, _: ServerEvent) -> None:
        """Pools or rows were changed by a call that nothing explains: what it changed is a difference."""

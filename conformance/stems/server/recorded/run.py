"""A run of ``server`` that is played from a recording: the server has acted already, and is judged."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from conformance.driver.lockstep import Calls, EngineCall, Finding
from conformance.driver.protocol import Json
from conformance.recording.server_records import ARRIVED, RAISED, STANDS, STRAYED
from conformance.stems.server.protocol import ServerEvent
from conformance.stems.server.recorded.player import PlayedServer
from conformance.stems.server.recorded.sizes import sized
from conformance.stems.server.recorded.texts import RecordedTexts
from conformance.stems.server.run import Midway, ServerRun
from conformance.stems.server.served import GOES_ON, GOES_ON_SENTENCE

PLAY = "play"  # the only operation of such a run: all events


def recorded_run(engine: PlayedServer, config: Json, texts: RecordedTexts) -> ServerRun:
    """The run over the events that ``engine`` plays. ``config``: the shape of the server, with ``nodes``, as many as
    its tree has at most, and ``longest``, as many pages as a row or a path has at most.
    """
    # Why a request was retracted, and how much of a text may be found, is not recorded.
    run = ServerRun(engine, config, sampled=texts.token, wastes=False)  # type: ignore[arg-type]
    run.law.state = sized(run.law.state, config["nodes"], config["longest"])
    run.law.names = replace(run.law.names, node=partial(_node_name, run, texts))
    run.operations = {PLAY: partial(_play, run, engine)}
    return run


def _node_name(run: ServerRun, texts: RecordedTexts, number: int) -> str:
    """The law's node of this number, in words."""
    key = next((key for key, known in run.cache.tree.at.items() if known == number), None)
    return texts.name(key) if key is not None else f"node {number}" if number else "the root"


def _play(run: ServerRun, engine: PlayedServer) -> Calls:
    """All events, one after the other."""
    midway = Midway()
    while engine.coming:
        event: ServerEvent = yield EngineCall("go_on", engine.go_on, unjudged=midway.now)
        run.shadow.step, run.law.operation = engine.calls, engine.last.function
        if event.kind == ARRIVED:
            run.forks.update((request, request) for request in event.requests)  # a text of its own for each
        if event.kind == RAISED:
            _may_go_on(engine)
        elif event.kind not in (STRAYED, STANDS):  # what a call has changed that nothing explains is a difference
            run.takes(event)
        midway.after(event.kind)


def _may_go_on(engine: PlayedServer) -> None:
    """A call has raised an exception. Raises ``Finding`` if it was the last that the server did: that has ended it."""
    if not engine.coming:
        raise Finding(GOES_ON, GOES_ON_SENTENCE, engine.last.function)  # of the kind of a drawn run's finding

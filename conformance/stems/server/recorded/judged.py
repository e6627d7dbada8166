"""Judges the recording of a whole server from its first event to the first that breaks a law."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from conformance.driver.lockstep import Finding, LockStep
from conformance.recording.segments import NotARecording, records
from conformance.recording.server_records import DIGEST_BYTES, STANDS, RecordedEvent, ServerStart, unpacked_server
from conformance.stems.server.recorded.player import FLUSHED, PlayedServer
from conformance.stems.server.recorded.run import PLAY, recorded_run
from conformance.stems.server.recorded.standing import UnclearStart, judge_standing, stand
from conformance.stems.server.recorded.texts import RecordedTexts
from conformance.stems.server.run import Midway


@dataclass(frozen=True)
class JudgedServer:
    """What is said of a recording.

    ``start``: its first record. ``calls``: how many events were judged, the first wrong one among them. ``at``: the
    time of the last of them. ``broken``: what the first wrong one broke, ``None`` if nothing is broken. ``function``,
    ``requests``: the engine's function that was called then, and its requests, each by its number and the engine's name
    of it. ``by_function``: how many events of each function were judged. ``starts``: how often the recording tells all
    that the server shows. ``unjudged``: events at the end, in the middle of which the recording ends.
    """

    start: ServerStart
    calls: int
    at: int
    broken: Finding | None = None
    function: str = ""
    requests: list[str] = field(default_factory=list)
    by_function: Counter[str] = field(default_factory=Counter)
    starts: int = 1
    unjudged: int = 0


def judged_server(path: Path, often: int = 0) -> JudgedServer:
    """Judges the recording ``path``. ``often``: all laws are evaluated after one of so many events, 0 for never; else
    they are where the recording shows something else than the law has.

    Raises ``NotARecording`` if the file is none, or nothing in it can be judged; ``OSError`` if it cannot be read.
    """
    told = [unpacked_server(one) for one in records(path)]
    unclear = f"{path}: there is no record in it from which a reader can begin"
    for at, start in enumerate(told):
        if not isinstance(start, ServerStart):
            continue
        if start.standing is None:
            raise NotARecording(f"{path}: the recorded server has what no recording says: {', '.join(start.unknown)}")
        events = [one.standing if isinstance(one, ServerStart) else one for one in told[at + 1 :]]
        try:
            return _judged(start, start.standing, [event for event in events if event is not None], often)
        except UnclearStart as error:
            unclear = f"{path}: {error}"
    raise NotARecording(unclear)


def _judged(start: ServerStart, first: RecordedEvent, events: Sequence[RecordedEvent], often: int) -> JudgedServer:
    """``first``: what the server shows before ``events``."""
    whole = events[: _last_whole(events)]
    texts = _texts([first, *events])
    config = {**start.config, **_sizes(start, [first, *whole])}
    engine = PlayedServer(first, start.overlaps, config, texts)
    engine.events = whole
    run, broken = recorded_run(engine, config, texts), None
    try:
        stand(run, engine, first, texts)
        judge_standing(run)
        LockStep(run, config, often).do(PLAY)
    except Finding as found:
        broken = found
    seen = events[: engine.played]
    last = seen[-1] if seen else None
    names = dict(pair for event in (first, *seen) for pair in event.names)
    whom = [f"{one.request} ({names.get(one.request, 'no name')})" for one in last.requests] if last else []
    wrong = (last.function, whom) if last is not None and broken is not None else ("", [])
    calls = [event for event in seen if event.kind != STANDS]
    counts = Counter(event.function for event in calls)
    at = last.at if last is not None else start.at
    starts = 1 + len(seen) - len(calls)
    return JudgedServer(start, len(calls), at, broken, *wrong, counts, starts, len(events) - len(whole))


def _sizes(start: ServerStart, events: Sequence[RecordedEvent]) -> dict[str, int]:
    """How many nodes the tree has at most, and how many pages a row or a path has at most: never more than the pool has
    pages. In the law a split has both nodes for a moment.
    """
    page, pages = int(start.config["page_size"]), int(start.config["size"])
    here: dict[int, int] = {}  # by node, how many tokens the path to its end has
    nodes = longest = 0
    for event in events:
        if event.kind in (FLUSHED, STANDS):
            here.clear()
        if (change := event.change) is None:
            continue
        for row in change.rows:
            longest = max(longest, row.allocated)
        for left in change.gone:
            here.pop(left, None)
        for node in change.nodes:
            own = len(node.digests) // DIGEST_BYTES if node.digests is not None else 0
            here[node.node] = here.get(node.parent, 0) + own if own else here.get(node.node, 0)
            longest = max(longest, here[node.node])
        nodes = max(nodes, len(here))
    return {"nodes": min(pages, 2 * nodes + 1), "longest": min(pages, -(-longest // page) + 1)}


def _texts(events: Sequence[RecordedEvent]) -> RecordedTexts:
    """What all events tell of texts: a pass is explained with the token that it samples, which is told later."""
    texts = RecordedTexts()
    for event in events:
        texts.learns(event.texts)
        for one in event.passes:
            texts.computes(one)
    return texts


def _last_whole(events: Sequence[RecordedEvent]) -> int:
    """How many events there are up to the last after which the server was not in the middle of something."""
    midway, found = Midway(), 0
    for number, event in enumerate(events, start=1):
        if not midway.after(event.kind):
            found = number
    return found

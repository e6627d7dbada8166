"""Judges the recording of a whole server from its first event to the first that breaks a law."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from conformance.driver.lockstep import Finding, LockStep
from conformance.recording.segments import GrowingRecording, NotARecording, records
from conformance.recording.server_records import RAISED, STANDS, RecordedEvent, ServerStart, unpacked_server
from conformance.stems.server.recorded.player import PlayedServer
from conformance.stems.server.recorded.run import PLAY, recorded_run
from conformance.stems.server.recorded.sizes import RecordedSizes, sized
from conformance.stems.server.recorded.standing import UnclearStart, judge_standing, stand
from conformance.stems.server.recorded.texts import RecordedTexts
from conformance.stems.server.recorded.untold import UntoldTokens
from conformance.stems.server.run import Midway, ServerRun

SILENCE_S = 10.0  # after an exception, a server that has told nothing for so long has ended


@dataclass(frozen=True)
class JudgedServer:
    """What is said of a recording.

    ``start``: the record with which the judge began. ``calls``: how many events were judged, the first wrong one among
    them. ``at``: the time of the last of them. ``broken``: what the first wrong one broke, ``None`` if nothing is
    broken. ``function``, ``requests``: the engine's function that was called then, and its requests, each by its number
    and the engine's name of it. ``by_function``: how many events of each function were judged. ``starts``: how often
    the recording tells all that the server shows. ``unjudged``: events at the end that were not judged, since the
    recording ends in the middle of something, or does not tell yet what they sample.
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


@dataclass
class _Begun:
    """A judge that has begun, with the record ``start``."""

    start: ServerStart
    run: ServerRun
    engine: PlayedServer
    lock: LockStep


class ServerJudge:
    """Judges events in their order. ``often``: all laws are evaluated after one of so many events, 0 for never; else
    they are where the recording shows something else than the law has. ``path``: the file that messages
    name. ``broken``: the first finding.
    """

    def __init__(self, path: Path, often: int = 0) -> None:
        self._path, self._often = path, often
        self._told: ServerStart | None = None
        self._texts, self._untold, self._sizes = RecordedTexts(), UntoldTokens(), RecordedSizes()
        self._names: dict[int, str] = {}
        self._midway = Midway()
        self._coming: deque[tuple[RecordedEvent, bool]] = deque()  # and whether the server may be judged after it
        self._taken = 0  # how many events came before these
        self._unclear = "there is no record in it from which a reader can begin"
        self._begun: _Begun | None = None
        self.broken: Finding | None = None

    def takes(self, record: ServerStart | RecordedEvent) -> None:
        """The next record has come. Raises ``NotARecording`` if it is of a server that no recording can describe."""
        if isinstance(record, ServerStart):
            if record.standing is None:
                lacks = ", ".join(record.unknown)
                raise NotARecording(f"{self._path}: the recorded server has what no recording says: {lacks}")
            self._told = self._told or record
            record = record.standing
        self._names |= dict(record.names)
        self._texts.learns(record.texts)
        for one in record.passes:
            self._texts.computes(one)
        self._untold.takes(self._taken + len(self._coming), record, self._texts)
        self._sizes.takes(record)
        self._coming.append((record, not self._midway.after(record.kind)))

    def judge(self, ended: bool) -> bool:
        """Judges what has come. ``ended``: nothing else comes; until then an event waits for the tokens that it
        samples, and an exception for what comes after it. ``False``: a law is broken, and no other event is judged.
        """
        ready = self._ready(ended)
        try:
            if self._begun is None:
                self._begin(ready)
            if self._begun is not None and ready:
                begun = self._begun
                begun.run.law.state = sized(begun.run.law.state, **self._sizes.of(begun.start.config))
                begun.engine.coming.extend(ready)
                begun.lock.do(PLAY)
                begun.lock.trace.steps.clear()  # nobody repeats them
        except Finding as found:
            self.broken = found
        return self.broken is None

    @property
    def ends_with_exception(self) -> bool:
        """The last event that has come is an exception."""
        return bool(self._coming) and self._coming[-1][0].kind == RAISED

    def _ready(self, ended: bool) -> deque[RecordedEvent]:
        """The events that can be judged now, up to one after which the server is not in the middle of something."""
        coming = self._coming
        count = len(coming) if ended else self._untold.before(self._taken + len(coming)) - self._taken
        while count and not self._may_end_with(count, ended):
            count -= 1
        self._taken += count
        return deque(coming.popleft()[0] for _ in range(count))

    def _may_end_with(self, count: int, ended: bool) -> bool:
        """So many events can be judged without the next one: the server is not in the middle of something, and an
        exception is the last that the recording has.
        """
        event, is_whole = self._coming[count - 1]
        return is_whole and (event.kind != RAISED or (ended and count == len(self._coming)))

    def _begin(self, ready: deque[RecordedEvent]) -> None:
        """Begins with the first of these events that says enough, and leaves those after it."""
        while ready and self._begun is None:
            first = ready.popleft()
            if first.kind == STANDS:
                self._stands(first)

    def _stands(self, first: RecordedEvent) -> None:
        assert self._told is not None, "the reader of a file begins with a start"
        start = self._told._replace(at=first.at, standing=first)
        config = {**start.config, **self._sizes.of(start.config)}
        engine = PlayedServer(first, start.overlaps, config, self._texts)
        run = recorded_run(engine, config, self._texts)
        begun = _Begun(start, run, engine, LockStep(run, config, self._often))
        try:
            self._begun = begun
            stand(run, engine, first, self._texts)
            judge_standing(run)
        except UnclearStart as error:
            self._begun, self._unclear = None, str(error)

    def verdict(self) -> JudgedServer | None:
        """What is said so far; ``None``: the judge has not begun."""
        if self._begun is None:
            return None
        start, engine = self._begun.start, self._begun.engine
        last = engine.last if engine.calls or engine.starts > 1 else None
        wrong = last if self.broken is not None else None
        whom = [f"{one.request} ({self._names.get(one.request, 'no name')})" for one in wrong.requests] if wrong else []
        who = ("" if wrong is None else wrong.function, whom)
        at, counts = start.at if last is None else last.at, engine.by_function
        return JudgedServer(start, engine.calls, at, self.broken, *who, counts, engine.starts, len(self._coming))

    def must_have_begun(self) -> JudgedServer:
        """What is said. Raises ``NotARecording`` if there is nothing to judge."""
        if (found := self.verdict()) is None:
            raise NotARecording(f"{self._path}: {self._unclear}")
        return found


def judged_server(path: Path, often: int = 0) -> JudgedServer:
    """Judges the recording ``path``. ``often``: as of ``ServerJudge``.

    Raises ``NotARecording`` if the file is none, or nothing in it can be judged; ``OSError`` if it cannot be read.
    """
    judge = ServerJudge(path, often)
    for record in records(path):
        judge.takes(unpacked_server(record))
    judge.judge(ended=True)
    return judge.must_have_begun()


def watched_server(
    path: Path, waits: Callable[[JudgedServer | None], bool], often: int = 0, silence: float = SILENCE_S
) -> JudgedServer | None:
    """Judges a recording while it is written, see ``conformance.search.recorded.watched_file``. A server that goes on
    after an exception polls again, and tells so: where nothing comes for ``silence`` seconds, the exception has ended
    it.
    """
    judge, tail, heard = ServerJudge(path, often), GrowingRecording(path), time.monotonic()
    while True:
        for record in tail.read():
            judge.takes(unpacked_server(record))
            heard = time.monotonic()
        ended = judge.ends_with_exception and time.monotonic() - heard > silence
        if not judge.judge(ended) or not waits(judge.verdict()):
            return judge.verdict()

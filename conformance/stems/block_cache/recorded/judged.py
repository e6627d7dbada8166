"""Judges a recording from its first record to the first call that breaks a law."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from conformance.driver.lockstep import Finding, LockStep, breaks
from conformance.recording.block_records import ADD, CODES, RecordedCall, RecordedStart, unpacked
from conformance.recording.segments import GrowingRecording, NotARecording, records
from conformance.stems.block_cache.recorded.run import RecordedRun
from conformance.stems.block_cache.recorded.state import in_use

REMEMBERED = 4096  # calls, of which one may be to blame for what a later call shows
SHOWN_STATE = "the state with which the recording begins"


@dataclass(frozen=True)
class JudgedRecording:
    """What is said of a recording.

    ``start``: its first record. ``calls``: how many were judged, the first wrong one among them. ``at``: the time of
    the last of them. ``broken``: what the first wrong call broke, ``None`` if nothing is broken. ``function``,
    ``requests``: the engine's function that was called then, and the requests for which it changed blocks, each by its
    number and the engine's name of it. ``by_function``: how many calls of each function were judged. ``starts``: how
    often the whole state was shown and compared.
    """

    start: RecordedStart
    calls: int
    at: int
    broken: Finding | None = None
    function: str = ""
    requests: list[str] = field(default_factory=list)
    by_function: Counter[str] = field(default_factory=Counter)
    starts: int = 0


class Judge:
    """Judges records one after the other, as they come. ``often``: all laws are evaluated after each of so many calls,
    0 for never; else they are where the recording shows something else than the law has.
    """

    def __init__(self, often: int = 0) -> None:
        self._often = often
        self._names: dict[int, str] = {}
        self._by_function = Counter[str]()
        self._last: deque[RecordedCall] = deque(maxlen=REMEMBERED)
        self._calls = self._starts = 0
        self._lock: LockStep | None = None
        self.verdict: JudgedRecording | None = None

    def takes(self, record: RecordedCall | RecordedStart) -> bool:
        """Judges the next record; ``False`` if a law is broken, and then no other is taken.

        Raises ``NotARecording`` if the first record is no start, or is one of a server that no recording can describe.
        """
        self._names |= _names(record)
        if self._lock is None:
            self._begin(record)
        else:
            self._judge(self._lock, record)
        assert self.verdict is not None
        return self.verdict.broken is None

    def _begin(self, start: RecordedCall | RecordedStart) -> None:
        if not isinstance(start, RecordedStart):
            raise NotARecording("it does not begin with the state of the engine")
        if start.unknown:
            raise NotARecording(f"the recorded server has what no recording says: {', '.join(start.unknown)}")
        self._run, self._starts = RecordedRun(start), 1
        self._lock = LockStep(self._run, dict(start.config), self._often)
        self.verdict = JudgedRecording(start, 0, start.at, _broken_by(self._run), starts=1)

    def _judge(self, lock: LockStep, record: RecordedCall | RecordedStart) -> None:
        assert self.verdict is not None
        run, start, finding = self._run, self.verdict.start, None
        run.record = record
        if isinstance(record, RecordedStart):
            self._starts += 1
        else:
            self._calls += 1
            self._by_function[record.function] += 1
            self._last.append(record)
            run.number = self._calls
        try:
            lock.do(operation_of(record))
        except Finding as found:
            finding = found
        lock.trace.steps.clear()  # nobody repeats them
        wrong: RecordedCall | RecordedStart = record
        calls = self._calls
        if finding is not None and run.to_blame:
            wrong, calls = self._last[run.to_blame - self._calls - 1], run.to_blame
        who = _who(wrong, self._names) if finding is not None else ("", [])
        self.verdict = JudgedRecording(start, calls, wrong.at, finding, *who, self._by_function, self._starts)


def judged(path: Path, often: int = 0) -> JudgedRecording:
    """Judges the recording ``path``. ``often``: as of ``Judge``.

    Raises ``NotARecording`` if the file is none, or nothing in it can be judged; ``OSError`` if it cannot be read.
    """
    judge = Judge(often)
    for record in records(path):
        if not _takes(judge, record, path):
            break
    if judge.verdict is None:
        raise NotARecording(f"{path}: its first record is not whole, so that there is nothing to judge")
    return judge.verdict


def watched(path: Path, waits: Callable[[JudgedRecording | None], bool], often: int = 0) -> JudgedRecording | None:
    """Judges a recording while it is written, from its oldest state on. ``waits``: is told what is said so far, waits
    for more, and says whether the recording is watched on; it is asked whenever nothing new is there.

    Returns what is said at the end, ``None`` if no record has come. Raises what ``judged`` raises; that the recording
    was written over before it was read is a ``NotARecording``, too.
    """
    judge, tail = Judge(often), GrowingRecording(path)
    while True:
        for record in tail.read():
            if not _takes(judge, record, path):
                return judge.verdict
        if not waits(judge.verdict):
            return judge.verdict


def _takes(judge: Judge, record: bytes, path: Path) -> bool:
    try:
        return judge.takes(unpacked(record))
    except NotARecording as error:
        raise NotARecording(f"{path}: {error}") from None


def operation_of(record: RecordedCall | RecordedStart) -> str:
    """The operation of the run that plays this record."""
    return CODES[record.code] if isinstance(record, RecordedCall) else "start"


def _broken_by(run: RecordedRun) -> Finding | None:
    """The first law that the state does not keep with which the recording begins."""
    shown = in_use(run.law.state)
    broken = [law for law in run.law.stem.invariants.values() if breaks(law, shown)]
    return Finding(broken[0].name, broken[0].sentence, SHOWN_STATE) if broken else None


def _names(record: RecordedCall | RecordedStart) -> dict[int, str]:
    """The engine's names of the requests that come with this record."""
    if isinstance(record, RecordedStart):
        return {one.request: one.name for one in record.requests}
    return {record.rest[0]: record.rest[2]} if record.code == ADD and record.rest else {}


def _who(record: RecordedCall | RecordedStart, names: Mapping[int, str]) -> tuple[str, list[str]]:
    if isinstance(record, RecordedStart):
        return "", []
    named = {move.request for move in record.moves if move.request > 0} | {*record.ended} | {*record.preempted}
    return record.function, [f"{request} ({names.get(request, 'no name')})" for request in sorted(named)]

"""Judges a recording from its first record to the first call that breaks a law."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from conformance.driver.lockstep import Finding, LockStep, breaks
from conformance.recording.block_records import ADD, CODES, RecordedCall, RecordedStart, unpacked
from conformance.recording.segments import NotARecording, records
from conformance.stems.block_cache.recorded.run import RecordedRun
from conformance.stems.block_cache.recorded.state import in_use
from conformance.stems.block_cache.recorded.stories import Digests, RecordedStories

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


def judged(path: Path, often: int = 0, goes_on: Callable[[int], bool] = lambda _: True) -> JudgedRecording:
    """Judges the recording ``path``. ``often``: all laws are evaluated after each of so many calls, 0 for never; else
    they are where the recording shows something else than the law has. ``goes_on``: is told the number of the next
    call, and says whether it is judged.

    Raises ``NotARecording`` if the file is none, or nothing in it can be judged; ``OSError`` if it cannot be read.
    """
    digests, count = Digests(), 0
    names: dict[int, str] = {}
    for record in _read(path):
        digests.add(record)
        names |= _names(record)
        count += 1
    if not count:
        raise NotARecording(f"{path}: its first record is not whole, so that there is nothing to judge")
    played = _read(path)
    start = next(played)
    if not isinstance(start, RecordedStart):
        raise NotARecording(f"{path}: it does not begin with the state of the engine")
    if start.unknown:
        raise NotARecording(f"{path}: the recorded server has what no recording says: {', '.join(start.unknown)}")
    run = RecordedRun(start, RecordedStories(digests.places))
    lock = LockStep(run, dict(start.config), often)
    done = Counter[str]()
    if (broken := _broken_by(run)) is not None:
        return JudgedRecording(start, 0, start.at, broken)
    calls, starts, at = 0, 1, start.at
    for record in played:
        if not goes_on(calls + 1):
            break
        run.record, at = record, record.at
        if isinstance(record, RecordedStart):
            starts += 1
        else:
            calls += 1
            run.number = calls
            done[record.function] += 1
        try:
            lock.do(operation_of(record))
        except Finding as finding:
            wrong = _blamed(path, run.to_blame) if run.to_blame else record
            return JudgedRecording(start, run.to_blame or calls, wrong.at, finding, *_who(wrong, names), done, starts)
    return JudgedRecording(start, calls, at, by_function=done, starts=starts)


def _blamed(path: Path, number: int) -> RecordedCall:
    """The call with this number, from 1 on."""
    calls = (record for record in _read(path) if isinstance(record, RecordedCall))
    return next(islice(calls, number - 1, None))


def operation_of(record: RecordedCall | RecordedStart) -> str:
    """The operation of the run that plays this record."""
    return CODES[record.code] if isinstance(record, RecordedCall) else "start"


def _read(path: Path) -> Iterator[RecordedCall | RecordedStart]:
    return map(unpacked, records(path))


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

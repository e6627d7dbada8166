"""Judges a recording, whatever was recorded: the scheduler of a cache of blocks, or a whole server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from conformance.recording.segments import GrowingRecording, records
from conformance.recording.server_records import is_of_server
from conformance.stems.block_cache.recorded.judged import JudgedRecording, judged, watched
from conformance.stems.server.recorded.judged import JudgedServer, judged_server, watched_server

Judged = JudgedRecording | JudgedServer


def judged_file(path: Path, often: int = 0) -> Judged:
    """Judges the recording ``path``. ``often``: all laws are evaluated after each of so many calls, 0 for never.

    Raises ``NotARecording`` if the file is none, or nothing in it can be judged; ``OSError`` if it cannot be read.
    """
    first = next(records(path), None)
    return judged_server(path, often) if first is not None and is_of_server(first) else judged(path, often)


def watched_file(path: Path, waits: Callable[[Judged | None], bool], often: int = 0) -> Judged | None:
    """Judges a recording while it is written, from its oldest state on. ``waits``: is told what is said so far, waits
    for more, and says whether the recording is watched on; it is asked whenever nothing new is there.

    Returns what is said at the end, ``None`` if no judge could begin. Raises what ``judged_file`` raises; that the
    recording was written over before it was read is a ``NotARecording``, too.
    """
    while (first := next(GrowingRecording(path).read(), None)) is None:
        if not waits(None):
            return None
    return watched_server(path, waits, often) if is_of_server(first) else watched(path, waits, often)

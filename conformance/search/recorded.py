"""Judges a recording, whatever was recorded: the scheduler of a cache of blocks, or a whole server."""

from __future__ import annotations

from pathlib import Path

from conformance.recording.segments import records
from conformance.recording.server_records import is_of_server
from conformance.stems.block_cache.recorded.judged import JudgedRecording, judged
from conformance.stems.server.recorded.judged import JudgedServer, judged_server

Judged = JudgedRecording | JudgedServer


def judged_file(path: Path, often: int = 0) -> Judged:
    """Judges the recording ``path``. ``often``: all laws are evaluated after each of so many calls, 0 for never.

    Raises ``NotARecording`` if the file is none, or nothing in it can be judged; ``OSError`` if it cannot be read.
    """
    first = next(records(path), None)
    return judged_server(path, often) if first is not None and is_of_server(first) else judged(path, often)

"""Watches a scheduler of SGLang from inside its process. This folder imports the standard library and msgpack alone.

``record`` is what ``slotproof.record`` calls for a scheduler of this engine. ``plug_in`` is the plug-in that a server
of the engine loads by itself in each of its processes (entry point group ``sglang.srt.plugins``).
"""

from __future__ import annotations

from typing import Any

from conformance.recording import asked
from conformance.recording.segments import SegmentWriter


def record(scheduler: Any, writer: SegmentWriter, key: bytes) -> Any:
    """Records a scheduler from its next poll for messages on. Returns the recorder, whose ``stop()`` ends the
    recording.

    Raises ``ValueError`` if this is no scheduler that can be recorded; it says what is missing.
    """
    from conformance.engines.sglang.recording.recorder import ServerRecorder

    return ServerRecorder(scheduler, writer, key)


def plug_in() -> None:
    """Where ``SLOTPROOF_RECORD`` is set: records each scheduler of this process from the moment it is made."""
    if asked.path() is None:
        return
    try:
        from sglang.srt.managers.scheduler import Scheduler
    except ImportError as error:
        asked.LOG.warning("nothing is recorded: %s", error)
        return
    asked.on_each(Scheduler, record)

"""Watches a scheduler of vLLM from inside its process. This folder imports the standard library and msgpack alone.

``record`` is what ``slotproof.record`` calls for a scheduler of this engine. ``plug_in`` is the plug-in that a server
of the engine loads by itself in each of its processes (entry point group ``vllm.general_plugins``).
"""

from __future__ import annotations

from typing import Any

from conformance.recording import asked
from conformance.recording.segments import SegmentWriter


def record(scheduler: Any, writer: SegmentWriter, key: bytes) -> Any:
    """Records a scheduler from now on. Returns the recorder, whose ``stop()`` ends the recording.

    Raises ``ValueError`` if this is no scheduler that can be recorded; it says what is missing.
    """
    from conformance.engines.vllm.recording.recorder import Recorder

    return Recorder(scheduler, writer, key)


def plug_in() -> None:
    """Where ``SLOTPROOF_RECORD`` is set: records each scheduler of this process from the moment it is made."""
    if asked.path() is None:
        return
    try:
        from vllm.v1.core.sched.scheduler import Scheduler
    except ImportError as error:
        asked.LOG.warning("nothing is recorded: %s", error)
        return
    asked.on_each(Scheduler, record)

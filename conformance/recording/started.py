"""Starts the recorder of an engine: from the code of a server, or as a plug-in of the engine."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from conformance import engines
from conformance.recording.asked import RING_BYTES, SHORTEST_KEY, checked_key
from conformance.recording.segments import SegmentWriter


def start(scheduler: Any, path: str | os.PathLike[str], ring: int | None = RING_BYTES, key: bytes | None = None) -> Any:
    """Records ``scheduler``, the scheduler of a server, into the file ``path`` from now on.

    ``ring``: the most bytes of the file, whose oldest records are written over; ``None`` lets it grow. ``key``: 16 to
    64 bytes under which texts are named; a random key without it. Returns the recorder: ``stop()`` ends the recording,
    ``calls`` counts what was written.

    Raises ``ValueError`` if the scheduler is of no engine that can be recorded, or an argument is not as it must be,
    and ``OSError`` if the file cannot be written. Then nothing is recorded.
    """
    engine = type(scheduler).__module__.partition(".")[0]
    if engine not in _recorded():
        raise ValueError(f"scheduler: {type(scheduler).__qualname__} of {engine} is of no engine that can be recorded")
    key = os.urandom(SHORTEST_KEY) if key is None else checked_key(key)
    return _of(engine).record(scheduler, SegmentWriter(Path(path), ring), key)


def plug_in() -> None:
    """The plug-in that engines load by themselves, each by the entry point group that it has for plug-ins.

    Where ``SLOTPROOF_RECORD`` is set, every scheduler that this process makes from now on is recorded.
    """
    for engine in _recorded():
        if engine in sys.modules:
            _of(engine).plug_in()


def _recorded() -> list[str]:
    """The engines that can be recorded."""
    folders = [Path(folder) for folder in engines.__path__]
    return sorted(found.parent.name for folder in folders for found in folder.glob("*/recording"))


def _of(engine: str) -> Any:
    return import_module(f"{engines.__name__}.{engine}.recording")

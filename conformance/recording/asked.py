"""What the environment of a server asks of its recording.

``SLOTPROOF_RECORD``: the file. ``%p`` in it is the number of the process, which a server with several engines needs.
``SLOTPROOF_RECORD_BYTES``: the most bytes of the file, 64 MiB without it; 0 lets the file grow.
``SLOTPROOF_RECORD_KEY``: hexadecimal digits of 16 to 64 bytes, for ranks that should name texts alike; else a random
key.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conformance.recording.segments import SegmentWriter

LOG = logging.getLogger("slotproof")
FILE, BYTES, KEY = "SLOTPROOF_RECORD", "SLOTPROOF_RECORD_BYTES", "SLOTPROOF_RECORD_KEY"
RING_BYTES = 64 << 20
SHORTEST_KEY, LONGEST_KEY = 16, 64  # bytes; BLAKE2b takes no longer one


def path() -> Path | None:
    """The file, ``None`` if nothing is asked for."""
    named = os.environ.get(FILE, "")
    return Path(named.replace("%p", str(os.getpid()))) if named else None


def writer() -> SegmentWriter:
    """Writes to the file. Raises ``ValueError`` if a variable is not as it must be, ``OSError`` if there is no file."""
    named, given = path(), os.environ.get(BYTES, str(RING_BYTES))
    if named is None:
        raise ValueError(f"{FILE} names no file")
    if not given.isdecimal():
        raise ValueError(f"{BYTES} is {given!r}: a number of bytes is wanted")
    return SegmentWriter(named, int(given) or None)


def key() -> bytes:
    """The key under which texts are named. Raises ``ValueError`` if it is not as it must be."""
    given = os.environ.get(KEY, "")
    if not given:
        return os.urandom(SHORTEST_KEY)
    try:
        return checked_key(bytes.fromhex(given))
    except ValueError:
        raise ValueError(f"{KEY}: hexadecimal digits of {SHORTEST_KEY} to {LONGEST_KEY} bytes are wanted") from None


def checked_key(given: bytes) -> bytes:
    """The key, if its length is right; else raises ``ValueError``."""
    if not SHORTEST_KEY <= len(given) <= LONGEST_KEY:
        raise ValueError(f"key: {len(given)} bytes, where {SHORTEST_KEY} to {LONGEST_KEY} are wanted")
    return given


def on_each(scheduler_class: Any, record: Callable[[Any, SegmentWriter, bytes], Any]) -> None:
    """Calls ``record`` with each scheduler of this class, and of those derived from it, that is made from now on, and
    with the writer and the key that are asked for.

    A server whose scheduler cannot be recorded starts all the same, and the log says why.
    """
    made = scheduler_class.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        try:
            self.slotproof_recorder = record(self, writer(), key())
        except Exception as error:
            LOG.warning("nothing is recorded: %s: %s", type(error).__name__, error)

    scheduler_class.__init__ = init

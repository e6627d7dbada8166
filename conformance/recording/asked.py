"""What the environment of a server asks of its recording.

``SLOTPROOF_RECORD``: the file. ``%p`` in it is the number of the process, which a server with several engines needs.
``SLOTPROOF_RECORD_BYTES``: the most bytes of the file, 64 MiB without it; 0 lets the file grow.
``SLOTPROOF_RECORD_KEY``: hexadecimal digits of 16 to 64 bytes, for ranks that should name texts alike; else a random
key.
"""

from __future__ import annotations

import os
from pathlib import Path

from conformance.recording.segments import SegmentWriter

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

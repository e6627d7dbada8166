"""The file of a recording: records in order, of which none is lost but the last when the process is killed.

The file is a header and *segments* of equal size. A segment has a number, how many of its bytes are in use, and
records, each with its length before it. The writer maps one segment into memory at a time: a record is copied to its
place first, and counted as used afterwards, so a killed process leaves every whole record behind. A record that does
not fit into a segment goes on in the next one.

A file either grows, or is a *ring*: it has a fixed number of segments, and the oldest is written over. A reader of a
ring cannot know what came before its first record, so every record is either a *start*, from which a reader can begin
(the whole state of the engine), or follows one. The writer of records asks ``wants_start`` when to write a start.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MAGIC = b"slotproof recording 1\n"
FILE_HEADER = struct.Struct("<24sII")  # the magic, the bytes of a segment, the segments of a ring (0: the file grows)
SEGMENT_HEADER = struct.Struct("<QII")  # number from 1 on, bytes in use after the header, 1 if it begins with a start
LENGTH = struct.Struct("<I")
USED_AT, CONTINUES = 8, 1 << 31  # CONTINUES in a length: the record goes on in the next segment
UNIT = mmap.ALLOCATIONGRANULARITY
SEGMENT_BYTES = 1 << 20
FEWEST_SEGMENTS = 4
STARTS_SHARE = 8  # between two starts there are so many times the bytes of a start
START_OF_RING = 4  # a start has at most this part of a ring, so that a ring always has a whole one


class NotARecording(ValueError):
    """A file is no recording. The message names the file and says what is wrong."""


class SegmentWriter:
    """Appends records to a new file. ``ring``: the most bytes that the file may have; it grows without.

    Raises ``ValueError`` if ``ring`` has no room for four segments, ``OSError`` if the file cannot be written.
    """

    def __init__(self, path: Path, ring: int | None = None, segment: int = SEGMENT_BYTES) -> None:
        segment = -(-segment // UNIT) * UNIT
        self._segments = 0 if ring is None else (ring - UNIT) // segment
        if ring is not None and self._segments < FEWEST_SEGMENTS:
            least = UNIT + FEWEST_SEGMENTS * segment
            raise ValueError(f"ring: {ring} bytes, where at least {least} bytes are needed, for four segments")
        self._size = segment
        self._file = open(path, "w+b", buffering=0)  # noqa: SIM115 (it is open as long as the recording runs)
        self._file.truncate(UNIT)
        self._file.write(FILE_HEADER.pack(MAGIC, segment, self._segments))
        self._number = 0
        self._map: mmap.mmap | None = None
        self._at = self._since_start = self._start_bytes = 0
        self._open_next(True)

    @property
    def wants_start(self) -> bool:
        """It is time for the whole state of the engine, so that a reader of a ring finds one."""
        enough = max(STARTS_SHARE * self._start_bytes, self._size)
        if self._segments:
            enough = min(enough, self._segments * self._size // 2 - self._start_bytes)
        return self._since_start > enough

    def write(self, record: bytes, start: bool = False) -> None:
        """Appends a record. ``start``: a reader may begin with it.

        Raises ``ValueError`` for a start that has more than a quarter of a ring; then nothing is written.
        """
        if start:
            ring = self._segments * self._size
            if ring and len(record) * START_OF_RING > ring:
                least = UNIT + START_OF_RING * len(record) + self._size
                raise ValueError(f"ring: the state of this server needs a ring of at least {least} bytes")
            self._since_start, self._start_bytes = 0, len(record)
            if self._at > SEGMENT_HEADER.size:
                self._open_next(True)
        self._since_start += len(record)
        room = self._size - self._at - LENGTH.size
        if room >= len(record):
            self._put(record, 0)
            return
        rest = memoryview(record)
        while len(rest) > room:
            if room > 0:
                self._put(rest[:room], CONTINUES)
                rest = rest[room:]
            self._open_next(False)
            room = self._size - self._at - LENGTH.size
        self._put(rest, 0)

    def close(self) -> None:
        """The recording ends."""
        if self._map is not None:
            self._map.close()
            self._map = None
        self._file.close()

    def _put(self, part: bytes | memoryview, flag: int) -> None:
        assert self._map is not None
        begins, ends = self._at + LENGTH.size, self._at + LENGTH.size + len(part)
        LENGTH.pack_into(self._map, self._at, len(part) | flag)
        self._map[begins:ends] = bytes(part)
        LENGTH.pack_into(self._map, USED_AT, ends - SEGMENT_HEADER.size)
        self._at = ends

    def _open_next(self, starts: bool) -> None:
        if self._map is not None:
            self._map.close()
        place = self._number % self._segments if self._segments else self._number
        self._number += 1
        offset = UNIT + place * self._size
        if os.fstat(self._file.fileno()).st_size < offset + self._size:
            self._file.truncate(offset + self._size)
        self._map = mmap.mmap(self._file.fileno(), self._size, offset=offset)
        LENGTH.pack_into(self._map, USED_AT, 0)  # what the segment had before is not read any more
        SEGMENT_HEADER.pack_into(self._map, 0, self._number, 0, int(starts))
        self._at = SEGMENT_HEADER.size


class _Segment(NamedTuple):
    number: int
    starts: bool
    parts: list[tuple[bytes, bool]]  # of each record, or of a part of one, whether it goes on in the next segment
    is_cut: bool  # the file ends before what the segment counts as used


def records(path: Path) -> Iterator[bytes]:
    """The records of a file, from the oldest start on, as far as they are whole.

    Raises ``NotARecording`` for a file that is none, or has no start, and ``OSError`` if it cannot be read.
    """
    tail = GrowingRecording(path)
    yield from tail.read()
    if not tail.has_begun:
        raise NotARecording(f"{path}: there is no record in it from which a reader can begin")


class GrowingRecording:
    """Reads a recording that may still be written. ``has_begun``: a start was found."""

    def __init__(self, path: Path) -> None:
        self._path, self.has_begun = path, False
        self._number = self._done = 0  # the segment that is read, and how many of its parts were read
        self._begun = b""  # a record that goes on in a part which was not read yet

    def read(self) -> Iterator[bytes]:
        """The records that were written since the last call, from the oldest start on.

        Raises ``NotARecording`` if the file is none, or what comes next was written over, and ``OSError`` if it cannot
        be read.
        """
        segments = _in_a_row(sorted(_segments(self._path, self._number), key=lambda segment: segment.number))
        if not self.has_begun:
            first = next((at for at, segment in enumerate(segments) if segment.starts and segment.parts), None)
            if first is None:
                return
            segments, self.has_begun = segments[first:], True
            self._number = segments[0].number
        if segments and segments[0].number != self._number:
            raise NotARecording(f"{self._path}: it was written over before it was read")
        for segment in segments:
            if segment.number != self._number:
                self._number, self._done = segment.number, 0
            for part, continues in segment.parts[self._done :]:
                self._done += 1
                self._begun += part
                if not continues:
                    yield self._begun
                    self._begun = b""
            if segment.is_cut:
                return


def _in_a_row(segments: list[_Segment]) -> list[_Segment]:
    """The newest segments between which none is missing. One that was being written over has none of its records."""
    first = len(segments) - 1
    while first > 0 and segments[first - 1].number == segments[first].number - 1:
        first -= 1
    return segments[max(first, 0) :]


def _segments(path: Path, since: int) -> Iterator[_Segment]:
    """The segments of a file whose number is ``since`` or larger."""
    with path.open("rb") as file:
        header = file.read(FILE_HEADER.size)
        if len(header) < FILE_HEADER.size or not header.startswith(MAGIC):
            begins = MAGIC.decode().strip()
            raise NotARecording(f"{path}: this is no recording of Slotproof, which begins with {begins!r}")
        _, size, _ = FILE_HEADER.unpack(header)
        place = UNIT
        while True:
            file.seek(place)
            place += size
            if len(head := file.read(SEGMENT_HEADER.size)) < SEGMENT_HEADER.size:
                return
            number, used, starts = SEGMENT_HEADER.unpack(head)
            if not number or number < since:
                continue
            body = file.read(min(used, size))
            file.seek(place - size)
            if file.read(8) == head[:8]:  # else it was written over while it was read
                yield _segment(head + body, number, used, bool(starts))


def _segment(found: bytes, number: int, used: int, starts: bool) -> _Segment:
    end = SEGMENT_HEADER.size + used
    at, parts = SEGMENT_HEADER.size, []
    while at + LENGTH.size <= min(end, len(found)):
        (length,) = LENGTH.unpack_from(found, at)
        continues, length = bool(length & CONTINUES), length & ~CONTINUES
        at += LENGTH.size + length
        if at > min(end, len(found)):
            break
        parts.append((found[at - length : at], continues))
    return _Segment(number, starts, parts, end > len(found))

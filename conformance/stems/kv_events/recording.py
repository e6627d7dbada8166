"""Recorded streams of KV events: files of msgpack objects, one after the other, each one batch.

A batch is what an engine publishes: the array ``[time, events]``, or ``[time, events, rank]``. Or it is what a
subscriber receives: the array ``[topic, number, payload]``, where ``number`` is an integer or 8 bytes, big-endian, and
``payload`` is a batch in msgpack. Batches of one rank and topic are numbered one by one; those without a number are
not. A number below 0 marks the end of a replay, and is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

from conformance.driver.naming import UsageError
from conformance.stems.kv_events.reader import Reader, WrongEvent
from conformance.stems.kv_events.wire import Malformed, parsed

MOST = 1 << 31  # bytes of one object
CHUNK = 1 << 20  # bytes that are read at a time
Publisher = tuple[Any, Any]  # the topic and the rank


class Batch(NamedTuple):
    """One batch. ``publisher``: whose. ``number``: ``None`` where batches have none. ``events``: as they were read."""

    publisher: Publisher
    number: int | None
    events: list[Any]


@dataclass(frozen=True)
class FoundInStream:
    """The first place of a stream that breaks the law.

    ``batch``, ``event``: which batch of the file and which event of the whole file, from 1; ``event`` is ``None`` where
    a batch breaks the law, such as one that was lost before it. ``said``: what the event says, in words.
    """

    batch: int
    event: int | None
    said: str
    wrong: WrongEvent


@dataclass
class Judged:
    """What became of a stream: how much of it was read, and the first wrong place.

    ``believed``: how many blocks are believed at the end, in how many readers (one for each rank and topic). ``late``:
    how many readers joined after the first batch, so that only a part of the law could be judged.
    """

    batches: int = 0
    events: int = 0
    readers: dict[Publisher, Reader] = field(default_factory=dict)
    late: int = 0
    found: FoundInStream | None = None

    @property
    def believed(self) -> int:
        """How many blocks are believed at the end, by all readers."""
        return sum(sum(1 for _ in reader.believed()) for reader in self.readers.values())


def judge(path: Path, counting: bool = True, late: bool = False) -> Judged:
    """Reads the stream up to the first place that breaks the law.

    ``counting``, ``late``: see ``Reader``; a stream whose first number is not 0 is late in any case. Raises
    ``UsageError`` where the file is no such stream.
    """
    done = Judged()
    for batch in batches(path):
        done.batches += 1
        reader = done.readers.get(batch.publisher)
        if reader is None:
            joins = late or bool(batch.number)
            reader = done.readers[batch.publisher] = Reader(counting, joins)
            done.late += joins
        if batch.number is not None and (wrong := reader.begins(batch.number)):
            done.found = FoundInStream(done.batches, None, f"batch {batch.number}", wrong)
            return done
        for raw in batch.events:
            done.events += 1
            try:
                event = parsed(raw)
                wrong = reader.event(event)
            except Malformed as error:
                raise UsageError(f"{path}: event {done.events}, in batch {done.batches}: {error}") from None
            if wrong:
                done.found = FoundInStream(done.batches, done.events, str(event), wrong)
                return done
    if not done.batches:
        raise UsageError(f"{path}: the file is empty, a recorded stream of KV events is wanted")
    return done


def batches(path: Path) -> Iterator[Batch]:
    """The batches of a file, in order. Raises ``UsageError`` where it cannot be read, or has something else in it."""
    unpacker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=MOST)
    size = number = end = 0  # ``end``: of the last whole object
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                size += len(chunk)
                unpacker.feed(chunk)
                for found in unpacker:
                    number, end = number + 1, unpacker.tell()
                    if (batch := _batch(found, f"{path}: object {number}")) is not None:
                        yield batch
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, msgpack.UnpackException) as error:
        raise UsageError(f"{path}: object {number + 1} is no msgpack ({error or type(error).__name__})") from None
    if end != size:
        raise UsageError(f"{path}: the file ends within object {number + 1}")


def _batch(found: Any, where: str) -> Batch | None:
    """An object of the file as a batch; ``None`` for the end of a replay."""
    match found:
        case [int() | float(), list(events)]:
            return Batch((None, None), None, events)
        case [int() | float(), list(events), int() | None as rank, *_]:
            return Batch((None, rank), None, events)
        case [str() | bytes() as topic, int() | bytes() as number, bytes(payload)]:
            at = number if isinstance(number, int) else int.from_bytes(number, "big", signed=True)
            if at < 0:
                return None
            return _received(topic, at, payload, where)
    raise UsageError(f"{where} is no batch: [time, events], [time, events, rank] or [topic, number, payload] is wanted")


def _received(topic: str | bytes, number: int, payload: bytes, where: str) -> Batch:
    """A batch that a subscriber has received."""
    try:
        found = msgpack.unpackb(payload, strict_map_key=False)
    except (ValueError, msgpack.UnpackException):
        raise UsageError(f"{where}: its payload is no msgpack") from None
    inner = _batch(found, f"{where}: its payload")
    if inner is None or inner.number is not None:
        raise UsageError(f"{where}: its payload is a batch with a number of its own")
    return Batch((topic, inner.publisher[1]), number, inner.events)

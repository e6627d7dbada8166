"""How many KV events a second are read from a file and judged."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import msgpack

from benchmarks.timing import a_second
from conformance.stems.kv_events import recording

FORMATS = ("arrays", "maps")
LIMIT = 200_000  # events a second that are asked for
TOKENS, BATCH = 16, 32
NAMES = ("type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium")


@dataclass(frozen=True)
class Rate:
    """Events a second, read, decoded and judged on one core, in one of the two formats."""

    format: str
    events: int
    a_second: float

    @property
    def slow(self) -> bool:
        """Fewer events a second than are asked for."""
        return self.a_second < LIMIT


def measure(format_: str, count: int = 50_000, passes: int = 5) -> Rate:
    """Judges a stream of stores and removals of one block each, again and again."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "stream.msgpack"
        path.write_bytes(b"".join(_batches(_events(count), as_maps=format_ == "maps")))
        return Rate(format_, count, a_second(lambda: _judged(path), passes))


def _judged(path: Path) -> int:
    done = recording.judge(path)
    assert done.found is None
    return done.events


def _events(count: int) -> list[list[Any]]:
    random, live, found = Random(1), list[int](), list[list[Any]]()
    for number in range(count):
        if live and random.random() < 0.5:
            found.append(["BlockRemoved", [live.pop(random.randrange(len(live)))], "GPU"])
        else:
            live.append(hash((number, "block")) >> 1)
            tokens = [random.randrange(150_000) for _ in range(TOKENS)]
            found.append(["BlockStored", live[-1:], None, tokens, TOKENS, None, "GPU"])
    return found


def _batches(events: list[list[Any]], as_maps: bool) -> list[bytes]:
    said = [_as_map(event) for event in events] if as_maps else events
    return [msgpack.packb([1.0, said[at : at + BATCH], 0]) for at in range(0, len(said), BATCH)]


def _as_map(event: list[Any]) -> dict[str, Any]:
    names = NAMES if event[0] == "BlockStored" else (*NAMES[:2], NAMES[-1])
    return dict(zip(names, event, strict=True))

"""The file of a recording: nothing whole is lost, whatever ends the writer or the file."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conformance.recording.segments import (
    FILE_HEADER,
    LENGTH,
    MAGIC,
    UNIT,
    NotARecording,
    SegmentWriter,
    records,
)

SMALL = UNIT  # bytes of a segment


def written(path: Path, ring: int | None, sizes: list[int], starts: int) -> list[bytes]:
    """Writes records of these sizes, each ``starts``-th of them a start; all of them."""
    writer = SegmentWriter(path, ring, SMALL)
    made = [number.to_bytes(4, "big") + bytes(size) for number, size in enumerate(sizes)]
    for number, record in enumerate(made):
        writer.write(record, start=number % starts == 0)
    writer.close()
    return made


def test_a_file_that_grows_has_every_record(tmp_path: Path) -> None:
    sizes = [random.Random(1).randrange(3 * SMALL) for _ in range(40)]  # some do not fit into a segment
    made = written(tmp_path / "a", None, sizes, starts=1000)
    assert [*records(tmp_path / "a")] == made


def test_a_ring_has_the_newest_records_from_a_start_on(tmp_path: Path) -> None:
    ring = UNIT + 6 * SMALL
    made = written(tmp_path / "a", ring, [100] * 2000, starts=20)
    found = [*records(tmp_path / "a")]
    assert found == made[-len(found) :]
    assert (len(made) - len(found)) % 20 == 0  # it begins with a start
    assert len(found) * 104 > 3 * SMALL
    assert (tmp_path / "a").stat().st_size == ring


def test_a_ring_keeps_a_start_where_it_is_asked_for_one(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path / "a", UNIT + 12 * SMALL, SMALL)
    writer.write(b"start", start=True)
    for number in range(5000):
        writer.write(number.to_bytes(4, "big") * 30)
        if writer.wants_start:
            writer.write(b"start", start=True)
        if number % 500 == 499:
            assert next(records(tmp_path / "a")) == b"start"
    writer.close()


def test_a_start_that_is_larger_than_a_segment_is_read(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path / "a", UNIT + 40 * SMALL, SMALL)
    for number in range(60):
        writer.write(bytes([number]) * (5 * SMALL), start=True)
    writer.close()
    found = [*records(tmp_path / "a")]
    assert found
    assert [each[0] for each in found] == [*range(60 - len(found), 60)]


@pytest.mark.parametrize("ring", [None, UNIT + 8 * SMALL])
def test_a_file_that_is_cut_loses_nothing_before_the_cut(tmp_path: Path, ring: int | None) -> None:
    """Cut anywhere, the file has the records of the segments before the cut; one that grows has all up to the cut."""
    made = written(tmp_path / "a", ring, [random.Random(2).randrange(300) for _ in range(300)], starts=25)
    whole = (tmp_path / "a").read_bytes()
    draw = random.Random(3)
    for _ in range(200):
        cut = draw.randrange(len(whole))
        (tmp_path / "b").write_bytes(whole[:cut])
        try:
            found = [*records(tmp_path / "b")]
        except NotARecording:
            found = []
        if ring is None:
            assert found == made[: len(found)]
            missing = made[len(found)] if len(found) < len(made) else b""
            at = whole.find(LENGTH.pack(len(missing)) + missing)  # -1 for one that goes on in the next segment
            assert not missing or at < 0 or cut < at + 4 + len(missing), "a record that is whole was not read"
        else:
            assert not found or any(found == made[at : at + len(found)] for at in range(0, len(made), 25))


KILLED = """
import sys
from pathlib import Path
from conformance.recording.segments import UNIT, SegmentWriter
writer = SegmentWriter(Path(sys.argv[1]), int(sys.argv[2]) or None, UNIT)
number = 0
while True:
    if number % 50 == 0:
        writer.write(number.to_bytes(4, "big") * 40, start=True)
    else:
        writer.write(number.to_bytes(4, "big") * 20)
    number += 1
    if number % 1000 == 0:
        print(number, flush=True)
"""


@pytest.mark.parametrize("ring", [0, UNIT + 16 * UNIT])
def test_a_killed_writer_loses_at_most_its_last_record(tmp_path: Path, ring: int) -> None:
    for turn in range(3):
        path = tmp_path / f"a{turn}"
        command = [sys.executable, "-c", KILLED, str(path), str(ring)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.02 * turn)
            os.kill(process.pid, signal.SIGKILL)
            said = [1000, *map(int, process.stdout.read().split())]
        numbers = [int.from_bytes(record[:4], "big") for record in records(path)]
        assert numbers == [*range(numbers[0], numbers[0] + len(numbers))]
        assert numbers[-1] >= said[-1] - 1
        assert numbers[0] == 0 if ring == 0 else numbers[0] % 50 == 0


def test_a_start_that_is_too_large_for_a_ring_is_refused(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path / "a", UNIT + 4 * SMALL, SMALL)
    writer.write(b"first", start=True)
    with pytest.raises(ValueError, match="ring: the state of this server needs a ring of at least"):
        writer.write(bytes(SMALL + 1), start=True)
    writer.write(b"second")
    assert [*records(tmp_path / "a")] == [b"first", b"second"]


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"something else")
    with pytest.raises(NotARecording, match="is no recording"):
        next(records(tmp_path / "a"))
    (tmp_path / "b").write_bytes(FILE_HEADER.pack(MAGIC, SMALL, 0))
    with pytest.raises(NotARecording, match="no record in it"):
        next(records(tmp_path / "b"))


def test_a_ring_without_room_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ring: 5000 bytes"):
        SegmentWriter(tmp_path / "a", 5000)
    assert not (tmp_path / "a").exists()

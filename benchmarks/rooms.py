"""How often one operation goes from one room of the code to another: ``python -m benchmarks.rooms``.

A room is a folder of ``conformance``, such as ``conformance/driver``, or a file there that is in no folder; ``spec``
and ``impl`` are a room each. The operations are those of the kept runs of the known bugs, on our implementation without
the bugs.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

from conformance.engines import registry
from conformance.planted.faults.kept import kept_run
from conformance.planted.faults.known_bugs import ALL
from conformance.stems.stem_registry import start

ROOT = Path(__file__).resolve().parents[1]
OPERATIONS = (("cache", "finish"), ("cache", "admit"), ("lock_ref", "acquire"), ("swa_mapping", "extend"))


def room(file: str) -> str:
    """The room of a file; empty for one that is not ours."""
    if not file.startswith(str(ROOT)):
        return ""
    parts = Path(file).relative_to(ROOT).parts
    if parts[0] in ("spec", "impl"):
        return parts[0]
    return "/".join(parts[:2]) if parts[0] == "conformance" else ""


class Moves:
    """Counts how often a call of a function is in another room than the call before, and what was entered."""

    def __init__(self) -> None:
        self.count, self.rooms, self.files = 0, set[str](), set[str]()
        self.last = ""

    def __call__(self, frame: Any, event: str, _: Any) -> None:
        """What ``sys.setprofile`` calls."""
        file = frame.f_code.co_filename
        here = room(file)
        if event == "call" and here:
            self.files.add(file)
            self.rooms.add(here)
            self.count += bool(self.last) and here != self.last
            self.last = here


def measured() -> dict[tuple[str, str], tuple[float, float, float]]:
    """For each operation the mean numbers of moves between rooms, of rooms, and of files."""
    makers = registry.own().load(None, None, "cpu").makers
    totals: dict[tuple[str, str], Counter[str]] = {one: Counter() for one in OPERATIONS}
    for fault in ALL:
        trace = kept_run(fault).trace
        lock = start(trace.stem, makers[trace.stem], trace.config, strict=False)
        for step in trace.steps:
            moves = Moves()
            sys.setprofile(moves)
            try:
                lock.do(**step)
            finally:
                sys.setprofile(None)
            if (one := (trace.stem, step["op"])) in totals:
                totals[one].update(times=1, moves=moves.count, rooms=len(moves.rooms), files=len(moves.files))
    return {
        one: (t["moves"] / t["times"], t["rooms"] / t["times"], t["files"] / t["times"])
        for one, t in totals.items()
        if t["times"]
    }


def main() -> None:
    """Prints a line for each operation."""
    for (stem, op), (moves, rooms, files) in measured().items():
        print(f"{stem} {op}: {moves:.0f} moves between {rooms:.0f} rooms, {files:.0f} files")


if __name__ == "__main__":
    main()

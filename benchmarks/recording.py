"""What a recorder costs a server's scheduler, and how fast a recording is judged, on the newest release of each engine.

Two schedulers make the steps of one random load in turn, one of them recorded. What is timed is the processor time of
this thread in the scheduler's own calls; what a recorder does is in them.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from conformance.engines import registry
from conformance.recording.started import start
from conformance.search.recorded import judged_file

REQUESTS = (8, 128, 512)
LIMIT_US, AT = 300, 128  # microseconds a step that a recorder may take, with so many requests
WARM, STEPS = 60, 300


@dataclass(frozen=True)
class Cost:
    """One load. ``own_us``, ``more_us``: medians of a step without a recorder, and of what a recorder adds.
    ``bytes``: of the recording, a step. ``judged``: calls a second of one core. ``skipped``: why there is no number.
    """

    engine: str
    requests: int
    steps: int = 0
    own_us: float = 0.0
    more_us: float = 0.0
    bytes: int = 0
    judged: float = 0.0
    skipped: str = ""

    @property
    def share(self) -> float:
        """The recorder's part of the scheduler's time."""
        return self.more_us / self.own_us

    @property
    def dear(self) -> bool:
        """More than a recorder may take."""
        return not self.skipped and self.requests == AT and self.more_us > LIMIT_US


def cases() -> list[tuple[str, str, int]]:
    """Each engine that can be put under load, its newest release, and each number of requests."""
    able = [plugin for plugin in registry.released() if hasattr(plugin, "under_load")]
    return [(plugin.name, plugin.releases[-1], requests) for plugin in able for requests in REQUESTS]


def measure(engine: str, release: str, requests: int, steps: int = STEPS) -> Cost:
    """One load, in a process of its own, since a process holds one release."""
    command = [sys.executable, "-m", f"{__package__}.{Path(__file__).stem}", engine, release, str(requests), str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip() or "no message").splitlines()[-1]
        return Cost(f"{engine} {release}", requests, skipped=said)
    return Cost(**json.loads(done.stdout.splitlines()[-1]))


def _here(engine: str, release: str, requests: int, steps: int) -> Cost:
    plugin: Any = registry.plugin(engine)
    loads = [plugin.under_load(release, 1, requests) for _ in range(2)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "recording")
        recorder = start(loads[1].scheduler, path, ring=None)  # some recordings begin with an empty server
        for _ in range(WARM):
            for load in loads:
                load.step()
        spent = [_timed(*load.timed) for load in loads]
        own: list[int] = []
        more: list[int] = []
        for number in range(steps):
            for load in loads if number % 2 else loads[::-1]:
                load.step()
            own.append(spent[0][0])
            more.append(spent[1][0] - spent[0][0])
            spent[0][0] = spent[1][0] = 0
        calls = recorder.calls
        recorder.stop()
        written = len(path.read_bytes().rstrip(b"\0"))
        began = time.process_time()
        judged_file(path)
        speed = calls / (time.process_time() - began)
    own_us, more_us = (round(statistics.median(each) / 1000, 1) for each in (own, more))
    return Cost(f"{engine} {release}", requests, steps, own_us, more_us, written // (WARM + steps), round(speed))


def _timed(owner: Any, calls: Sequence[str]) -> list[int]:
    """Counts the nanoseconds that this thread spends in these calls of an object."""
    spent = [0]
    for name in calls:
        function = getattr(owner, name)

        def timed(*args: Any, function: Any = function) -> Any:
            start = time.thread_time_ns()
            answer = function(*args)
            spent[0] += time.thread_time_ns() - start
            return answer

        setattr(owner, name, timed)
    return spent


def _main() -> None:
    engine, release, requests, steps = sys.argv[1:]
    print(json.dumps(asdict(_here(engine, release, int(requests), int(steps)))))


if __name__ == "__main__":
    _main()

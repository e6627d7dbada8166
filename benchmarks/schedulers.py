"""How many scheduler steps a second a check judges, with every law on, on the newest release of each engine.

A step is one call of ``schedule``, with the call that completes it and all that is compared after both. The runs are
drawn on our scheduler, which breaks no law.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import runs
from conformance.driver.lockstep import Finding, LockStep
from conformance.driver.protocol import Misuse
from conformance.driver.trace import Trace
from conformance.engines import registry

STEM = "block_cache"
LIMIT = 400  # steps a second that are asked for


@dataclass(frozen=True)
class Rate:
    """Scheduler steps on one core. ``engine``: its name and release. ``skipped``: why there is no number."""

    engine: str
    steps: int = 0
    a_second: float = 0.0
    skipped: str = ""

    @property
    def slow(self) -> bool:
        """Fewer steps a second than are asked for."""
        return not self.skipped and self.a_second < LIMIT


def engines() -> list[tuple[str, str]]:
    """Each engine with releases, and its newest release."""
    return [(plugin.name, plugin.releases[-1]) for plugin in registry.released()]


def measure(engine: str, release: str, operations: int = 3000) -> Rate | None:
    """Drawn runs of so many operations, in a process of their own, since a process holds one release. ``None``: the
    release has no scheduler of this kind.
    """
    command = [sys.executable, "-m", f"{__package__}.{Path(__file__).stem}", engine, release, str(operations)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return Rate(f"{engine} {release}", skipped=(done.stderr.strip() or "no message").splitlines()[-1])
    found = json.loads(done.stdout.splitlines()[-1])
    return None if found is None else Rate(**found)


def _here(engine: str, release: str, operations: int) -> Rate | None:
    loaded = registry.load(engine, release=release)
    if STEM not in loaded.makers:
        return None
    drawn = runs.draw(STEM, registry.load(registry.own().name), operations)
    start = time.perf_counter()
    steps = sum(_steps(runs.begin(STEM, loaded, trace), trace) for trace in drawn)
    return Rate(f"{engine} {release}", steps, round(steps / (time.perf_counter() - start), 1))


def _steps(lock: LockStep, trace: Trace) -> int:
    """Sends the operations, and counts the steps. What this engine cannot be sent at this point is left out; a run ends
    where a law breaks, since the speed is asked here and not the verdict.
    """
    steps = 0
    for step in trace.steps:
        try:
            lock.do(**step)
        except Misuse:
            continue
        except Finding:
            break
        steps += step["op"] == "schedule"
    return steps


def _main() -> None:
    found = _here(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    print(json.dumps(None if found is None else asdict(found)))


if __name__ == "__main__":
    _main()

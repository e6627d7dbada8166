"""Shrinks drawn findings twice, with copies of runs and from the first operation each time, and compares the results.

``python tests/shrunk_beside.py [FAULT ...]`` in a checkout: for each known bug (by default for all) one line with the
operations that were done each way. Exit code 1 where two results differ in anything.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from typing import Any

from conformance.driver.lockstep import Finding, LockStep
from conformance.driver.trace import Trace
from conformance.planted.faults.known_bugs import FAULTS, Fault
from conformance.search.check import Search, draw
from conformance.stems.machine import Sink
from conformance.stems.stem_registry import start
from conformance.traces.shrink import shrink

EXAMPLES = 100  # drawn runs for a fault; the few that are not found by so many are left out


def drawn(fault: Fault, examples: int = EXAMPLES) -> tuple[Finding, Trace] | None:
    """The first drawn run that shows the fault, as it was drawn."""
    sink = Sink()
    with suppress(Finding):
        draw(fault.stem, fault.make, sink, Search(examples=examples))
    return sink.failure


def shrunk(fault: Fault, found: tuple[Finding, Trace], copies: bool) -> tuple[str, int, float]:
    """All that the shrunk finding says, with its run; the operations that were done; the seconds of the processor."""
    done, begun = [0], time.process_time()

    real = LockStep.do

    def counted(lock: LockStep, op: str, **arguments: Any) -> None:
        done[0] += 1
        real(lock, op, **arguments)

    LockStep.do = counted  # type: ignore[method-assign,assignment]
    try:
        finding, trace = shrink(*found, lambda config: start(fault.stem, fault.make, config), copies=copies)
    finally:
        LockStep.do = real  # type: ignore[method-assign]
    said = [finding.law, finding.kind, finding.sentence, finding.detail, finding.latent, finding.harm, trace.as_json()]
    return json.dumps(said), done[0], time.process_time() - begun


def main(names: list[str]) -> int:
    """Compares the faults with these names; the exit code."""
    compared = differing = 0
    operations, seconds = [0, 0], [0.0, 0.0]
    for fault in [FAULTS[name] for name in names or FAULTS]:
        found = drawn(fault)
        if found is None:
            print(f"{fault.name}: not found in {EXAMPLES} runs", flush=True)
            continue
        ways = [shrunk(fault, found, copies) for copies in (False, True)]
        compared, differing = compared + 1, differing + (ways[0][0] != ways[1][0])
        for way, (_, count, took) in enumerate(ways):
            operations[way] += count
            seconds[way] += took
        told = ", ".join(f"{count} operations in {took:.1f} s" for _, count, took in ways)
        print(f"{fault.name}: {'equal' if ways[0][0] == ways[1][0] else 'DIFFERENT'}: {told}", flush=True)
    print(
        f"{compared - differing} of {compared} equal; operations from the first each time {operations[0]}, with copies "
        f"{operations[1]}; seconds {seconds[0]:.0f}, {seconds[1]:.0f}"
    )
    return int(differing > 0 or compared == 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

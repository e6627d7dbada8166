"""What a run shows that is sent to an engine as far as a client may send it, and then brought to rest.

An engine that was repaired decides otherwise than the one on which the run was found: a request has ended, or no
transfer is under way. Then no client can send the rest of the run as it stands. Here those operations alone are left
out that no client may send by then. At the end everything ends, as at the end of each drawn run: some laws speak of an
engine at rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.driver.lockstep import Finding
from conformance.driver.protocol import Json, Misuse, Unsupported
from conformance.driver.trace import Trace
from conformance.search.check import Search, machine_of
from conformance.stems.machine import Sink
from conformance.traces.outcome import Followed


def followed(trace: Trace, make: Callable[[Json], Any]) -> Followed:
    """What the run shows on a fresh engine that ``make`` builds."""
    machine = machine_of(trace.stem, make, Sink(), Search(strict=False))()
    try:
        left_out = machine.follow(trace)
        machine.teardown()
    except Finding as finding:
        return Followed(finding.law, finding.kind)
    except (Misuse, Unsupported) as reason:
        return Followed(stopped=str(reason))
    return Followed(left_out=left_out, stopped="the engine does not come to rest" if machine.failed else "")

"""The kept run of each fault: a short list of operations that shows the bug, and the law that refutes it in a proof.

They stand in the room of the stem, in ``faults.json``, by the names of the faults. A search without a hint finds such a
run again, see ``conformance.planted.faults.show``; to replay the kept one takes no time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from conformance.driver.lockstep import ANSWERED, WORDS_OF_KIND
from conformance.driver.naming import UsageError
from conformance.driver.protocol import Json
from conformance.driver.trace import Trace
from conformance.stems.fault import Fault
from conformance.stems.found import HERE
from conformance.traces import trace_schema
from proofs.obligations import ATOMIC
from proofs.registry import hints_of

FILE = "faults.json"  # in the room of a stem
KEYS = {"refuted_by", "law", "kind", "config", "steps"}


@dataclass(frozen=True)
class KeptRun:
    """A run that shows a fault.

    ``refuted_by``: the law of which a proof shows that the fault's wrong transition breaks it. ``law``, ``kind``: what
    the faulty implementation breaks in the last operation of ``trace``, see ``conformance.driver.lockstep.Finding``.
    """

    refuted_by: str
    law: str
    kind: str
    trace: Trace


def kept_run(fault: Fault) -> KeptRun:
    """The kept run of a fault. Raises ``UsageError`` where it has none, or none that can be used."""
    return checked(fault, _kept(fault.stem).get(fault.name))


def refuting_law(fault: Fault) -> str | None:
    """The law that refutes a fault by its kept run; ``None`` for a fault without a kept run, such as a new one."""
    return kept_run(fault).refuted_by if fault.name in _kept(fault.stem) else None


@cache
def _kept(stem: str) -> dict[str, Json]:
    path = HERE / stem / FILE
    found: dict[str, Json] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return found


def checked(fault: Fault, found: Json | None) -> KeptRun:
    """The kept run that an entry of a file says. Raises ``UsageError`` with the entry and what is wrong with it."""
    place = f"{fault.stem}/{FILE}: {fault.name}"
    if found is None or found.keys() != KEYS:
        raise UsageError(f"{place}: expected an entry with {', '.join(sorted(KEYS))}")
    stem = hints_of(fault.stem).stem
    if found["refuted_by"] not in {*stem.invariants, *stem.changes, ATOMIC}:
        raise UsageError(f"{place}: refuted_by: {fault.stem} has no law {found['refuted_by']!r}")
    if found["kind"] not in WORDS_OF_KIND:
        raise UsageError(f"{place}: kind: expected {', '.join(WORDS_OF_KIND)}, found {found['kind']!r}")
    if found["law"] == ANSWERED:
        raise UsageError(f"{place}: law: an implementation that only raises an exception has not shown the bug")
    trace = {"stem": fault.stem, "config": found["config"], "steps": found["steps"]}
    try:
        trace_schema.check(trace)
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from None
    return KeptRun(found["refuted_by"], found["law"], found["kind"], Trace(**trace))


def without_fault(faults: Sequence[Fault]) -> list[str]:
    """Kept runs, as ``STEM/faults.json: NAME``, of faults that are not among ``faults``."""
    known = {(fault.stem, fault.name) for fault in faults}
    kept = [(path.parent.name, name) for path in sorted(HERE.glob(f"*/{FILE}")) for name in _kept(path.parent.name)]
    return [f"{stem}/{FILE}: {name}" for stem, name in kept if (stem, name) not in known]

"""The known bugs of all stems."""

from __future__ import annotations

from conformance.stems.fault import Fault
from conformance.stems.found import with_file

ALL: tuple[Fault, ...] = tuple(fault for module in with_file("faults").values() for fault in module.FAULTS)
FAULTS: dict[str, Fault] = {fault.name: fault for fault in ALL}

__all__ = ["ALL", "FAULTS", "Fault"]

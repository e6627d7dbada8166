"""The known bugs of all stems."""

from __future__ import annotations

from conformance.stems.fault import Fault, known_bugs

FAULTS: dict[str, Fault] = known_bugs()
ALL: tuple[Fault, ...] = tuple(FAULTS.values())

__all__ = ["ALL", "FAULTS", "Fault"]

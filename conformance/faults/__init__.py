"""Known bugs, one file a stem: each as a wrong transition of the law, which the proof must refute, and as a variant of our
implementation that has it, which the run must find from nothing.
"""

from __future__ import annotations

from conformance.faults import cache, lock_ref, mamba_slots, session_trim, swa_mapping
from conformance.faults.fault import Fault

ALL = (*swa_mapping.FAULTS, *lock_ref.FAULTS, *session_trim.FAULTS, *mamba_slots.FAULTS, *cache.FAULTS)
FAULTS: dict[str, Fault] = {fault.name: fault for fault in ALL}

__all__ = ["ALL", "FAULTS", "Fault"]

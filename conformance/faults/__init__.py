"""Known bugs, one file for each stem, which proofs and runs must catch.

Each bug stands here in two forms: as a wrong transition of the law, which the provers must refute, and as a faulty
part of our implementation, which drawn runs must find without a hint.
"""

from __future__ import annotations

from conformance.faults import block_cache, block_pool, cache, lock_ref, mamba_slots, session_trim, swa_mapping
from conformance.faults.fault import Fault

ALL = (
    *swa_mapping.FAULTS,
    *lock_ref.FAULTS,
    *session_trim.FAULTS,
    *mamba_slots.FAULTS,
    *cache.FAULTS,
    *block_pool.FAULTS,
    *block_cache.FAULTS,
)
FAULTS: dict[str, Fault] = {fault.name: fault for fault in ALL}

__all__ = ["ALL", "FAULTS", "Fault"]

"""What the author of an engine imports: the Protocols, the snapshots, and the errors that an engine may raise.

``docs/your-engine.md`` shows how they are used. This module is the lasting place of these names; where they are
defined is not.
"""

from __future__ import annotations

from conformance.engines.protocol import (
    Admission,
    Arrival,
    CacheEngine,
    CacheSnapshot,
    EngineError,
    Inserted,
    Json,
    Lengths,
    LockHold,
    Match,
    NodePart,
    NodeSnapshot,
    OutOfMemory,
    PairEngine,
    PairSnapshot,
    PoolEngine,
    PoolSnapshot,
    RowEngine,
    RowSnapshot,
    RowsSnapshot,
    SlotNames,
    StateEngine,
    StatesSnapshot,
    TreeEngine,
    TreePage,
    TreeSnapshot,
    Unsupported,
)
from conformance.engines.registry import SimplePlugin

__all__ = [
    "Admission",
    "Arrival",
    "CacheEngine",
    "CacheSnapshot",
    "EngineError",
    "Inserted",
    "Json",
    "Lengths",
    "LockHold",
    "Match",
    "NodePart",
    "NodeSnapshot",
    "OutOfMemory",
    "PairEngine",
    "PairSnapshot",
    "PoolEngine",
    "PoolSnapshot",
    "RowEngine",
    "RowSnapshot",
    "RowsSnapshot",
    "SimplePlugin",
    "SlotNames",
    "StateEngine",
    "StatesSnapshot",
    "TreeEngine",
    "TreePage",
    "TreeSnapshot",
    "Unsupported",
]

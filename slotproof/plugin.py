"""What the code of an engine of your own imports: ``from slotproof.plugin import SimplePlugin, PoolSnapshot``.

The names are those of the two modules in ``conformance.engines`` that are meant for engines: ``protocol`` says what an
engine must implement, and ``registry`` how it is registered. This module has one place, in a checkout and in an
installed package; the other two have not (docs/adr/0011-names-in-site-packages.md).
"""

from __future__ import annotations

from conformance.engines.protocol import (
    Admission,
    Arrival,
    CacheEngine,
    CacheSnapshot,
    Engine,
    EngineError,
    Inserted,
    Json,
    Lengths,
    LockHold,
    Match,
    Misuse,
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
    TurnedAway,
    Unsupported,
)
from conformance.engines.registry import Loaded, Plugin, SimplePlugin, load
from conformance.options import EngineOption

__all__ = [
    "Admission",
    "Arrival",
    "CacheEngine",
    "CacheSnapshot",
    "Engine",
    "EngineError",
    "EngineOption",
    "Inserted",
    "Json",
    "Lengths",
    "Loaded",
    "LockHold",
    "Match",
    "Misuse",
    "NodePart",
    "NodeSnapshot",
    "OutOfMemory",
    "PairEngine",
    "PairSnapshot",
    "Plugin",
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
    "TurnedAway",
    "Unsupported",
    "load",
]

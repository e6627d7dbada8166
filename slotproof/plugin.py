"""What the code of an engine of your own imports: ``from slotproof.plugin import SimplePlugin, AllocatorSnapshot``.

The names are those of ``conformance.engines.registry``, which says how an engine is registered, and of the Protocols,
each in the room of its stem (``conformance/stems/STEM/protocol.py``): what an engine must implement. This module has
one place, in a checkout and in an installed package; the others have not (docs/adr/0011-names-in-site-packages.md).
"""

from __future__ import annotations

from typing import Any

from conformance.driver.options import EngineOption
from conformance.driver.protocol import (
    Engine,
    EngineError,
    Json,
    Misuse,
    OutOfMemory,
    PublishedEvents,
    PublishingEngine,
    TurnedAway,
    Unsupported,
)
from conformance.engines.registry import Loaded, Plugin, SimplePlugin, load
from conformance.stems.allocator.protocol import AllocatorEngine, AllocatorSnapshot
from conformance.stems.block_cache.protocol import (
    BlockCacheEngine,
    BlockCacheSnapshot,
    Completed,
    HostLimits,
    Known,
    Launched,
    Move,
    RequestLoad,
    RequestPass,
    Transfers,
    WorkerEnds,
)
from conformance.stems.block_pool.protocol import BlockPoolEngine, BlockPoolSnapshot, Name
from conformance.stems.cache.protocol import CacheEngine, CacheSnapshot, LockHold
from conformance.stems.host_server.protocol import HostPoolSnapshot, HostServerEngine, HostStep
from conformance.stems.host_tier.protocol import HostTierEngine, HostTierSnapshot, Offered
from conformance.stems.kinds import Kinds
from conformance.stems.lock_ref.protocol import (
    Inserted,
    LockRefEngine,
    LockRefSnapshot,
    NodePart,
    NodeSnapshot,
    PrefixMatch,
)
from conformance.stems.mamba_slots.protocol import MambaSlotsEngine, MambaSlotsSnapshot, SlotNames
from conformance.stems.server.protocol import (
    Destination,
    RowCopy,
    Sent,
    ServedRequest,
    ServerEngine,
    ServerEvent,
    ServerPass,
)
from conformance.stems.session_trim.protocol import (
    Admission,
    Arrival,
    Lengths,
    RowSnapshot,
    SessionTrimEngine,
    SessionTrimSnapshot,
    TreePage,
)
from conformance.stems.swa_mapping.protocol import SwaMappingEngine, SwaMappingSnapshot

__all__ = [
    "Admission",
    "AllocatorEngine",
    "AllocatorSnapshot",
    "Arrival",
    "BlockCacheEngine",
    "BlockCacheSnapshot",
    "BlockPoolEngine",
    "BlockPoolSnapshot",
    "CacheEngine",
    "CacheSnapshot",
    "Completed",
    "Destination",
    "Engine",
    "EngineError",
    "EngineOption",
    "HostLimits",
    "HostPoolSnapshot",
    "HostServerEngine",
    "HostStep",
    "HostTierEngine",
    "HostTierSnapshot",
    "Inserted",
    "Json",
    "Kinds",
    "Known",
    "Launched",
    "Lengths",
    "Loaded",
    "LockHold",
    "LockRefEngine",
    "LockRefSnapshot",
    "MambaSlotsEngine",
    "MambaSlotsSnapshot",
    "Misuse",
    "Move",
    "Name",
    "NodePart",
    "NodeSnapshot",
    "Offered",
    "OutOfMemory",
    "Plugin",
    "PrefixMatch",
    "PublishedEvents",
    "PublishingEngine",
    "RequestLoad",
    "RequestPass",
    "RowCopy",
    "RowSnapshot",
    "Sent",
    "ServedRequest",
    "ServerEngine",
    "ServerEvent",
    "ServerPass",
    "SessionTrimEngine",
    "SessionTrimSnapshot",
    "SimplePlugin",
    "SlotNames",
    "SwaMappingEngine",
    "SwaMappingSnapshot",
    "Transfers",
    "TreePage",
    "TurnedAway",
    "Unsupported",
    "WorkerEnds",
    "load",
]

# Names that the Protocols, snapshots and answers had before; they go on working.
OLD_NAMES = {
    "PoolEngine": AllocatorEngine,
    "PoolSnapshot": AllocatorSnapshot,
    "PairEngine": SwaMappingEngine,
    "PairSnapshot": SwaMappingSnapshot,
    "TreeEngine": LockRefEngine,
    "TreeSnapshot": LockRefSnapshot,
    "RowEngine": SessionTrimEngine,
    "RowsSnapshot": SessionTrimSnapshot,
    "StateEngine": MambaSlotsEngine,
    "StatesSnapshot": MambaSlotsSnapshot,
    "Load": RequestLoad,
    "Match": PrefixMatch,
    "Pass": RequestPass,
    "TellingEngine": PublishingEngine,
    "Told": PublishedEvents,
}


def __getattr__(name: str) -> Any:
    """What an old name stands for."""
    if name in OLD_NAMES:
        return OLD_NAMES[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

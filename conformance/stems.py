"""The stems on which engines are driven: for each the machine that draws its runs, and the run itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from conformance import no_verdict
from conformance.allocator.rules import AllocatorMachine
from conformance.allocator.run import AllocatorRun
from conformance.block_cache.rules import BlockCacheMachine
from conformance.block_cache.run import BlockCacheRun
from conformance.block_pool.rules import BlockPoolMachine
from conformance.block_pool.run import BlockPoolRun
from conformance.cache.rules import CacheMachine
from conformance.cache.run import CacheRun
from conformance.engines.protocol import Json
from conformance.lock_ref.rules import LockRefMachine
from conformance.lock_ref.run import LockRefRun
from conformance.lockstep import Ignores, LockStep, nothing
from conformance.machine import StemMachine
from conformance.mamba_slots.rules import MambaSlotsMachine
from conformance.mamba_slots.run import MambaSlotsRun
from conformance.pool_calls import PoolCalls
from conformance.request_calls import RequestCalls
from conformance.session_trim.rules import SessionTrimMachine
from conformance.session_trim.run import SessionTrimRun
from conformance.swa_mapping.rules import SwaMappingMachine
from conformance.swa_mapping.run import SwaMappingRun


class Driven(NamedTuple):
    """How a stem is driven: ``machine`` draws the runs, ``run`` makes a run on an engine."""

    machine: type[StemMachine]
    run: Callable[..., Any]


STEMS: dict[str, Driven] = {
    "allocator": Driven(AllocatorMachine, AllocatorRun),
    "swa_mapping": Driven(SwaMappingMachine, SwaMappingRun),
    "lock_ref": Driven(LockRefMachine, LockRefRun),
    "session_trim": Driven(SessionTrimMachine, SessionTrimRun),
    "mamba_slots": Driven(MambaSlotsMachine, MambaSlotsRun),
    "cache": Driven(CacheMachine, CacheRun),
    "block_pool": Driven(BlockPoolMachine, BlockPoolRun),
    "block_cache": Driven(BlockCacheMachine, BlockCacheRun),
}
# For each stem the classes whose marked methods are the operations of its runs.
CALLERS: dict[str, tuple[type, ...]] = {
    "allocator": (PoolCalls,),
    "swa_mapping": (PoolCalls, SwaMappingRun),
    "lock_ref": (LockRefRun,),
    "session_trim": (RequestCalls, SessionTrimRun),
    "mamba_slots": (MambaSlotsRun,),
    "cache": (RequestCalls, CacheRun),
    "block_pool": (BlockPoolRun,),
    "block_cache": (BlockCacheRun,),
}


def start(
    stem: str, make: Callable[[Json], Any], config: Json, strict: bool = True, ignores: Ignores = nothing
) -> LockStep:
    """A fresh run of a stem on a fresh engine. Raises ``Unsupported`` if the engine does not support the
    configuration.
    """
    with no_verdict.watched():
        return LockStep(STEMS[stem].run(make(config), config, strict, ignores), config)

"""The stems on which engines are driven: for each the machine that draws its runs, and the run itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from conformance import no_verdict
from conformance.allocator import claims as of_allocator
from conformance.allocator.rules import AllocatorMachine
from conformance.allocator.run import AllocatorRun
from conformance.block_cache import claims as of_block_cache
from conformance.block_cache.rules import BlockCacheMachine
from conformance.block_cache.run import BlockCacheRun
from conformance.block_pool import claims as of_block_pool
from conformance.block_pool.rules import BlockPoolMachine
from conformance.block_pool.run import BlockPoolRun
from conformance.cache import claims as of_cache
from conformance.cache.rules import CacheMachine
from conformance.cache.run import CacheRun
from conformance.claims import Claims
from conformance.engines.protocol import Json
from conformance.lock_ref import claims as of_lock_ref
from conformance.lock_ref.rules import LockRefMachine
from conformance.lock_ref.run import LockRefRun
from conformance.lockstep import Ignores, LockStep, nothing
from conformance.machine import StemMachine
from conformance.mamba_slots import claims as of_mamba_slots
from conformance.mamba_slots.rules import MambaSlotsMachine
from conformance.mamba_slots.run import MambaSlotsRun
from conformance.pool_calls import PoolCalls
from conformance.request_calls import RequestCalls
from conformance.session_trim import claims as of_session_trim
from conformance.session_trim.rules import SessionTrimMachine
from conformance.session_trim.run import SessionTrimRun
from conformance.swa_mapping import claims as of_swa_mapping
from conformance.swa_mapping.rules import SwaMappingMachine
from conformance.swa_mapping.run import SwaMappingRun


class Driven(NamedTuple):
    """How a stem is driven: ``machine`` draws the runs, ``run`` makes a run on an engine. ``said``: the module that
    says which operations take which transition (``CLAIMS``), and lists configurations of every kind (``PROBES``).
    """

    machine: type[StemMachine]
    run: Callable[..., Any]
    said: ModuleType

    @property
    def claims(self) -> Claims:
        """Which operations take which transition of the law."""
        found: Claims = self.said.CLAIMS
        return found

    @property
    def probes(self) -> Sequence[Json]:
        """One configuration of each kind in which an engine may be driven."""
        found: Sequence[Json] = self.said.PROBES
        return found


STEMS: dict[str, Driven] = {
    "allocator": Driven(AllocatorMachine, AllocatorRun, of_allocator),
    "swa_mapping": Driven(SwaMappingMachine, SwaMappingRun, of_swa_mapping),
    "lock_ref": Driven(LockRefMachine, LockRefRun, of_lock_ref),
    "session_trim": Driven(SessionTrimMachine, SessionTrimRun, of_session_trim),
    "mamba_slots": Driven(MambaSlotsMachine, MambaSlotsRun, of_mamba_slots),
    "cache": Driven(CacheMachine, CacheRun, of_cache),
    "block_pool": Driven(BlockPoolMachine, BlockPoolRun, of_block_pool),
    "block_cache": Driven(BlockCacheMachine, BlockCacheRun, of_block_cache),
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

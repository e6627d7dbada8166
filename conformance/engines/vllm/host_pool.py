"""vLLM's simple connector to host memory, the scheduler's half, under the release's scheduler.

``SimpleCPUOffloadScheduler`` of the release decides everything. Host memory is a block pool as the device's: a block
there is found by the hash of its text, and a copy counts as a holder of its blocks in both pools until the workers say
that it is done. What a copy holds on the device is no request's; ``held`` says how often, so that a run can tell these
holders from those that it knows. A holder too many or too few shows as a wrong count.

The workers are those of the run (``conformance.stems.block_cache.worker``), with the copies as
``SimpleCPUOffloadWorker`` gets them. Harder than the real ones: copies end in any order, late, and each request's load
alone, where the real ones end those of one direction in order, and all loads of a step together; and no copy is waited
for before a step that preempts (``need_flush``). Kinder than the real ones: a copy is done at one moment on each
worker. As with the real ones, each worker tells of a copy by itself, no copy fails, and a store begins after its step
is computed.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from types import FunctionType, MethodType
from typing import Any

from conformance.driver.protocol import Unsupported
from conformance.engines.vllm.host_connector import HostCopies
from conformance.engines.vllm.names import DigestTexts
from conformance.engines.vllm.settings import HostTier
from conformance.stems.block_cache.protocol import Copies, RequestLoad
from conformance.stems.host_tier.protocol import WRITTEN, HostTierSnapshot
from conformance.stems.kv_events.reader import Key
from conformance.stems.kv_events.wire import Medium

FOLDER = "v1.simple_kv_offload"
CONNECTOR = "distributed.kv_transfer.kv_connector.v1.simple_cpu_offload_connector"
AWAKE = "has_pending_push_work"  # by which a connector keeps the server's loop awake
LAZY = "lazy"
LOCALITY = "LOCAL"  # as KV events call memory of the server's machine


def made(imported: Any, config: Any, groups: Any, host: HostTier, sizes: Mapping[str, int]) -> HostPoolConnector:
    """The connector of a scheduler with this configuration. Only the size of host memory is given and not computed.
    ``sizes``: the tokens of the scheduler's block, and of a hash where that is asked for.
    """
    if not imported.has(f"{FOLDER}.manager"):
        raise Unsupported("the release has no pool of blocks in host memory")
    build = imported.module(f"{FOLDER}.manager").SimpleCPUOffloadScheduler
    sized = replace(groups, kv_cache_tensors=[_tensor(imported, groups.num_blocks)])
    size = sizes["block_size"]
    known = {
        "cpu_capacity_bytes": host.slots + 1,  # of a block a byte; the first block is the null block
        "scheduler_block_size": size,
        "hash_block_size": sizes.get("hash_block_size", size),
        "lazy_offload": host.pool == LAZY,
    }
    takes = inspect.signature(build.__init__).parameters
    real = build(config, sized, **{name: value for name, value in known.items() if name in takes})
    told = imported.module(f"{FOLDER}.metadata").SimpleCPUOffloadWorkerMetadata
    wakes = AWAKE in vars(imported.module(CONNECTOR).SimpleCPUOffloadConnector)
    return HostPoolConnector(real, told, wakes)


def _tensor(imported: Any, blocks: int) -> Any:
    """The KV cache of the device as one tensor, a byte of a block."""
    kind = imported.module("v1.kv_cache_interface").KVCacheTensor
    known = {"size": blocks, "layers": ["layer0"], "shared_by": ["layer0"], "layer_stride": blocks, "block_stride": 1}
    takes = {field.name for field in fields(kind)}
    return kind(**{name: value for name, value in known.items() if name in takes})


class Unwatched:
    """The pool of the device as the connector has it: the methods of its class, without what a run hooks onto it. What
    the connector does there is told by ``held``, and is not written down as the scheduler's.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def __getattr__(self, name: str) -> Any:
        method = getattr(type(self._pool), name, None)
        return MethodType(method, self._pool) if isinstance(method, FunctionType) else getattr(self._pool, name)


class HostPoolConnector(HostCopies):
    """The scheduler's half of vLLM's ``SimpleCPUOffloadConnector`` as a scheduler calls it, and what it tells the
    workers. A place in host memory is the number of a block there, and the number of a copy out of blocks that of its
    event. ``wakes``: copies keep a server awake that has no request; before 0.30.0 they do not.
    """

    def __init__(self, real: Any, told: Any, wakes: bool) -> None:
        super().__init__(real, told, 1)
        self._wakes = wakes
        self._loading: dict[int, Copies] = {}  # by request
        self._storing: dict[int, Copies] = {}  # by event

    # What the run asks.

    def held(self) -> Mapping[int, int]:
        """How many copies hold each device block: those in flight, and those that begin with the next step."""
        waiting = (block for one in getattr(self.real, "_pending_finished_stores", ()) for block in one.gpu_block_ids)
        loads = (block for copies in self._loading.values() for _, block in copies)
        stores = (block for copies in self._storing.values() for block, _ in copies)
        return Counter([*loads, *stores, *waiting])

    def answer(self, received: Sequence[int], stored: Sequence[int]) -> Any:
        """What a worker says of copies out of blocks that are done there. Copies into blocks are told as requests."""
        del received
        return self._told(completed_store_events=dict.fromkeys(stored, 1)) if stored else None

    def forgets(self, received: Sequence[int], stored: Sequence[int]) -> None:
        """All workers have told of these copies: they hold no block any more."""
        for request in received:
            del self._loading[request]
        for event in stored:
            del self._storing[event]

    def shown(self) -> HostTierSnapshot:
        """The blocks of host memory as slots. A block with a hash has a key; so has one that is written, and which is
        not found. The pool counts both a free block and one that it may evict as free.
        """
        pool = self.real.cpu_block_pool
        hashed = {one.block_id for one in pool.blocks if not one.is_null and one.block_hash is not None}
        queued = [one.block_id for one in pool.free_block_queue.get_all_free_blocks()]
        refs = {one.block_id: one.ref_cnt for one in pool.blocks if not one.is_null}
        kept = {slot: refs[slot] if slot in hashed else WRITTEN for slot in refs if slot in hashed or refs[slot]}
        evictable = frozenset(slot for slot in queued if slot in hashed)
        return HostTierSnapshot(
            slots={slot: slot for slot in kept},
            refs=kept,
            free=[slot for slot in queued if slot not in hashed],
            available=pool.get_num_free_blocks() - len(evictable),
            listed=evictable,
            busy=self.has_pending_push_work(),
            reading=Counter(place for copies in self._loading.values() for place, _ in copies),
        )

    def cached(self, named: Callable[[bytes, Medium], Key], names: DigestTexts) -> list[Key]:
        """The hashes of the pool. A release from before 0.30.0 says nothing of what it stores there."""
        del names
        medium = getattr(self.real, "kv_event_medium", None)
        found = self.real.cpu_block_pool.cached_block_hash_to_block._cache if medium else ()
        return [named(key, (medium, LOCALITY, None)) for key in found]

    # What a scheduler calls.

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """The connector holds blocks in the pool of the manager."""
        self.bind_gpu_block_pool(kv_cache_manager.block_pool)

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """The connector holds blocks in the pool."""
        self.real.bind_gpu_block_pool(Unwatched(gpu_block_pool))

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """What the workers are told with a step."""
        meta = self.real.build_connector_meta(scheduler_output)
        copies = zip(meta.load_cpu_blocks, meta.load_gpu_blocks, strict=True)
        for name in meta.load_event_to_reqs[meta.load_event] if meta.load_event >= 0 else ():
            count = len(self.real._reqs_to_load[name].transfer_meta.gpu_block_ids)
            self._begins(name, tuple(_first(copies, count)))
        if meta.store_event >= 0:
            stores = tuple(zip(meta.store_gpu_blocks, meta.store_cpu_blocks, strict=True))
            self._stores[meta.store_event] = self._storing[meta.store_event] = stores
        return meta

    def _begins(self, name: str, copies: Copies) -> None:
        """The copies into the blocks of a request begin with this step."""
        first, end, tables = self._loaded[name]
        self._loading[int(name)] = copies
        self._loads[int(name)] = RequestLoad(first, end, tables, 0, copies)

    def request_finished_all_groups(
        self, request: Any, block_ids: Sequence[Sequence[int]]
    ) -> tuple[bool, dict[str, Any] | None]:
        """A request ends."""
        answer: tuple[bool, dict[str, Any] | None] = self.real.request_finished_all_groups(request, block_ids)
        return answer

    def on_new_request(self, request: Any) -> None:
        """The connector is not told of it."""

    def reset_cache(self) -> bool:
        """Host memory forgets everything, unless a copy is in flight."""
        return bool(self.real.reset()) if hasattr(self.real, "reset") else True

    def has_pending_push_work(self) -> bool:
        """Copies go on without a request."""
        return self._wakes and bool(self.real.has_pending_stores())

    def get_external_cache_hit_sources(self, request: Any, num_external_tokens: int) -> Any:
        """No figures are kept."""
        del request, num_external_tokens
        return {}


def _first(copies: Iterator[tuple[int, int]], count: int) -> Iterator[tuple[int, int]]:
    for _ in range(count):
        yield next(copies)

"""vLLM's own connector to host memory, the scheduler's half, under the release's scheduler.

``OffloadingConnectorScheduler`` and ``CPUOffloadingManager`` of the release decide everything: what is copied to host
memory, what is loaded, and what leaves. What the workers' half would do, the copies, is done by the stand-in workers of
the run (``conformance.stems.block_cache.worker``), at moments that the run draws. It is told as ``RequestLoad`` and
``Launched.stores``.

A slot of host memory (vLLM's chunk) holds ``blocks_per_chunk`` blocks. The *place* of a block in host memory is a
number from 1 on: ``slot * blocks_per_chunk + part + 1``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from conformance.engines.vllm import host_slots
from conformance.engines.vllm.names import DigestTexts
from conformance.engines.vllm.settings import HostTier
from conformance.engines.vllm.transfers import AllGroups
from conformance.stems.block_cache.protocol import Copies, RequestLoad, Tables
from conformance.stems.host_tier.protocol import HostTierSnapshot
from conformance.stems.kv_events.reader import Key
from conformance.stems.kv_events.wire import Medium

CONNECTOR = "distributed.kv_transfer.kv_connector.v1.offloading"
MEDIUM = "CPU"  # as its KV events call host memory
GROUP = 4  # bytes of a key, the last ones, that number the group of layers


class HalfTold:
    """Stands for vLLM's classes of what a connector's halves tell each other, which have no fields of their own."""


@dataclass
class Figures:
    """Stands for vLLM's class of a connector's figures."""

    data: dict[str, Any] = field(default_factory=dict)


def made(imported: Any, config: Any, groups: Any, host: HostTier) -> HostConnector:
    """The connector of a scheduler with this configuration. Only the size of host memory is given and not computed."""
    base, manager = imported.module("v1.kv_offload.base"), imported.module("v1.kv_offload.cpu.manager")

    class SizedSpec(base.OffloadingSpec):  # type: ignore[misc,name-defined]
        """The release's specification of host memory with a number of slots."""

        def get_manager(self) -> Any:
            """The release's manager."""
            more = {"store_threshold": host.threshold, "enable_events": self.kv_events_config.enable_kv_cache_events}
            return manager.CPUOffloadingManager(host.slots, cache_policy=host.policy, **more)

        def get_worker(self, kv_caches: Any) -> Any:
            """The workers are those of the run."""
            raise NotImplementedError

    def scheduler(within_step: int) -> Any:
        """The release's half, with so many bytes that are loaded within a step."""
        vars(config.kv_transfer_config).update(_read_by_the_connector(host, within_step))
        spec = SizedSpec(imported.module(f"{CONNECTOR}.config").build_offloading_config(config, groups))
        return imported.module(f"{CONNECTOR}.scheduler").OffloadingConnectorScheduler(spec, config, groups)

    real = scheduler(0)
    if host.within_step:
        real = scheduler(host.within_step * real.config.kv_bytes_per_token)
    told = imported.module(f"{CONNECTOR}.common").OffloadingWorkerMetadata
    described = _described(imported, groups) if host.describes else {}
    return HostConnector(real, told, host.blocks_per_chunk, described, bool(host.within_step))


def _described(imported: Any, groups: Any) -> dict[int, int]:
    """The groups with full attention: of the others the release says keys alone. With each the tokens of a block."""
    full = imported.module("v1.kv_cache_interface").FullAttentionSpec
    specs = (group.kv_cache_spec for group in groups.kv_cache_groups)
    return {at: spec.block_size for at, spec in enumerate(specs) if isinstance(spec, full)}


def _read_by_the_connector(host: HostTier, within_step: int) -> dict[str, Any]:
    """What the connector reads of the configuration of transfers. ``within_step``: bytes."""
    more = {"blocks_per_chunk": host.blocks_per_chunk, "offload_prompt_only": host.prompt_only}
    more |= {"self_describing_kv_events": host.describes, "sync_load_budget_bytes": within_step}
    return {"engine_id": "engine", "kv_connector_extra_config": more}


class HostCopies(AllGroups, ABC):
    """The scheduler's half of a connector to host memory, as far as vLLM's two are alike: what workers are told.

    ``told``: the class of what a worker answers. ``parts``: blocks of a slot.
    """

    def __init__(self, real: Any, told: Any, parts: int) -> None:
        self.real, self._told, self._parts = real, told, parts
        self._loaded: dict[str, tuple[int, int, Tables]] = {}
        self._loads: dict[int, RequestLoad] = {}
        self._stores: dict[int, Copies] = {}
        self._flushed: tuple[int, ...] = ()
        self._jobs: dict[int, int] = {}

    def begun(self) -> Mapping[int, RequestLoad]:
        """The copies into blocks that began since the last call, by request."""
        loads, self._loads = self._loads, {}
        return loads

    def stores(self) -> Mapping[int, Copies]:
        """The copies out of blocks that began since the last call, by job."""
        stores, self._stores = self._stores, {}
        return stores

    def flushed(self) -> tuple[int, ...]:
        """The jobs for which the workers wait before the step."""
        flushed, self._flushed = self._flushed, ()
        return flushed

    def held(self) -> Mapping[int, int]:
        """How many copies hold each device block: none, since the workers wait before a block is handed out again."""
        return {}

    @abstractmethod
    def answer(self, received: Sequence[int], stored: Sequence[int]) -> Any:
        """What a worker says of copies that are done there: those into blocks of these requests, and these stores;
        ``None`` where it says nothing.
        """

    @abstractmethod
    def forgets(self, received: Sequence[int], stored: Sequence[int]) -> None:
        """All workers have told of these copies: those into blocks of these requests, and these stores."""

    @abstractmethod
    def shown(self) -> HostTierSnapshot:
        """Host memory, as the release has it."""

    @abstractmethod
    def cached(self, named: Callable[[bytes, Medium], Key], names: DigestTexts) -> list[Key]:
        """What host memory has, as KV events name it. ``named``: the name of a hash in a medium. ``names``: what each
        hash is the hash of.
        """

    def take_events(self) -> Iterable[Any]:
        """The KV events of host memory."""
        events: Iterable[Any] = self.real.take_events()
        return events

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """How many tokens behind the ``num_computed_tokens`` first are in host memory."""
        self._loaded[request.request_id] = (num_computed_tokens, 0, ())
        found: tuple[int | None, bool] = self.real.get_num_new_matched_tokens(request, num_computed_tokens)
        return found

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """The request has blocks, into which so many tokens are loaded."""
        first, _, _ = self._loaded.get(request.request_id, (0, 0, ()))
        tables = tuple(tuple(map(int, each)) for each in blocks.get_block_ids())
        self._loaded[request.request_id] = (first, first + num_external_tokens, tables)
        self.real.update_state_after_alloc(request, blocks, num_external_tokens)

    def update_connector_output(self, connector_output: Any) -> None:
        """Copies are done."""
        self.real.update_connector_output(connector_output)


class HostConnector(HostCopies):
    """The scheduler's half of vLLM's ``OffloadingConnector`` as a scheduler calls it. ``described``: by group of layers
    whose slots KV events describe, the tokens of a block. ``within_step``: some loads end before their step computes.
    """

    def __init__(self, real: Any, told: Any, parts: int, described: Mapping[int, int], within_step: bool) -> None:
        super().__init__(real, told, parts)
        self._described, self._within_step = described, within_step

    # What the run asks.

    def answer(self, received: Sequence[int], stored: Sequence[int]) -> Any:
        """What a worker says of copies that are done there, by their jobs."""
        told = self._told()
        for job in (*(self._jobs[request] for request in received), *stored):
            told.mark_completed(job)
        return told if told.completed_jobs else None

    def forgets(self, received: Sequence[int], stored: Sequence[int]) -> None:
        """All workers have told of these copies."""
        del stored
        for request in received:
            del self._jobs[request]

    def shown(self) -> HostTierSnapshot:
        """The slots of host memory, as the release's manager has them."""
        numbers = {key: number for number, key in enumerate(host_slots.chunks(self.real.manager), start=1)}
        shown = host_slots.shown(self.real.manager, lambda key: numbers.setdefault(key, len(numbers) + 1))
        return replace(shown, busy=self.has_pending_push_work())

    def cached(self, named: Callable[[bytes, Medium], Key], names: DigestTexts) -> list[Key]:
        """The keys that can be found, since their copies have ended: each by its own hash, or by those of its blocks
        where events describe them.
        """
        found = (key for key, (_, count) in host_slots.chunks(self.real.manager).items() if count >= 0)
        return [named(one, MEDIUM) for key in found for one in self._said(key, names)]

    def _said(self, key: bytes, names: DigestTexts) -> list[bytes]:
        """The hashes by which events name a slot."""
        digest, group = key[:-GROUP], key[-GROUP:]
        size = self._described.get(int.from_bytes(group, "big"))
        return [key] if size is None else [one + group for one in names.blocks_of(digest, self._parts, size)]

    # What a scheduler calls.

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """What the workers are told with a step."""
        meta = self.real.build_connector_meta(scheduler_output)
        for number, job in meta.load_jobs.items():
            first, end, tables = self._loaded[job.req_id]
            pairs = tuple((place, block) for block, place in self._pairs(job.dst_spec, job.src_spec))
            within_step = self._within_step and job.sync
            self._loads[int(job.req_id)] = RequestLoad(first, end, tables, number, pairs, within_step=within_step)
            self._jobs[int(job.req_id)] = number
        for number, job in meta.store_jobs.items():
            self._stores[number] = tuple(self._pairs(job.src_spec, job.dst_spec))
        self._flushed = tuple(sorted(meta.jobs_to_flush or ()))
        return meta

    def _pairs(self, device: Any, host: Any) -> Iterator[tuple[int, int]]:
        """Each device block of a copy with its place in host memory, as vLLM's worker pairs them
        (``SingleDirectionOffloadingHandler``): group after group; the first block of a group may stand inside a slot.
        """
        blocks, slots, parts = [*map(int, device.block_ids)], [*map(int, host.block_ids)], self._parts
        at = slot = 0
        for size, index in zip(device.group_sizes, device.block_indices, strict=True):
            skipped = index % parts
            for k in range(size):
                ordinal, part = divmod(skipped + k, parts)
                yield blocks[at + k], slots[slot + ordinal] * parts + part + 1
            at += size
            slot += -(-(size + skipped) // parts) if size else 0

    def request_finished_all_groups(
        self, request: Any, block_ids: Sequence[Sequence[int]]
    ) -> tuple[bool, dict[str, Any] | None]:
        """A request ends."""
        del block_ids
        answer: tuple[bool, dict[str, Any] | None] = self.real.request_finished(request)
        return answer

    def on_new_request(self, request: Any) -> None:
        """A request comes."""
        self.real.on_new_request(request)

    def reset_cache(self) -> bool:
        """Host memory forgets everything."""
        self.real.reset_cache()
        return True

    def has_pending_push_work(self) -> bool:
        """Copies go on without a request."""
        return bool(self.real.has_pending_push_work())

    def get_external_cache_hit_sources(self, request: Any, num_external_tokens: int) -> Any:
        """From which memory the tokens come."""
        return self.real.get_external_cache_hit_sources(request, num_external_tokens)

"""What a server of SGLang does with its host memory (HiCache), noted in order.

The release's controller, its host pool and its tree run unchanged. Instead of the kernels that copy, a copy is begun on
the stream to which the call belongs (``copying``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from conformance.driver.protocol import EngineError, Unsupported
from conformance.engines.sglang.releases.release import Release
from conformance.engines.sglang.server.copying import CopyDevice, CopyStream
from conformance.stems.host_server.protocol import HostPoolSnapshot, HostStep, Pair

STORES, LOADS = "device_to_host_stream", "host_to_device_stream"
EVERYTHING = 1 << 20  # tokens, more than a pool has
ANCHOR = "kv"  # the pool of the layers without a window


def has_host_memory(scheduler: Any) -> bool:
    """A server has host memory."""
    return getattr(scheduler.tree_cache, "cache_controller", None) is not None


class HostMemory:
    """Notes what one server does with its host memory. ``steps``: since they were taken last."""

    def __init__(self, release: Release, scheduler: Any, device: CopyDevice) -> None:
        if not has_host_memory(scheduler):
            raise Unsupported("a server without host memory")
        self._release, self._tree, self._device = release, scheduler.tree_cache, device
        self._controller = scheduler.tree_cache.cache_controller
        engine = getattr(self._controller, "l2_transfer_engine", None)
        if engine is None:
            raise Unsupported("the release has no engine of its own for copies to and from host memory")
        self._streams: dict[bool, CopyStream] = {True: getattr(engine, STORES), False: getattr(engine, LOADS)}
        names = [str(entry.name.value) for entry in self._controller.mem_pool_host.entries]
        if names != [ANCHOR]:
            raise Unsupported(f"a server whose host memory has the pools {', '.join(names)}")
        self._pool = self._controller.mem_pool_host.anchor_entry.host_pool
        self.page_size = int(self._pool.page_size)
        self._copies = 0
        self.steps: list[HostStep] = []
        self._watch()

    def take(self) -> list[HostStep]:
        """What the server has done since this was called last."""
        steps, self.steps = self.steps, []
        return steps

    @property
    def slots(self) -> int:
        """The pages of the host pool. They count from 1 here."""
        return int(self._pool.page_num)

    def end(self, stores: bool, count: int) -> None:
        """So many copies of one direction are done, in their order; fewer where fewer are in flight."""
        for _ in range(count):
            if not self._streams[stores].end():
                return

    def read(self) -> HostPoolSnapshot:
        """The free list of the pool, and what it counts."""
        listed = [self._pool.free_slots, *self._pool.release_slots]
        free = [page for part in listed for page in self._slots_of(part.tolist())]
        used = self._slots_of(self._pool.slot_used.nonzero().flatten().tolist())
        return HostPoolSnapshot(free, used, int(self._pool.available_size()) // self.page_size)

    def kept(self) -> int:
        """How many slots stay in use when all that can be evicted is evicted."""
        self._release.evict(self._tree, EVERYTHING, EVERYTHING, EVERYTHING)
        self._tree.evict_host(self.slots * self.page_size)
        return self.slots - len(self.read().free)

    def read_layers(self) -> None:
        """A forward pass reads each layer of the device's pool, which waits for its load before that."""
        pool = self._controller.mem_pool_device
        for layer in range(int(pool.layer_num)):
            pool.get_key_buffer(int(pool.start_layer) + layer)

    # Watched calls.

    def _watch(self) -> None:
        pool, controller, tree = self._pool, self._controller, self._tree
        self._put(pool, "free", self._freed)
        self._put(pool, "clear", self._cleared)
        self._put(controller, "write", self._reserved)
        self._put(controller, "load", self._promised)
        self._put(tree, "writing_check", self._checked("ongoing_write_through", "published"))
        self._put(tree, "loading_check", self._checked("ongoing_load_back", "loaded"))
        pool.backup_from_device_all_layer = self._stores
        pool.load_to_device_per_layer = self._loads

    @staticmethod
    def _put(thing: Any, name: str, call: Callable[..., Any]) -> None:
        real = getattr(thing, name)
        setattr(thing, name, functools.wraps(real)(functools.partial(call, real)))

    def _freed(self, real: Callable[..., Any], indices: Tensor) -> Any:
        self.steps.append(HostStep("freed", pairs=tuple((slot, 0) for slot in self._slots_of(indices.tolist()))))
        return real(indices)

    def _cleared(self, real: Callable[..., Any]) -> Any:
        self.steps.append(HostStep("cleared"))
        return real()

    def _reserved(self, real: Callable[..., Any], device_indices: Tensor, *args: Any, **given: Any) -> Any:
        before = len(self.steps)
        found = real(device_indices, *args, **given)
        if found is not None:
            begun = [at for at, step in enumerate(self.steps) if at >= before and step.kind == "stores"]
            at = min(begun, default=len(self.steps))  # some releases begin the copy within this call
            step = HostStep("reserved", pairs=self._pairs(found, device_indices), ack=given["node_id"])
            self.steps.insert(at, step)
        return found

    def _promised(self, real: Callable[..., Any], host_indices: Tensor, *args: Any, **given: Any) -> Any:
        found = real(host_indices, *args, **given)
        if found is not None:
            self.steps.append(HostStep("promised", pairs=self._pairs(host_indices, found), ack=given["node_id"]))
        return found

    def _checked(self, ongoing: str, kind: str) -> Callable[..., Any]:
        def call(real: Callable[..., Any], *args: Any, **given: Any) -> Any:
            before = dict(getattr(self._tree, ongoing))
            answer = real(*args, **given)
            gone = [ack for ack in before if ack not in getattr(self._tree, ongoing)]
            self.steps.extend(HostStep(kind, ack=ack) for ack in gone)
            return answer

        return call

    # Copies.

    def _stores(self, _pool: Any, host_indices: Tensor, device_indices: Tensor, *_: Any, **__: Any) -> None:
        self._begins(self._pairs(host_indices, device_indices), stores=True)

    def _loads(self, pool: Any, host_indices: Tensor, device_indices: Tensor, layer: int, *_: Any, **__: Any) -> None:
        if layer == int(pool.layer_num) - 1:  # the layers of a load come in their order, and it is done with the last
            self._begins(self._pairs(host_indices, device_indices), stores=False)

    def _begins(self, pairs: tuple[Pair, ...], stores: bool) -> None:
        stream = self._device.current_stream()
        if stream is not self._streams[stores]:
            raise EngineError("a copy between device and host memory is on a stream of something else")
        self._copies += 1
        number, kind = self._copies, "stores" if stores else "loads"
        self.steps.append(HostStep(kind, pairs=pairs, copy=number, fenced=stream.fenced))
        stream.fenced = False
        stream.begin(lambda: self.steps.append(HostStep("ended", copy=number)))

    def _pairs(self, host: Tensor, device: Tensor) -> tuple[Pair, ...]:
        """The slots of the host with their device blocks, each a page: block 0 where a slot has not one whole block,
        token by token.
        """
        size = self.page_size
        found: dict[int, set[tuple[int, int]]] = {}
        for place, token in zip(host.tolist(), device.tolist(), strict=True):
            found.setdefault(place // size + 1, set()).add((place % size, token))
        return tuple((slot, self._block(tokens)) for slot, tokens in found.items())

    def _block(self, tokens: Iterable[tuple[int, int]]) -> int:
        size = self.page_size
        blocks = {token // size for _, token in tokens}
        whole = sorted(tokens) == [(at, blocks_first * size + at) for blocks_first in blocks for at in range(size)]
        return blocks.pop() if whole and len(blocks) == 1 else 0

    def _slots_of(self, places: list[int]) -> list[int]:
        """The slots of places in the host pool, one for each whole page, in their order."""
        size = self.page_size
        found = [place // size + 1 for place in places[::size]]
        if places != [(slot - 1) * size + at for slot in found for at in range(size)]:
            raise EngineError("the places of the host pool are not given out page by page")
        return found

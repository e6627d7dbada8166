"""What a server of SGLang does with its host memory (HiCache), noted in order.

The release's controller, its host pool and its tree run unchanged. Instead of the kernels that copy, a copy is begun on
the stream to which the call belongs (``copying``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor

from conformance.driver.protocol import EngineError, Unsupported
from conformance.driver.shadow import FULL, SWA
from conformance.engines.sglang.releases.release import Release
from conformance.engines.sglang.server.copying import CopyDevice, CopyStream
from conformance.stems.host_server.protocol import HostPoolSnapshot, HostStep, Pair

STORES, LOADS = "device_to_host_stream", "host_to_device_stream"
EVERYTHING = 1 << 20  # tokens, more than a pool has
NAMES = {"kv": FULL, "swa": SWA}  # of the release's pools


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
        engine = self._controller.l2_transfer_engine
        if not hasattr(self._controller, "load_fence_stream"):  # before 0.5.19
            raise Unsupported("the release's copies from host memory wait for no forward pass")
        self._streams: dict[bool, CopyStream] = {True: getattr(engine, STORES), False: getattr(engine, LOADS)}
        entries = {str(entry.name.value): entry for entry in self._controller.mem_pool_host.entries}
        if unknown := sorted(entries.keys() - NAMES.keys()):
            raise Unsupported(f"a server whose host memory has the pools {', '.join(unknown)}")
        self._entries = {NAMES[name]: entry for name, entry in entries.items()}
        self.page_size = int(scheduler.page_size)
        self._copies = 0
        self._noted: set[int] = set()  # the operations in the controller's queues that are noted
        self._taken: set[tuple[str, int]] = set()  # slots that were taken, for no operation yet
        self._barriers: Any = None
        self.steps: list[HostStep] = []
        self._watch()

    def take(self) -> list[HostStep]:
        """What the server has done since this was called last."""
        steps, self.steps = self.steps, []
        return steps

    @property
    def slots(self) -> dict[str, int]:
        """The pages of each pool. They count from 1 here."""
        return {name: int(entry.host_pool.page_num) for name, entry in self._entries.items()}

    def end(self, stores: bool, count: int) -> None:
        """So many copies of one direction are done, in their order; fewer where fewer are in flight."""
        for _ in range(count):
            if not self._streams[stores].end():
                return

    def read(self) -> dict[str, HostPoolSnapshot]:
        """The free list of each pool, and what it counts."""
        return {name: self._read(entry.host_pool) for name, entry in self._entries.items()}

    def _read(self, pool: Any) -> HostPoolSnapshot:
        free = [slot for part in (pool.free_slots, *pool.release_slots) for slot in self._slots_of(part.tolist())]
        used = self._slots_of(pool.slot_used.nonzero().flatten().tolist())
        return HostPoolSnapshot(int(pool.page_num), free, used, int(pool.available_size()) // self.page_size)

    def kept(self) -> int:
        """How many slots stay in use when all that can be evicted is evicted."""
        self._release.evict(self._tree, EVERYTHING, EVERYTHING, EVERYTHING)
        for component in self._tree.tree_components:
            self._tree.evict_host(EVERYTHING, component)
        return sum(len(seen.used) for seen in self.read().values())

    def read_layers(self) -> None:
        """A forward pass reads each layer of the device's pools, which waits for its load before that."""
        pool = self._controller.mem_pool_device
        for layer in range(int(self._controller.layer_done_counter.num_layers)):
            pool.get_key_buffer(int(pool.start_layer or 0) + layer)

    def watch_barriers(self, scheduler: Any) -> None:
        """Notes where the scheduler's stream waits for all forward passes: what is copied later waits for them, too."""
        stream = scheduler.schedule_stream
        if stream is not self._barriers:
            self._barriers = stream
            stream.wait_stream = lambda _: self.steps.append(HostStep("ordered"))
            stream.wait_event = lambda _: None  # what requests share is read, and KV cache may still be written

    # Watched calls.

    def _watch(self) -> None:
        controller, tree = self._controller, self._tree
        for name, entry in self._entries.items():
            self._put(entry.host_pool, "alloc", functools.partial(self._takes, name))
            self._put(entry.host_pool, "free", functools.partial(self._freed, name))
            self._put(entry.host_pool, "clear", functools.partial(self._cleared, name))
            entry.host_pool.backup_from_device_all_layer = functools.partial(self._stores, name)
            entry.host_pool.load_to_device_per_layer = functools.partial(self._loads, name)
        self._put(controller, "write", self._writes)
        self._put(controller, "start_writing", self._begins_writing)
        self._put(controller, "load", self._promises)
        self._put(tree, "writing_check", self._checked("ongoing_write_through", "published"))
        self._put(tree, "loading_check", self._checked("ongoing_load_back", "loaded"))

    @staticmethod
    def _put(thing: Any, name: str, call: Callable[..., Any]) -> None:
        real = getattr(thing, name)
        setattr(thing, name, functools.wraps(real)(functools.partial(call, real)))

    def _takes(self, name: str, real: Callable[..., Any], *args: Any, **given: Any) -> Any:
        found = real(*args, **given)
        if found is not None:
            self._taken |= {(name, slot) for slot in self._slots_of(found.tolist())}
        return found

    def _freed(self, name: str, real: Callable[..., Any], indices: Tensor) -> Any:
        """Slots are given back. Those that were taken for nothing, since another pool had none, were never reserved."""
        slots = self._slots_of(indices.tolist())
        pairs = tuple((slot, 0) for slot in slots if (name, slot) not in self._taken)
        self._taken -= {(name, slot) for slot in slots}
        if pairs:
            self.steps.append(HostStep("freed", name, pairs))
        return real(indices)

    def _cleared(self, name: str, real: Callable[..., Any]) -> Any:
        self.steps.append(HostStep("cleared", name))
        return real()

    def _writes(self, real: Callable[..., Any], *args: Any, **given: Any) -> Any:
        found = real(*args, **given)
        self._note(self._controller.write_queue, "reserved")
        return found

    def _begins_writing(self, real: Callable[..., Any]) -> Any:
        self._note(self._controller.write_queue, "reserved")  # some releases begin to write within ``write``
        return real()

    def _promises(self, real: Callable[..., Any], *args: Any, **given: Any) -> Any:
        found = real(*args, **given)
        self._note(self._controller.load_queue, "promised")
        return found

    def _note(self, queue: Iterable[Any], kind: str) -> None:
        """The operations that have come to a queue of the controller."""
        for operation in [one for one in queue if one.id not in self._noted]:
            self._noted.add(operation.id)
            for name, host, device in self._moved(operation):
                pairs = self._pairs(host, device)
                self._taken -= {(name, slot) for slot, _ in pairs}
                if pairs:
                    self.steps.append(HostStep(kind, name, pairs, ack=operation.node_ids[0]))

    def _moved(self, operation: Any) -> Iterator[tuple[str, Tensor, Tensor]]:
        """What an operation of the controller moves, of each pool. A pool that has no places of its own moves with
        another one.
        """
        yield FULL, operation.host_indices, operation.device_indices
        for transfer in operation.pool_transfers or ():
            name = NAMES.get(str(transfer.name.value))
            if name in self._entries and transfer.indices_from_pool is None:
                yield name, transfer.host_indices, transfer.device_indices

    def _checked(self, ongoing: str, kind: str) -> Callable[..., Any]:
        def call(real: Callable[..., Any], *args: Any, **given: Any) -> Any:
            before = dict(getattr(self._tree, ongoing))
            answer = real(*args, **given)
            gone = [ack for ack in before if ack not in getattr(self._tree, ongoing)]
            self.steps.extend(HostStep(kind, ack=ack) for ack in gone)
            return answer

        return call

    # Copies.

    def _stores(self, name: str, _pool: Any, host: Tensor, device: Tensor, *_: Any, **__: Any) -> None:
        self._begins(name, self._pairs(host, device), stores=True)

    def _loads(self, name: str, pool: Any, host: Tensor, device: Tensor, layer: int, *_: Any, **__: Any) -> None:
        if layer == int(pool.layer_num) - 1:  # the layers of a load come in their order, and it is done with the last
            self._begins(name, self._pairs(host, device), stores=False)

    def _begins(self, name: str, pairs: tuple[Pair, ...], stores: bool) -> None:
        stream = self._device.current_stream()
        if stream is not self._streams[stores]:
            raise EngineError("a copy between device and host memory is on a stream of something else")
        self._copies += 1
        number = self._copies
        self.steps.append(HostStep("stores" if stores else "loads", name, pairs, copy=number, fenced=stream.fenced))
        stream.begin(lambda: self.steps.append(HostStep("ended", name, copy=number)))

    def _pairs(self, host: Tensor, device: Tensor) -> tuple[Pair, ...]:
        """The slots of the host with their device blocks, each a page: block 0 where a slot has not one whole block,
        token by token.
        """
        size = self.page_size
        found: dict[int, set[tuple[int, int]]] = {}
        for place, token in zip(host.tolist(), device.tolist(), strict=True):
            found.setdefault(place // size + 1, set()).add((place % size, token))
        return tuple((slot, self._block(tokens)) for slot, tokens in found.items())

    def _block(self, tokens: set[tuple[int, int]]) -> int:
        """The block that has these tokens, each at its place."""
        size = self.page_size
        block = min(token for _, token in tokens) // size
        return block if tokens == {(at, block * size + at) for at in range(size)} else 0

    def _slots_of(self, places: list[int]) -> list[int]:
        """The slots of places in a host pool, one for each whole page, in their order."""
        size = self.page_size
        found = [place // size + 1 for place in places[::size]]
        if places != [(slot - 1) * size + at for slot in found for at in range(size)]:
            raise EngineError("the places of a host pool are not given out page by page")
        return found

"""What a server of SGLang does with its host memory (HiCache), noted in order.

The release's controller, its host pool and its tree run unchanged. Instead of the kernels that copy, a copy is begun on
the stream to which the call belongs (``copying``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from torch import Tensor

from conformance.driver.protocol import EngineError, Key, Unsupported
from conformance.driver.shadow import FULL, STATES, SWA
from conformance.engines.sglang.releases.release import Release
from conformance.engines.sglang.releases.server_parts import has_storage, marks_of, orders_loads, recurrent_layers
from conformance.engines.sglang.releases.states import StateMarks
from conformance.engines.sglang.server.copying import CopyDevice, CopyStream
from conformance.engines.sglang.server.host_pages import HostPages
from conformance.engines.sglang.server.storage_memory import STAGED, StorageWatch, watch_call
from conformance.stems.host_server.protocol import HostPoolSnapshot, HostStep, Pair

STORES, LOADS = "device_to_host_stream", "host_to_device_stream"
EVERYTHING = 1 << 20  # tokens, more than a pool has
NAMES = {"kv": FULL, "swa": SWA, "mamba": STATES}  # of the release's pools


class HostWatch:
    """Notes what one server does with its host memory. ``steps``: since they were taken last."""

    def __init__(self, release: Release, scheduler: Any, device: CopyDevice, marks: StateMarks) -> None:
        self._release, self._tree, self._device = release, scheduler.tree_cache, device
        self._controller = scheduler.tree_cache.cache_controller
        engine = self._controller.l2_transfer_engine
        if not orders_loads(self._controller):
            raise Unsupported("the release's copies from host memory wait for no forward pass")
        self._streams: dict[bool, CopyStream] = {True: getattr(engine, STORES), False: getattr(engine, LOADS)}
        entries = {str(entry.name.value): entry for entry in self._controller.mem_pool_host.entries}
        if unknown := sorted(entries.keys() - NAMES.keys()):
            raise Unsupported(f"a server whose host memory has the pools {', '.join(unknown)}")
        self._entries = {NAMES[name]: entry for name, entry in entries.items()}
        self._rows = scheduler.req_to_token_pool
        self._kv = scheduler.token_to_kv_pool_allocator.get_kvcache()
        self._copies, self._marks = 0, marks
        self._noted: set[int] = set()  # the operations in the controller's queues that are noted
        self._taken: set[tuple[str, int]] = set()  # slots that were taken, for no operation yet
        self._barriers: Any = None
        self._pages = HostPages()
        self._pages_of: Callable[[int], Collection[Key]] = _no_pages
        self.steps: list[HostStep] = []
        self._watch()
        watched = scheduler, NAMES, self._slots, self._free, self._note_storage
        self.storage = StorageWatch(*watched) if has_storage(self._controller) else None

    def follow_pages(self, of: Callable[[int], Collection[Key]]) -> None:
        """From now on it is followed which pages are copied to the host. ``of``: the pages of a node."""
        self._pages_of = of

    def whole(self, pages: Collection[Key]) -> list[Key]:
        """Those of these pages with slots on the host that are copied there, so that the server has heard of it."""
        return self._pages.whole(pages)

    def take(self) -> list[HostStep]:
        """What the server has done since this was called last."""
        steps, self.steps = self.steps, []
        return steps

    @property
    def slots(self) -> dict[str, int]:
        """The pages of each pool. They count from 1 here."""
        return {name: int(entry.host_pool.page_num) for name, entry in self._entries.items()}

    @property
    def pages(self) -> dict[str, int]:
        """The tokens of a slot of each pool; a state is one."""
        return {name: int(entry.host_pool.page_size) for name, entry in self._entries.items()}

    def end(self, stores: bool, count: int) -> None:
        """So many copies of one direction are done, in their order; fewer where fewer are in flight."""
        for _ in range(count):
            if not self._streams[stores].end():
                return

    def read(self) -> dict[str, HostPoolSnapshot]:
        """The free list of each pool, and what it counts."""
        return {name: self._read(name, entry.host_pool) for name, entry in self._entries.items()}

    def _read(self, name: str, pool: Any) -> HostPoolSnapshot:
        size, listed = int(pool.page_size), (pool.free_slots, *pool.release_slots)
        free = [slot for part in listed for slot in slots_of(part.tolist(), size)]
        marks = marks_of(pool)
        used = None if marks is None else slots_of(marks.nonzero().flatten().tolist(), size)
        return HostPoolSnapshot(int(pool.page_num), free, used, int(pool.available_size()) // size, self._not_yet(name))

    def _not_yet(self, name: str) -> list[int]:
        """The slots that were taken for pages of a storage, for no operation yet: they wait to be given back."""
        return [] if self.storage is None else sorted(slot for pool, slot in self._taken if pool == name)

    def kept(self) -> int:
        """How many slots stay in use when all that can be evicted is evicted."""
        self._release.evict(self._tree, EVERYTHING, EVERYTHING, EVERYTHING)
        if self.storage is not None:  # what was evicted to the host is saved, which holds it there for a while
            self.storage.saves_everything()
        for component in self._tree.tree_components:
            self._tree.evict_host(EVERYTHING, component)
        return sum(seen.slots - len(seen.free) for seen in self.read().values())

    def read_layers(self) -> None:
        """A forward pass reads each layer of the device's pools, which waits for its load before that."""
        recurrent = recurrent_layers(self._rows)
        first = int(self._kv.start_layer or 0)
        for layer in range(first, first + int(self._controller.layer_done_counter.num_layers)):
            (self._rows.mamba2_layer_cache if layer in recurrent else self._kv.get_key_buffer)(layer)

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
            watch_call(entry.host_pool, "alloc", functools.partial(self._takes, name))
            watch_call(entry.host_pool, "free", functools.partial(self._freed, name))
            watch_call(entry.host_pool, "clear", functools.partial(self._cleared, name))
            entry.host_pool.backup_from_device_all_layer = functools.partial(self._stores, name)
            entry.host_pool.load_to_device_per_layer = functools.partial(self._loads, name)
        if STATES in self._entries:
            watch_call(self._rows.mamba_pool, "copy_from", self._copies_states)
        watch_call(controller, "write", self._writes)
        watch_call(controller, "start_writing", self._begins_writing)
        watch_call(controller, "load", self._promises)
        watch_call(tree, "writing_check", self._checked("ongoing_write_through", "published"))
        watch_call(tree, "loading_check", self._checked("ongoing_load_back", "loaded"))

    def _copies_states(self, real: Callable[..., Any], sources: Tensor, targets: Tensor) -> Any:
        pairs = zip(sources.view(-1).tolist(), targets.view(-1).tolist(), strict=True)
        self.steps.append(HostStep("copied", STATES, tuple(pairs)))
        return real(sources, targets)

    def _takes(self, name: str, real: Callable[..., Any], *args: Any, **given: Any) -> Any:
        found = real(*args, **given)
        if found is not None:
            self._taken |= {(name, slot) for slot in slots_of(found.tolist(), self.pages[name])}
        return found

    def _freed(self, name: str, real: Callable[..., Any], indices: Tensor) -> Any:
        """Slots are given back. Those that were taken for nothing, since another pool had none, were never reserved."""
        slots = slots_of(indices.tolist(), self.pages[name])
        pairs = tuple((slot, 0) for slot in slots if (name, slot) not in self._taken)
        self._taken -= {(name, slot) for slot in slots}
        if pairs:
            self.steps.append(HostStep("freed", name, pairs))
            if name == FULL:
                self._pages.freed(slot for slot, _ in pairs)
        return real(indices)

    def _cleared(self, name: str, real: Callable[..., Any]) -> Any:
        self.steps.append(HostStep("cleared", name))
        if name == FULL:
            self._pages.cleared()
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
                pairs = pairs_of(host, device, self.pages[name])
                self._taken -= {(name, slot) for slot, _ in pairs}
                if kind == "promised" and name == STATES:
                    self._marks.write(slot for _, slot in pairs)
                if pairs:
                    ack = operation.node_ids[0]
                    self.steps.append(HostStep(kind, name, pairs, ack=ack))
                    if name == FULL and kind == "reserved":
                        self._pages.asked(ack, [slot for slot, _ in pairs], self._pages_of(ack))

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
            for ack in gone if kind == "published" else ():
                self._pages.heard(ack)
            return answer

        return call

    # The storage behind host memory.

    def _slots(self, name: str, places: Tensor) -> list[int]:
        return slots_of(places.tolist(), self.pages[name])

    def _free(self, name: str) -> set[int]:
        return set(self._read(name, self._entries[name].host_pool).free)

    def _note_storage(self, step: HostStep) -> None:
        if step.kind == STAGED:
            self._taken -= {(step.pool, slot) for slot, _ in step.pairs}
        self.steps.append(step)

    # Copies.

    def _stores(self, name: str, _pool: Any, host: Tensor, device: Tensor, *_: Any, **__: Any) -> None:
        self._begins(name, pairs_of(host, device, self.pages[name]), stores=True)

    def _loads(self, name: str, pool: Any, host: Tensor, device: Tensor, layer: int, *_: Any, **__: Any) -> None:
        # The layers of a load come in their order, and it is done with the last one.
        layers = self._entries[name].host_pool
        if layer == int(layers.num_mamba_layers if name == STATES else pool.layer_num) - 1:
            self._begins(name, pairs_of(host, device, self.pages[name]), stores=False)

    def _begins(self, name: str, pairs: tuple[Pair, ...], stores: bool) -> None:
        stream = self._device.current_stream()
        if stream is not self._streams[stores]:
            raise EngineError("a copy between device and host memory is on a stream of something else")
        self._copies += 1
        number = self._copies
        self.steps.append(HostStep("stores" if stores else "loads", name, pairs, copy=number, fenced=stream.fenced))
        written = [slot for slot, _ in pairs] if stores and name == FULL else []
        stream.begin(functools.partial(self._ended, HostStep("ended", name, copy=number), written))

    def _ended(self, step: HostStep, written: list[int]) -> None:
        self.steps.append(step)
        self._pages.written(written)


def _no_pages(_: int) -> Collection[Key]:
    """Nobody follows which pages are copied."""
    return ()


def pairs_of(host: Tensor, device: Tensor, size: int) -> tuple[Pair, ...]:
    """The slots of the host with their device blocks, each of so many places: block 0 where not all places of a slot go
    with those of one block, in their order. A slot may go with several blocks.
    """
    found: dict[Pair, set[Pair]] = {}
    for place, token in zip(host.view(-1).tolist(), device.view(-1).tolist(), strict=True):
        found.setdefault((place // size + 1, token // size), set()).add((place % size, token % size))
    whole = {(at, at) for at in range(size)}
    return tuple((slot, block if places == whole else 0) for (slot, block), places in found.items())


def slots_of(places: list[int], size: int) -> list[int]:
    """The slots of places in a host pool, one for each so many places, in their order."""
    found = [place // size + 1 for place in places[::size]]
    if places != [(slot - 1) * size + at for slot in found for at in range(size)]:
        raise EngineError("the places of a host pool are not given out page by page")
    return found

"""What a server of SGLang does with the storage behind its host memory (``--hicache-storage-backend``), noted in order.

The release's controller, its threads' functions, its tree and its storage ``sim`` run unchanged; ``storing`` lets the
threads go on. The storage ``sim`` keeps the keys of pages and not what they hold: that is followed in shadow memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial, wraps
from itertools import compress
from typing import Any

from torch import Tensor

from conformance.driver.shadow import FULL
from conformance.engines.sglang.releases.server_parts import says_where_fetches_begin
from conformance.engines.sglang.server.storing import THREADS, OrderedStorage, StoppingThread
from conformance.stems.host_server.protocol import HostStep, StorageOutcome, StorageThread

STAGED = "staged"
SlotsOf = Callable[[str, Tensor], list[int]]  # the slots of a pool, as places of it are given
Note = Callable[[HostStep], None]


class Holds(dict[int, Any]):
    """The holds of a tree on slots that are saved, by the number of the save. ``given_up`` is called with the number of
    each hold that is given up.
    """

    def __init__(self, given_up: Callable[[int], None]) -> None:
        super().__init__()
        self._given_up = given_up

    def pop(self, number: int, *default: Any) -> Any:
        """``dict.pop``."""
        if number in self:
            self._given_up(number)
        return super().pop(number, *default)


class StorageWatch:
    """Notes what one server does with its storage. ``names``: of the pools, by those of the release. ``slots_of``: the
    slots of places of a pool. ``free``: the free slots of a pool. ``note`` is called with each step.
    """

    def __init__(
        self, scheduler: Any, names: Mapping[str, str], slots_of: SlotsOf, free: Callable[[str], set[int]], note: Note
    ) -> None:
        self._tree, self._controller = scheduler.tree_cache, scheduler.tree_cache.cache_controller
        self._names, self._slots, self._free, self._note = names, slots_of, free, note
        self._page = int(self._controller.page_size)
        self._numbers: dict[int, int] = {}  # of operations of the release, by its own number
        self._entries: dict[tuple[str, str], int] = {}  # of what is stored, by pool and key
        self._inserts = False  # the tree has taken what was fetched last
        self._begins: dict[str, int] = {}  # of requests, the token at which a fetch begins that does not say it itself
        self._fetch: Any = None  # the operations at which the threads are that fetch and that save
        self._save: Any = None
        self._saving: list[tuple[str, dict[str, int]]] = []  # the slots of keys that a call stores, by pool
        self._controller.storage_host_pool.pin_memory = False  # pages on the way are in ordinary memory
        self._storage = OrderedStorage(self._controller.storage_backend, self._saved)
        self._watch()

    def go_on(self, thread: StorageThread, outcome: StorageOutcome) -> None:
        """One of ``THREADS`` runs to its next stop."""
        found: StoppingThread = getattr(self._controller, THREADS[thread])
        found.go_on(outcome)

    def _threads_go_on(self) -> None:
        """The scheduler waits for a thread."""
        for thread in THREADS:
            self.go_on(thread, "well")

    def saves_everything(self) -> None:
        """What is to be saved is saved, and the scheduler hears of it."""
        while self._controller.backup_thread.calls or not self._controller.backup_queue.empty():
            self.go_on("saves", "well")
        self._tree.check_hicache_events()

    def _watch(self) -> None:
        controller, tree = self._controller, self._tree
        for queue in (controller.ack_backup_queue, controller.ack_prefetch_queue, controller.prefetch_hit_queue):
            queue.others_go_on = self._threads_go_on
        if not says_where_fetches_begin(tree):
            watch_call(tree, "prefetch_from_storage", self._asks)
        watch_call(controller.prefetch_buffer, "put", self._staged)
        watch_call(controller, "_page_transfer", self._fetches)
        watch_call(controller, "page_get_func", self._fetched)
        watch_call(controller.storage_backend, "batch_get_v2", self._fetched_beside)
        watch_call(controller, "write_storage", self._saves)
        watch_call(controller, "page_set_func", self._sets)
        watch_call(controller.storage_backend, "batch_set_v2", self._sets_beside)
        watch_call(controller, "_page_backup", self._backs_up)
        watch_call(tree.tree_core, "insert_host", self._inserted)
        watch_call(tree, "_handle_prefetch_result", self._handled)
        watch_call(tree, "_finish_write_through_ack", self._published)

    # From the storage to the host.

    def _asks(
        self, real: Callable[..., Any], request: str, *args: Any, matched_prefix_tokens: Any = None, **given: Any
    ) -> Any:
        """A request asks the storage for what comes after the prefix that the device and the host have."""
        self._begins[request] = len(matched_prefix_tokens or ())
        return real(request, *args, matched_prefix_tokens=matched_prefix_tokens, **given)

    def _first_token(self, operation: Any) -> int:
        if operation.request_id in self._begins:
            return self._begins[operation.request_id]
        return int(operation.storage_start)

    def _staged(self, real: Callable[..., Any], operation: Any) -> None:
        """Slots are taken for what the storage has of a request's text. From now on a thread writes into them."""
        if operation is not None:
            first = self._first_token(operation) // self._page
            last = first + len(operation.hash_value)
            self._step(STAGED, FULL, operation, enumerated(self._slots(FULL, operation.host_indices), first))
            for name, transfer in self._beside(operation.pool_transfers):
                # Where fewer pages come than there are slots, the thread gives the others back.
                slots = self._slots(name, transfer.host_indices)[: last - first]
                self._step(STAGED, name, operation, enumerated(slots, last - len(slots)))
        real(operation)

    def _fetches(self, real: Callable[..., Any], operation: Any) -> Any:
        self._fetch = operation
        try:
            return real(operation)
        finally:
            self._fetch = None
            self._step("fetch_ended", FULL, operation)

    def _fetched(self, real: Callable[..., Any], operation: Any, keys: list[str], places: Tensor, *more: Any) -> Any:
        """Pages have come: no more than the storage gave, whatever the release counts."""
        self._storage.came = 0
        count = real(operation, keys, places, *more)
        come = self._slots(FULL, places)[: min(count, self._storage.came)]
        self._step("fetched", FULL, operation, self._stored(FULL, come, keys))
        return count

    def _fetched_beside(self, real: Callable[..., Any], transfers: list[Any], **more: Any) -> Any:
        found = real(transfers, **more)
        for name, transfer in self._beside(transfers):
            slots, well = self._slots(name, transfer.host_indices), found.get(transfer.name, ())
            pairs = self._stored(name, slots, transfer.keys)
            self._step("fetched", name, self._fetch, list(compress(pairs, well)))
        return found

    def _inserted(self, real: Callable[..., Any], anchor: Any, key: Any, places: Tensor, keys: list[str]) -> Any:
        """The tree takes slots for pages that it did not have."""
        found = real(anchor, key, places, keys)
        self._inserts = not found.host_insert_dropped
        if self._inserts:
            slots = self._slots(FULL, places[int(found.prefix_len) :])
            self._note(HostStep("inserted", FULL, tuple((slot, 0) for slot in slots)))
        return found

    def _handled(self, real: Callable[..., Any], operation: Any) -> Any:
        """The tree takes slots of the other pools, too: those that are neither free now nor wait to be given back."""
        self._inserts = False
        found = real(operation)
        for name, transfer in self._beside(operation.pool_transfers) if self._inserts else ():
            waiting = self._controller.extra_host_mem_release_queues[transfer.name].queue
            gone = self._free(name).union(*(self._slots(name, places) for places in waiting))
            kept = [slot for slot in self._slots(name, transfer.host_indices) if slot not in gone]
            self._note(HostStep("inserted", name, tuple((slot, 0) for slot in kept)))
        return found

    # From the host to the storage.

    def _saves(self, real: Callable[..., Any], places: Tensor, *args: Any, **given: Any) -> Any:
        """Slots are to be saved: a thread reads them from now on."""
        if not isinstance(self._tree.ongoing_backup, Holds):  # it is a new one after each flush
            self._tree.ongoing_backup = Holds(self._let_go)
        number = real(places, *args, **given)
        self._numbers[number] = copy = len(self._numbers) + 1
        for name, found in [(FULL, places), *((n, t.host_indices) for n, t in self._beside(given.get("extra_pools")))]:
            self._note(HostStep("saves", name, tuple((slot, 0) for slot in self._slots(name, found)), copy=copy))
        return number

    def _sets(self, real: Callable[..., Any], keys: list[str], places: Tensor, *more: Any) -> Any:
        self._saving = [(FULL, dict(zip(keys, self._slots(FULL, places), strict=True)))]
        return real(keys, places, *more)

    def _sets_beside(self, real: Callable[..., Any], transfers: list[Any], **more: Any) -> Any:
        found = self._beside(transfers)
        self._saving = [(n, dict(zip(t.keys, self._slots(n, t.host_indices), strict=True))) for n, t in found]
        return real(transfers, **more)

    def _saved(self, pool: str, keys: list[str]) -> None:
        """A call of the storage has stored these keys: what the slots hold now is kept there."""
        for name, slots in self._saving:
            if self._names.get(pool) == name:
                pairs = self._stored(name, [slots[key] for key in keys], keys)
                self._step("saved", name, self._save, pairs)

    def _backs_up(self, real: Callable[..., Any], operation: Any) -> Any:
        self._save = operation
        try:
            return real(operation)
        finally:
            self._save = None
            self._step("save_ended", FULL, operation)

    def _let_go(self, number: int) -> None:
        """The scheduler gives up its hold on slots that were saved."""
        self._note(HostStep("let_go", copy=self._numbers[number]))

    def _published(self, real: Callable[..., Any], ack: int) -> Any:
        """The scheduler has heard of the end of a copy to the host, and has it saved."""
        self._note(HostStep("published", ack=ack))
        return real(ack)

    # What steps are of.

    def _beside(self, transfers: Iterable[Any] | None) -> Iterator[tuple[str, Any]]:
        """The transfers of pools that have places of their own."""
        for one in transfers or ():
            name = self._names.get(str(one.name.value))
            if name is not None and one.indices_from_pool is None and one.host_indices is not None:
                yield name, one

    def _stored(self, name: str, slots: list[int], keys: Iterable[str]) -> list[tuple[int, int]]:
        """Slots with the numbers of the entries of the storage that these keys name."""
        entries = (self._entries.setdefault((name, key), len(self._entries) + 1) for key in keys)
        return list(zip(slots, entries, strict=False))  # of fewer slots, where fewer pages have come

    def _step(self, kind: str, pool: str, operation: Any, pairs: Iterable[tuple[int, int]] = ()) -> None:
        copy = self._numbers.setdefault(int(operation.id), len(self._numbers) + 1)
        self._note(
            HostStep(kind, pool, tuple(pairs), copy=copy, request=int(operation.request_id) if kind == STAGED else 0)
        )


def enumerated(slots: list[int], first: int) -> list[tuple[int, int]]:
    """Each slot with the number of its page in a text."""
    return [(slot, first + at) for at, slot in enumerate(slots)]


def watch_call(thing: Any, name: str, call: Callable[..., Any]) -> None:
    """From now on ``call`` stands for a call of this thing, and gets the real one first."""
    real = getattr(thing, name)
    setattr(thing, name, wraps(real)(partial(call, real)))

"""Stands for the threads and queues with which a release moves pages between host memory and a storage behind it.

The functions that the release gives to its threads run unchanged, each in a greenlet of its own (``StoppingThread``). A
thread goes on when the run says so (``StoppingThread.go_on``). It stops where its queue is empty, and before each call
of the storage (``OrderedStorage``); the run also says what becomes of the call. So other threads, and the scheduler,
come in between at these places alone: easier than threads that can be interrupted at any line. Where the server waits
for a thread to end, the thread does all that it has to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from queue import Empty, Queue
from types import SimpleNamespace
from typing import Any

import greenlet

from conformance.driver.protocol import EngineError
from conformance.stems.host_server.protocol import StorageOutcome, StorageThread

THREADS: dict[StorageThread, str] = {  # by what they do: the attribute of the release's controller
    "queries": "prefetch_thread",
    "fetches": "prefetch_io_aux_thread",
    "agrees": "prefetch_sync_thread",
    "saves": "backup_thread",
}


MOST_STOPS = 1000  # of a thread that the server waits for


class Worker(greenlet.greenlet):
    """What runs the function of a thread. ``outcome``: what becomes of the call of the storage that comes next."""

    outcome: StorageOutcome = "well"
    calls = False  # it stands before a call of the storage

    def stops(self, calls: bool = False) -> None:
        """Control goes back to whoever has let the thread go on."""
        assert self.parent is not None
        self.calls = calls
        self.parent.switch()


def this_worker(otherwise: str) -> Worker:
    """The worker that runs now. Raises ``EngineError``, which says this, where none does."""
    now = greenlet.getcurrent()
    if not isinstance(now, Worker):
        raise EngineError(otherwise)
    return now


class StorageQueue(Queue[Any]):
    """``queue.Queue``. A thread that finds it empty stops; when it goes on, and the queue is still empty, its time to
    wait is over. While the scheduler waits for an item, the threads go on (``others_go_on``).
    """

    others_go_on: Callable[[], None] | None = None

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """See ``queue.Queue``."""
        now = greenlet.getcurrent()
        if self.empty() and isinstance(now, Worker):
            now.stops()
        elif self.empty() and block and timeout is None:
            self._wait()
        if self.empty():
            raise Empty
        return super().get(block=False)

    def _wait(self) -> None:
        for _ in range(MOST_STOPS if self.others_go_on else 0):
            assert self.others_go_on is not None
            self.others_go_on()
            if not self.empty():
                return
        raise EngineError("the scheduler waits for an item of a queue, and no thread puts one there")


class StoppingThread:
    """``threading.Thread`` of a function that takes items from a queue until it is told to end."""

    def __init__(self, target: Callable[[], None], daemon: bool = False, name: str = "") -> None:
        del daemon
        self.name = name or target.__name__
        self._worker = Worker(target)

    def start(self) -> None:
        """The thread runs to its first stop."""
        self.go_on()

    def go_on(self, outcome: StorageOutcome = "well") -> None:
        """The thread runs to its next stop. ``outcome``: what becomes of the call before which it stands now. An
        exception ends the thread, and nothing else.
        """
        if self._worker.dead:
            return
        self._worker.parent, self._worker.outcome = greenlet.getcurrent(), outcome
        with suppress(OSError):  # what the storage raises; anything else is an error of the release or of a stand-in
            self._worker.switch()

    @property
    def calls(self) -> bool:
        """The thread stands before a call of the storage."""
        return not self._worker.dead and self._worker.calls

    def join(self, timeout: float | None = None) -> None:
        """The thread does what it has to do, and ends."""
        del timeout
        for _ in range(MOST_STOPS):
            if self._worker.dead:
                return
            self.go_on()
        raise EngineError(f"{self.name} does not end")

    def is_alive(self) -> bool:
        """The thread has not ended."""
        return not self._worker.dead


def threading_of(real: Any) -> SimpleNamespace:
    """Stands for the module ``threading`` in the module of the controller."""
    return SimpleNamespace(**{**vars(real), "Thread": StoppingThread})


class OrderedStorage:
    """The calls of a release's storage, each of which stops its thread, and does what the run says.

    ``saved`` is called with the keys that a call has stored, and the name of their pool in the release. ``came``: how
    many pages the last call has given, from the first on.
    """

    def __init__(self, storage: Any, saved: Callable[[str, list[str]], None]) -> None:
        self._saved, self.came = saved, 0
        for name in ("batch_exists", "batch_exists_v2", "batch_get", "batch_get_v2", "batch_set", "batch_set_v2"):
            setattr(storage, name, self._ordered(getattr(self, f"_{name}"), getattr(storage, name)))

    @staticmethod
    def _ordered(call: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
        def ordered(*args: Any, **given: Any) -> Any:
            now = greenlet.getcurrent()
            if not isinstance(now, Worker):
                return call(real, "well", *args, **given)
            now.stops(calls=True)
            if now.outcome == "raises":
                raise OSError("the storage cannot be reached")
            return call(real, now.outcome, *args, **given)

        return ordered

    @staticmethod
    def _kept(outcome: StorageOutcome, count: int) -> int:
        """Of so many pages, how many the storage has."""
        return {"well": count, "partly": count // 2, "fails": 0}[outcome]

    def _batch_exists(self, real: Callable[..., Any], outcome: StorageOutcome, keys: list[str], *more: Any) -> Any:
        return real(keys[: self._kept(outcome, len(keys))], *more)

    def _batch_exists_v2(self, real: Callable[..., Any], outcome: StorageOutcome, keys: list[str], *more: Any) -> Any:
        return real(keys[: self._kept(outcome, len(keys))], *more)

    def _batch_get(self, real: Callable[..., Any], outcome: StorageOutcome, keys: list[str], *more: Any) -> Any:
        found = real(keys, *more)
        kept = self._kept(outcome, len(keys))
        self.came = next((at for at, page in enumerate(found) if page is None or at >= kept), len(found))
        return [page if at < self.came else None for at, page in enumerate(found)]

    def _batch_get_v2(
        self, real: Callable[..., Any], outcome: StorageOutcome, transfers: list[Any], **more: Any
    ) -> Any:
        found: Mapping[str, list[bool]] = real(transfers, **more)
        return {name: self._first(outcome, oks) for name, oks in found.items()}

    def _first(self, outcome: StorageOutcome, oks: list[bool]) -> list[bool]:
        kept = self._kept(outcome, len(oks))
        return [ok and at < kept for at, ok in enumerate(oks)]

    def _batch_set(
        self, real: Callable[..., Any], outcome: StorageOutcome, keys: list[str], values: Any = None, **more: Any
    ) -> bool:
        kept = self._kept(outcome, len(keys))
        done = bool(real(keys[:kept], None if values is None else values[:kept], **more))
        self._saved("kv", keys[:kept])
        return done and kept == len(keys)

    def _batch_set_v2(
        self, real: Callable[..., Any], outcome: StorageOutcome, transfers: list[Any], **more: Any
    ) -> Any:
        found = {}
        for one in transfers:
            every = list(one.keys or ())
            kept = self._kept(outcome, len(every))
            one.keys = every[:kept]
            try:
                real([one], **more)
            finally:
                one.keys = every
            self._saved(str(one.name.value), every[:kept])
            found[one.name] = [at < kept for at in range(len(every))]
        return found


class PageHashes:
    """Stands for the extension in C++ that hashes pages of tokens. The hashes are those of the release's Rust core
    (``tests/test_storage.py``): of each page the SHA-256 of the digest of the page before it and of its tokens.
    """

    @staticmethod
    def get_hash(
        tokens: Sequence[int], length: int, width: int, bigram: bool, before: bytes | None, page: int | None
    ) -> str | list[str]:
        """Of ``length`` units of ``width`` tokens: a hash for each page of so many units, or one of all."""
        step = 1 if bigram else width
        units = [tuple(tokens[at * step : at * step + width]) for at in range(length)]
        digest, found = before or b"", []
        for first in range(0, length, page or max(length, 1)):
            words = [token for unit in units[first : first + (page or length)] for token in unit]
            digest = sha256(digest + b"".join(int(word).to_bytes(4, "little") for word in words)).digest()
            found.append(digest.hex())
        return found if page else found[0]

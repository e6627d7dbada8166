"""What an engine must implement to be driven as the room ``host_server``: a whole server with host memory.

Clients send what they send to a server without it (``conformance.stems.server.protocol``). Beside that the server tells
in which order it gave its host memory out, copied, and gave it back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from conformance.driver.shadow import FULL, STATES, SWA
from conformance.stems.lock_ref.protocol import LockRefSnapshot
from conformance.stems.server.protocol import ServerEngine, ServerPass

StorageThread = Literal["queries", "fetches", "agrees", "saves"]  # between host memory and a storage behind it
StorageOutcome = Literal["well", "partly", "fails", "raises"]  # what becomes of one call of the storage

Pair = tuple[int, int]  # a slot of the host and a block of the device, each a page from 1 on; block 0: no whole block
POOLS = (FULL, SWA, STATES)  # the names of pools, on the device and on the host; a host may have the first alone


class HostStep(NamedTuple):
    """One thing that a server did with its host memory.

    ``kind``: ``reserved`` (slots were taken, into which the blocks of ``pairs`` will be copied), ``stores`` (a copy of
    these blocks into these slots is in flight), ``published`` (the server has heard of the end of such a copy, and its
    slots may be loaded), ``promised`` (slots will be loaded into these blocks), ``loads`` (a copy of these slots into
    these blocks is in flight), ``loaded`` (the server has heard of its end), ``ended`` (a copy is done), ``freed``
    (slots were given back; their blocks are 0), ``cleared`` (all were), ``ordered`` (copies that are begun later
    wait for the forward passes that were launched before), or ``copied`` (states were copied on the device; ``pairs``
    are sources and targets).

    ``pool``: of ``POOLS``. ``ack``: the engine's number by which ``published`` and ``loaded`` say which ``reserved``
    and ``promised`` of all pools they end. ``copy``: the number of a copy. ``fenced``: it waits for the forward passes
    that were launched before.
    """

    kind: str
    pool: str = FULL
    pairs: tuple[Pair, ...] = ()
    ack: int = 0
    copy: int = 0
    fenced: bool = True
    request: int = 0


@dataclass(frozen=True)
class HostPoolSnapshot:
    """One pool of host memory. ``slots``: how many it has. ``free``: the free ones, in any order. ``used``: those that
    the pool has marked as used, ``None`` where it keeps no marks. ``available``: how many slots are free, as it
    reports it. ``taken``: those that were taken for no copy and no fetch yet; they wait to be given back.
    """

    slots: int
    free: Sequence[int]
    used: Sequence[int] | None
    available: int
    taken: Sequence[int] = ()


class HostServerEngine(ServerEngine, Protocol):
    """A server with host memory. Its configuration is that of the room ``server``.

    ``host_slots``: how many slots each of its pools has, by name. ``host_pages``: the tokens of a slot of each pool,
    as many as those of a block; a state is one.
    """

    host_slots: Mapping[str, int]
    host_pages: Mapping[str, int]
    storage_threads: Sequence[StorageThread]

    def host_steps(self) -> Sequence[HostStep]:
        """What the server did with its host memory since this was asked last. Asked before each event is explained, and
        after copies were ended.
        """

    def end_copies(self, stores: bool, count: int) -> None:
        """So many copies of one direction are done, in the order in which they were begun; fewer where fewer are in
        flight. ``stores``: those from the device to the host.
        """

    def storage_goes_on(self, thread: StorageThread, outcome: StorageOutcome) -> None:
        """One of ``storage_threads`` runs to its next stop: where it has nothing to do, or before a call of the
        storage. ``outcome``: what becomes of the call before which it stands now.
        """

    def prefix_slots(self, one: ServerPass) -> Sequence[int]:
        """The full slots, token by token, in which a pass that was just launched finds what comes before its tokens."""

    def state_slot(self, one: ServerPass) -> int:
        """The state slot that a pass that was just launched reads and writes; 0 in a model without states."""

    def swa_mapping(self) -> Sequence[int] | None:
        """The SWA slot of each full slot as it is now, 0 where there is none; ``None`` in a model without windows."""

    def tree_snapshot(self) -> LockRefSnapshot:
        """Reads the tree as it is now, and changes nothing. A part of a node that is on the host alone has no slots."""

    def kept_on_host(self) -> str:
        """What stays on the host when everything that can be evicted is evicted, on the device and on the host, in
        words; empty where nothing does. It is asked on a copy of the server; nothing changes.
        """

    def host_snapshot(self) -> Mapping[str, HostPoolSnapshot]:
        """Reads the pools of host memory as they are now, by name, and changes nothing."""

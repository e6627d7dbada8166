"""What an engine must implement to be driven as the stem ``cache``: requests and sessions over one tree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from conformance.stems.lock_ref.protocol import LockRefSnapshot
from conformance.stems.mamba_slots.protocol import MambaSlotsSnapshot
from conformance.stems.session_trim.protocol import SessionTrimEngine, SessionTrimSnapshot


class LockHold(NamedTuple):
    """What a request or a session's slot holds in the tree.

    ``node``, ``top``: the ids of the locked node and of the node at which its window ends. ``top`` is ``None`` where
    the lock has no SWA part, since it was given back early. ``text``: the token ids from the root to the end of the
    node. ``state``: it holds the node's mamba state too. For a node that has left the tree only its id is known: then
    ``top`` is -1 and ``text`` is empty.
    """

    node: int
    top: int | None
    text: list[int]
    state: bool = False


@dataclass(frozen=True)
class CacheSnapshot:
    """Rows and pools, the tree, the locks, and the mamba states as they are now.

    ``holds``: by ``("request", number)`` for each request that runs and ``("session", number)`` for each slot that has
    a row, where it holds something. ``states``: ``None`` in a cache without mamba states.
    """

    rows: SessionTrimSnapshot
    tree: LockRefSnapshot
    holds: Mapping[tuple[str, int], LockHold]
    states: MambaSlotsSnapshot | None


class CacheEngine(SessionTrimEngine, Protocol):
    """A whole cache: a ``SessionTrimEngine`` whose tree, locks and mamba states can be read too.

    Configuration: that of ``SessionTrimEngine``; ``components`` (``full``, ``swa``, and ``mamba`` in a cache with
    states); with states also ``size_mamba`` (state slots) and ``buffered``, ``doubled``, ``lazy`` (see
    ``MambaSlotsEngine``). An engine without states lacks ``track``, ``boundary`` and ``settle``.
    """

    def track(self, request: int) -> None:
        """The state at the last page boundary is written to the request's track buffer.

        Sent after tokens up to there are computed.
        """

    def release_swa(self, request: int) -> None:
        """A request that decodes gives back the SWA part of its lock early, where the engine would do so now.

        It may do so once no later token reads SWA slots of the tree, and with the same call give back the lock on the
        node's state. An engine may also do so in any other call on the request; the snapshot shows it (``LockHold``).
        """

    def boundary(self, request: int) -> None:
        """Before a tracking boundary a lazy track buffer gets its second slot.

        If none is free, it stays without; that is no error.
        """

    def settle(self, request: int) -> None:
        """After a tracking boundary a lazy track buffer gives back the slot that is not written next."""

    def evict(self, full: int, swa: int, states: int = 0) -> None:
        """Asks the tree to free so many tokens of the full and of the SWA pool, and so many mamba states.

        It frees only what nobody has locked.
        """

    def compact(self) -> None:
        """The tree merges nodes into their parents, as ``LockRefEngine.compact`` does."""

    def cache_snapshot(self) -> CacheSnapshot:
        """Reads everything as it is now, and changes nothing. Sent once after each call, in place of ``snapshot``."""

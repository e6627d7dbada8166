"""What drawn runs of the room ``host_server`` avoid, so that they find other bugs than those that are known."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from conformance.stems.exclusions import LookedPast
from conformance.stems.host_server.protocol import StorageOutcome
from conformance.stems.kv_events.reader import AGREE


class HostServerExclusion(StrEnum):
    """What runs of ``host_server`` avoid."""

    # Where models have recurrent layers: turns of the server while copies to the host are in flight, and prompts in
    # chunks beside few state slots (``Launches.avoided``), of which each turn begins several copies.
    HELD_STATES = "host_server.held_states"
    RAISING_STORAGE = "host_server.raising_storage"  # calls of the storage that raise
    # Loads that are refused since another one is under way, where models have recurrent layers: ``Launches.avoided``.
    REFUSED_LOAD = "host_server.refused_load"
    # Pages on the host that KV events say again when a window or a state of their text is copied there: what is said is
    # judged for readers that keep a set alone.
    SAID_AGAIN = "host_server.said_again"
    # KV events where models have windows that are copied to the host before the full KV of their text:
    # ``Launches.avoided``.
    WINDOW_IS_SAID = "host_server.window_is_said"
    SLOW_STORAGE = "host_server.slow_storage"  # nodes that are saved when they are evicted: ``Launches.avoided``
    UNFENCED_COPY = "host_server.unfenced_copy"  # steps that overlap: ``Launches.avoided``


def allowed(outcome: StorageOutcome, exclude: Collection[StrEnum]) -> StorageOutcome:
    """What becomes of a call of the storage: where a storage must not raise, the call fails in another way."""
    return "fails" if outcome == "raises" and HostServerExclusion.RAISING_STORAGE in exclude else outcome


EXCLUSIONS = HostServerExclusion
LOOKED_PAST = {HostServerExclusion.SAID_AGAIN: LookedPast(AGREE)}

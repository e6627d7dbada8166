"""The text of a slot that was offered since the last batch of KV events is kept, though an eviction comes before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.events import OffloadingEventsTracker

    real = OffloadingEventsTracker.take_events
    seen: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()  # by tracker: its entries after its last batch

    def take_events(self: Any, events: Any) -> Iterator[Any]:
        entries, older = self._pending_event_metadata, seen.get(self, {})
        fresh = {key: entry for key, entry in entries.items() if older.get(key) is not entry}
        yield from real(self, events)
        for key, entry in fresh.items():
            entries.setdefault(key, entry)  # its copy has not ended
        seen[self] = dict(entries)

    OffloadingEventsTracker.take_events = take_events

"""A page that is on the host already is not said again when a state or a window of its text is copied there."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from sglang.srt.disaggregation.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, StorageMedium
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    real = UnifiedRadixCache.take_events

    def take_events(self: Any) -> list[Any]:
        said = self.__dict__.setdefault("said_of_host", set())
        news = []
        for event in real(self):
            if isinstance(event, AllBlocksCleared):
                said.clear()
            elif event.medium == StorageMedium.CPU and isinstance(event, BlockStored):
                if said.issuperset(event.block_hashes):
                    continue
                said.update(event.block_hashes)
            elif event.medium == StorageMedium.CPU and isinstance(event, BlockRemoved):
                said.difference_update(event.block_hashes)
            news.append(event)
        return news

    UnifiedRadixCache.take_events = take_events

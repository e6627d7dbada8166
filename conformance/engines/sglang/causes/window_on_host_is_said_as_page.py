"""When a copy to the host ends, its node alone is said to be there, not each node whose window it copied."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    def publish_node_ids(node_id: Any, comp_xfers: Any) -> list[Any]:
        del comp_xfers
        return [node_id]

    UnifiedRadixCache._backup_publish_node_ids = staticmethod(publish_node_ids)

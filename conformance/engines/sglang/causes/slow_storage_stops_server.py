"""Where a node can neither go to the host nor be dropped, since a part of it is saved, eviction waits for the save."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    real = UnifiedRadixCache._drop_subtree_no_host

    def _drop_subtree_no_host(self: Any, node_id: int, tracker: Any) -> bool:
        while not (dropped := real(self, node_id, tracker)) and self.ongoing_backup:
            saved = self.cache_controller.ack_backup_queue.get()
            if saved.id in self.ongoing_backup:
                self.dec_host_lock_ref(*self.ongoing_backup.pop(saved.id))
        return bool(dropped)

    UnifiedRadixCache._drop_subtree_no_host = _drop_subtree_no_host

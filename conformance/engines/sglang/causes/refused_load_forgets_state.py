"""Where a load from host memory is called off, the state of the prefix on the device is copied for the request."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from sglang.srt.mem_cache.unified_cache.components.mamba import MambaComponent

    real = MambaComponent.finalize_load_back

    def finalize_load_back(self: Any, req: Any, prep: Any, success: bool) -> None:
        real(self, req, prep, success)
        if success or req is None or req.kv.holds_mamba:
            return
        source = self.tree_core.get_component_device_value(req.last_node, self.component_type)
        if source is None:
            return
        lock = self.cache.inc_lock_ref(req.last_node).to_dec_params()
        if self._alloc_request_state_slot(req) is not None:
            req.kv.mamba_cow_src_index, req.kv.mamba_needs_clear = source, False
        self.cache.dec_lock_ref(req.last_node, lock)

    MambaComponent.finalize_load_back = finalize_load_back

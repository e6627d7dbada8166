"""Where no state slot can be had, a chunk of a prompt goes on without a checkpoint in the radix cache."""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces one method of the release, for the rest of this process."""
    from sglang.srt.mem_cache.unified_cache.components.mamba import MambaComponent

    real = MambaComponent.prepare_for_caching_req

    def prepare_for_caching_req(self: Any, *args: Any, **given: Any) -> Any:
        try:
            return real(self, *args, **given)
        except AssertionError as error:
            if given.get("is_finished", True) or "Can not alloc mamba cache" not in str(error):
                raise
            return 0

    MambaComponent.prepare_for_caching_req = prepare_for_caching_req

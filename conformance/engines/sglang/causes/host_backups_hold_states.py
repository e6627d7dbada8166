"""Where no state slot can be had, a chunk of a prompt goes on without a checkpoint in the radix cache, and a match that
copies a state waits for the copies to host memory, which hold the other states.
"""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Replaces two methods of the release, for the rest of this process."""
    from sglang.srt.mem_cache.unified_cache.components.mamba import MambaComponent

    real, finalize = MambaComponent.prepare_for_caching_req, MambaComponent.finalize_match_result_in_cache

    def prepare_for_caching_req(self: Any, *args: Any, **given: Any) -> Any:
        try:
            return real(self, *args, **given)
        except AssertionError as error:
            if given.get("is_finished", True) or "Can not alloc mamba cache" not in str(error):
                raise
            return 0

    def finalize_match_result_in_cache(self: Any, *args: Any, **given: Any) -> Any:
        try:
            return finalize(self, *args, **given)
        except AssertionError as error:
            if "Can not alloc mamba cache" not in str(error):
                raise
            self.cache.writing_check(write_back=True)
            return finalize(self, *args, **given)

    MambaComponent.prepare_for_caching_req = prepare_for_caching_req
    MambaComponent.finalize_match_result_in_cache = finalize_match_result_in_cache

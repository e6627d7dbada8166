"""Edits of how vLLM loads from host memory within a step, each as a real bug would be made, and harmless ones.

Such a load ends before its step computes (``sync_load_budget_bytes`` of ``OffloadingConnector``, from 0.33.0 on), so
that its request runs in the step with which it was admitted.

``python tests/within_step_edits.py RELEASE NAME ...`` prints for each edit, as JSON, the law that drawn runs of
``block_cache`` whose host memory loads so find broken, or null. Only what is known of the release is left out of the
runs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from host_memory_edits import CONNECTOR, KNOWN, Edit, main, with_host

from conformance.stems.block_cache import rules
from conformance.stems.block_cache.exclusions import BlockCacheExclusion


def _connector(method: str, old: str, new: str) -> Edit:
    return Edit(CONNECTOR, f"OffloadingConnectorScheduler.{method}", old, new)


BUGS: Mapping[str, Edit | tuple[Edit, ...]] = {
    # The blocks of such a load have their hash from the beginning, and are taken for computed: nothing is loaded.
    "hashed_blocks_are_not_loaded": _connector(
        "update_state_after_alloc", "(sync_load or block.block_hash is None)", "block.block_hash is None"
    ),
    # The workers do not wait for the load before they compute the step.
    "workers_do_not_wait": _connector("update_state_after_alloc", " sync=sync_load,\n", "\n"),
    # The whole prompt is loaded, so that the request has nothing to compute in its step.
    "no_token_is_left": _connector(
        "_reserve_sync_load", "num_computed_tokens + num_hit_tokens >= ", "num_computed_tokens + num_hit_tokens > "
    ),
    # A request that was loaded within its step is remembered, and its next load counts as one of these, too.
    "loads_are_remembered": (
        _connector("_build_connector_meta", "self._current_batch_sync_loads = set()", "pass"),
        _connector("_reserve_sync_load", "self._current_batch_sync_loads.discard(req_id)", "pass"),
    ),
    # The slots of host memory stay promised after the load.
    "slots_stay_promised": _connector(
        "_update_connector_output",
        "self.manager.complete_load(job_status.keys, req_status.req_context)",
        "job_status.is_sync_load or self.manager.complete_load(job_status.keys, req_status.req_context)",
    ),
}
HARMLESS = {
    # Fewer tokens are loaded within a step, and more behind it.
    "less_fits": _connector(
        "_reserve_sync_load",
        "if self._current_batch_sync_load_bytes + num_bytes > budget:",
        "if self._current_batch_sync_load_bytes + 2 * num_bytes > budget:",
    ),
    # The bytes of earlier steps count, so that soon nothing is loaded within a step.
    "bytes_add_up": _connector("_build_connector_meta", "self._current_batch_sync_load_bytes = 0", "pass"),
}
EDITS: Mapping[str, Edit | tuple[Edit, ...]] = {**BUGS, **HARMLESS}
OF_THIS = (*KNOWN, BlockCacheExclusion.STATES_WITHIN_STEP)

if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:], EDITS, with_host(rules.WITHIN_STEPS), OF_THIS)

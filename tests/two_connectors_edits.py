"""Edits of what vLLM does where KV cache comes from other servers and from host memory (``MultiConnector``): each as a
real bug would be made, and harmless ones. Written down and committed before their first run.

``python tests/two_connectors_edits.py RELEASE NAME ...`` prints for each edit, as JSON, the law that drawn runs of
``block_cache`` with both connectors find broken, or null. Only what is known of the release is left out of the runs.
"""

from __future__ import annotations

import sys

import host_memory_edits
from host_memory_edits import KNOWN, Edit
from hypothesis import strategies as st

from conformance.stems.block_cache import rules
from conformance.stems.block_cache.exclusions import BlockCacheExclusion as Exclusion

V1 = "vllm.distributed.kv_transfer.kv_connector.v1"


def _both(method: str, old: str, new: str) -> Edit:
    return Edit(f"{V1}.multi_connector", f"MultiConnector.{method}", old, new)


BUGS = {
    # Both connectors load the tokens that only one of them was asked for.
    "both_load": _both("update_state_after_alloc", "(request, blocks, 0)", "(request, blocks, num_external_tokens)"),
    # The first connector is asked to load what the second one has found.
    "first_is_always_chosen": _both(
        "get_num_new_matched_tokens", "_to_connector[request.request_id] = i", "_to_connector[request.request_id] = 0"
    ),
    # The other connector does not see into which blocks KV cache comes (vLLM up to 0.24.0): a copy that still reads one
    # of them is not waited for.
    "other_sees_no_blocks": _both("update_state_after_alloc", "c.update_state_after_alloc(request, blocks, 0)", "pass"),
    # Only the first connector is told of a request that ends.
    "second_is_not_told_of_an_end": _both(
        "_aggregate_request_finished", "for c in self._connectors:", "for c in self._connectors[:1]:"
    ),
    # The blocks of a request are given back while another server reads them.
    "sends_are_not_waited_for": _both("_aggregate_request_finished", "async_saves > 0", "async_saves > 1"),
    # A connector that is not ready is not waited for.
    "unready_is_not_waited_for": _both("get_num_new_matched_tokens", "return (None, False)", "continue"),
    # What the workers say goes to the first connector.
    "workers_answer_the_first": _both("update_connector_output", ".metadata[i]", ".metadata[0]"),
    # Only the first connector is told of a new request.
    "second_is_not_told_of_a_request": _both(
        "on_new_request", "for c in self._connectors:", "for c in self._connectors[:1]:"
    ),
    # Only the first connector is told of a reset.
    "second_is_not_reset": _both("reset_cache", "for c in self._connectors]", "for c in self._connectors[:1]]"),
    # The server sleeps while copies go on.
    "sleeps_over_copies": _both("has_pending_push_work", "any(", "all("),
    # Only the first connector builds what the workers are told.
    "second_tells_workers_nothing": _both(
        "build_connector_meta", "for c in self._connectors\n", "for c in self._connectors[:1]\n"
    ),
    # A request whose blocks another server reads is no more looked at by the connector to host memory.
    "request_of_another_server_is_not_stored": Edit(
        f"{V1}.offloading.scheduler",
        "OffloadingConnectorScheduler.request_finished",
        "req_status is None",
        "req_status is None or request.kv_transfer_params",
    ),
}
# Written down after the first run of the others, to try that two transfers into one request's blocks are seen.
ADDED = {
    # Each connector loads what it has found itself.
    "each_loads_what_it_found": (
        _both(
            "get_num_new_matched_tokens",
            "if to_return[0] == 0",
            "vars(self).setdefault('each', {})[request.request_id, i] = toks\n        if to_return[0] == 0",
        ),
        _both(
            "update_state_after_alloc",
            "(request, blocks, 0)",
            "(request, blocks, min(self.each.get((request.request_id, i), 0), num_external_tokens))",
        ),
    ),
}
HARMLESS = {
    # The last connector that has tokens loads them, and not the first one.
    "last_is_chosen": _both("get_num_new_matched_tokens", "to_return[0] == 0 and toks > 0", "toks > 0"),
    # The connectors hear of a request in the other order.
    "other_order": _both("on_new_request", "in self._connectors", "in reversed(self._connectors)"),
    # Nothing comes from host memory.
    "only_the_first_is_asked": _both(
        "get_num_new_matched_tokens", "enumerate(self._connectors)", "enumerate(self._connectors[:1])"
    ),
}
OF_BOTH = {
    "transfers": st.just(True),
    "servers": st.just(True),
    "host": st.sampled_from(rules.HOSTS),
    "layers": st.sampled_from((0, 0, 1, 2, 3, 4, 5)),
}
LEFT_OUT = (*KNOWN, Exclusion.WINDOW_BEFORE_LOADS, Exclusion.BOTH_WAYS)


def main(release: str, names: list[str]) -> None:
    """Prints what is found of each edit."""
    host_memory_edits.main(release, names, {**BUGS, **ADDED, **HARMLESS}, OF_BOTH, LEFT_OUT)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

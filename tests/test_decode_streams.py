"""A step in flight uses the slots that it writes until the scheduler waits for it, on the host, by whatever call."""

from __future__ import annotations


import pytest
from decode_server_edits import DOES_NOT_WAIT, WAITS
from driven import NEWEST
from test_sglang_edits import broken

from conformance.traces import trace_files

TRACES = ("transfer_under_pass", "transfer_under_pass_of_abort")


@pytest.mark.engine
@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("edit", [*WAITS, *DOES_NOT_WAIT])
def test_a_prompt_may_be_written_where_a_step_has_ended(name: str, edit: str) -> None:
    trace = trace_files.load(name).trace
    before, after = broken(NEWEST, {**WAITS, **DOES_NOT_WAIT}[edit], "server", trace.config, [*trace.steps])
    assert before == "receive"
    assert after == ("receive" if edit in DOES_NOT_WAIT else None)

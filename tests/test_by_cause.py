"""A new finding is named by the cause whose repair mends its run."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from driven import NEWEST, have

from conformance.driver.protocol import Json
from conformance.search.connection import Subject
from conformance.traces import trace_files
from conformance.traces.outcome import Break
from slotproof.checks.by_cause import line_of, name_causes

OF_CAUSES = {
    "close_beside_running_turn": "rejected_turn_keeps_session",
    "preempted_turn_stops_server": "retracted_turn_is_saved",
    "memory_released_after_answer_stops_server": "",  # no cause is known
}


def rows(*names: str) -> list[Json]:
    """Findings as a check reports them."""
    kept = [trace_files.load(name) for name in names]
    return [Break("violation", len(one.trace.steps), one.law, "", one.why, "").row(one.trace) for one in kept]


@pytest.mark.engine
def test_the_repair_that_mends_a_run_names_its_cause() -> None:
    have(NEWEST)
    found = rows(*OF_CAUSES)
    name_causes(found, Subject("sglang", NEWEST))
    assert [row["cause"] for row in found] == list(OF_CAUSES.values())
    assert "Session.create_req" in line_of(found[0])
    assert line_of(found[2]) == ""


def test_no_cause_is_named_without_the_engine_or_the_time(tmp_path: Path) -> None:
    for subject, deadline in (
        (Subject("ours"), None),  # no cause is of this engine
        (Subject("sglang", source=tmp_path), None),  # it cannot be loaded
        (Subject("sglang", NEWEST), time.monotonic() - 1),
    ):
        found = rows("close_beside_running_turn")
        name_causes(found, subject, deadline)
        assert [row["cause"] for row in found] == [""]

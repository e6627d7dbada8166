"""A new finding is named by the cause whose repair mends its run."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from driven import NEWEST, have

from conformance.driver.protocol import EngineError, Json
from conformance.search.connection import Served, Subject
from conformance.traces import trace_files
from conformance.traces.outcome import Break
from slotproof.checks.by_cause import line_of, name_causes

OF_CAUSES = {
    "close_beside_running_turn": "rejected_turn_keeps_session",
    "preempted_turn_stops_server": "retracted_turn_is_saved",
    "memory_released_after_answer_stops_server": "finished_batch_counts_as_busy",
}


def rows(*names: str) -> list[Json]:
    """Findings as a check reports them."""
    kept = [trace_files.load(name) for name in names]
    return [Break("violation", len(one.trace.steps), one.law, "", one.why, "").row(one.trace) for one in kept]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    have(NEWEST)
    with Served(Subject("sglang", NEWEST)) as server:
        server.ready()
        yield server


@pytest.mark.engine
def test_the_repair_that_mends_a_run_names_its_cause(served: Served) -> None:
    found = rows(*OF_CAUSES)
    name_causes(found, served)
    assert [row["cause"] for row in found] == list(OF_CAUSES.values())
    assert "Session.create_req" in line_of(found[0])
    assert line_of({**found[2], "cause": ""}) == ""


@pytest.mark.engine
def test_a_cause_is_named_beside_the_repairs_that_the_engine_had(served: Served) -> None:
    found = rows("preempted_turn_stops_server")
    name_causes(found, served, repairs=["rejected_turn_keeps_session"])
    assert [row["cause"] for row in found] == ["retracted_turn_is_saved"]


@pytest.mark.engine
def test_no_cause_is_named_when_the_time_is_over(served: Served) -> None:
    found = rows("close_beside_running_turn")
    name_causes(found, served, time.monotonic() - 1)
    assert [row["cause"] for row in found] == [""]


@pytest.mark.soak
@pytest.mark.engine
def test_a_repair_holds_for_its_own_connection_alone(served: Served) -> None:
    kept = trace_files.load("close_beside_running_turn")
    with served.connect(["rejected_turn_keeps_session"]) as repaired, served.connect() as plain:
        assert not repaired.outcome(kept.trace).breaks
        assert plain.outcome(kept.trace).breaks


@pytest.mark.soak
def test_an_engine_that_cannot_be_repaired_has_no_known_cause() -> None:
    with Served(Subject("toy")) as server:
        server.ready()
        with pytest.raises(EngineError, match="has not one line with"):
            server.connect(["rejected_turn_keeps_session"])
        found = rows("close_beside_running_turn")
        name_causes(found, server)
        assert [row["cause"] for row in found] == [""]

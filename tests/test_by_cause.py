"""A new finding is named by the cause whose repair mends its run; and a release is checked without its known causes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from driven import NEWEST, have

from conformance.driver.lockstep import VIOLATION
from conformance.driver.naming import UsageError
from conformance.driver.protocol import EngineError, Json
from conformance.search import judge
from conformance.search.connection import Served, Subject
from conformance.stems.server.exclusions import ServerExclusion
from conformance.traces import cause_files, trace_files
from conformance.traces.outcome import Break, Outcome
from slotproof.checks import repaired
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


@pytest.mark.engine
def test_a_finding_says_what_its_run_shows_without_the_repairs(served: Served) -> None:
    broken, lawful, endless = rows("close_beside_running_turn", *["close_beside_running_turn"] * 2)
    lawful["trace"] = {**lawful["trace"], "steps": lawful["trace"]["steps"][:1]}
    endless["trace"] = {**endless["trace"], "steps": [{"op": "no_such_call"}]}
    repaired.tell_without([broken, lawful, endless], served, ["a_cause"])
    assert broken["base"].startswith("without the repairs the trace breaks ")
    assert broken["repaired"] == [], "the run shows it without the repairs"
    assert lawful["base"] == repaired.HOLDS
    assert lawful["repaired"] == ["a_cause"]
    assert endless["base"].startswith("without the repairs the trace ends sooner: ")


class Answers:
    """A served engine that breaks the law of a finding where each of these causes is repaired."""

    def __init__(self, breaks: Sequence[str] | None) -> None:
        self.breaks = breaks

    @contextmanager
    def connect(self, repairs: Sequence[str]) -> Iterator[Any]:
        """An engine with these repairs."""
        row = rows("close_beside_running_turn")[0]
        shows = self.breaks is not None and {*self.breaks} <= {*repairs}
        broken = Break(VIOLATION, row["step"], row["law"], row["kind"], "", "")
        yield SimpleNamespace(outcome=lambda _: Outcome((broken,) if shows else ()))


@pytest.mark.parametrize("needed", [[], ["b"], ["a", "c"], ["a", "b", "c"]])
def test_a_finding_beside_a_base_names_the_repairs_without_which_it_is_not_new(needed: list[str]) -> None:
    subject: Any = Answers(needed)
    found = {**rows("close_beside_running_turn")[0], "repaired": ["a", "b", "c"]}
    repaired.leave_needed([found], subject, cast("Any", Answers(None)), None)
    assert found["repaired"] == needed
    also = {**found, "repaired": ["a", "b", "c"]}
    repaired.leave_needed([also], subject, subject, None)
    assert also["repaired"] == ["a", "b", "c"], "the base shows it too"
    repaired.leave_needed([also], subject, cast("Any", Answers(None)), time.monotonic() - 1)
    assert also["repaired"] == ["a", "b", "c"], "the time is up"


@pytest.mark.soak
@pytest.mark.engine
def test_the_causes_of_a_release_are_those_that_it_is_known_to_have(served: Served) -> None:
    of_sglang = {cause.name for cause in cause_files.every() if cause.engine == "sglang"}
    assert {*repaired.standing(served)} == of_sglang, "the newest release has each of them"


@pytest.mark.soak
def test_a_release_without_a_repair_that_mends_cannot_be_checked_repaired() -> None:
    """The engine of this name has none of the lines, and a repair that mends nothing does not count."""
    with Served(Subject("toy")) as server:
        server.ready()
        with pytest.raises(UsageError, match="no cause of toy None is known with its repair"):
            repaired.standing(server)
        cause = cause_files.load("rejected_turn_keeps_session")
        assert not repaired._is_mended(cause, {"close_beside_running_turn"}, server)
        assert not repaired._is_mended(cause, set(), server)


@pytest.mark.soak
def test_a_repaired_cause_is_neither_listed_nor_avoided() -> None:
    asked = {"engine": "sglang", "listed": NEWEST}
    listed = judge.listed_of(asked)
    for cause, avoided in (
        ("finished_batch_counts_as_busy", {ServerExclusion.RELEASE_AFTER_ANSWER}),
        ("rejected_turn_keeps_session", set()),  # a trace of another cause is avoided by this, too
    ):
        without = judge.listed_of({**asked, "repaired": [cause]})
        gone = {one.trace for one in listed} - {one.trace for one in without}
        assert {trace for trace in OF_CAUSES if OF_CAUSES[trace] == cause} == gone & OF_CAUSES.keys()
        assert judge.excluded("server", listed) - judge.excluded("server", without) == avoided

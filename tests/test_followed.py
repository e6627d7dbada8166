"""A run that an engine does not follow is sent as far as a client may send it, which names the cause of a finding."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from conformance.driver.protocol import EngineError, Json
from conformance.driver.trace import Trace
from conformance.engines import registry
from conformance.engines.vllm import RELEASES
from conformance.planted.faults.kept import kept_run
from conformance.planted.faults.known_bugs import FAULTS
from conformance.search.connection import EngineDied, Served, Subject
from conformance.search.followed import followed
from conformance.traces.outcome import Break, Followed, Outcome, outcome
from slotproof.checks.by_cause import name_causes

OURS = registry.load("ours").makers
RUNS = [kept_run(fault).trace for fault in FAULTS.values()]


def without_its_end(trace: Trace) -> Trace:
    return Trace(trace.stem, trace.config, trace.steps[:-1])


def test_a_run_that_may_be_sent_shows_what_it_showed() -> None:
    shown = [(outcome(kept_run(fault).trace, fault.make), fault) for fault in FAULTS.values()]
    violations = [(one.first, fault) for one, fault in shown if one.first and one.verdict == "violation"]
    assert len(violations) > 60
    for first, fault in violations:
        assert followed(kept_run(fault).trace, fault.make).shows({"law": first.law, "kind": first.kind}), fault.name


@pytest.mark.parametrize("stem", [stem for stem in OURS if stem != "allocator"])
def test_what_no_client_may_send_is_left_out_and_the_rest_is_lawful(stem: str) -> None:
    """Runs on our implementation, as they are, and with an operation that is sent twice."""
    runs = [trace for trace in RUNS if trace.stem == stem]
    assert all(followed(trace, OURS[stem]) == Followed() for trace in runs)
    twice = [Trace(stem, t.config, [*t.steps[:n], t.steps[n], *t.steps[n:]]) for t in runs for n in range(len(t.steps))]
    stopped = [trace for trace in twice if outcome(trace, OURS[stem]).misused]
    assert len(stopped) > 5
    assert {followed(trace, OURS[stem]) for trace in stopped} == {Followed(left_out=1)}


@pytest.mark.parametrize("name", ["aborted_in_flight_leaks", "draft_blocks_leak", "abort_forgets_draft"])
def test_at_the_end_the_engine_comes_to_rest(name: str) -> None:
    """The last operation of a run showed what was lost. Without it the run breaks no law; the engine at rest does."""
    run, fault = without_its_end(kept_run(FAULTS[name]).trace), FAULTS[name]
    assert outcome(run, fault.make) == Outcome()
    assert followed(run, fault.make).law in ("quiescent", "available_counts", "no_leak")


# The cause of a finding.

QUIET = "load_offered_again_never_begins"
BROKEN, LAWFUL = Followed("quiescent", "answer"), Followed()
STOPPED = Outcome((), "request 4 has ended", 9)


def finding() -> Json:
    trace = Trace("block_cache", {}, [{"op": "schedule"}]).as_json()
    return {"stem": "block_cache", "law": "quiescent", "kind": "answer", "cause": "", "trace": trace}


class Repairable:
    """A served engine of vLLM. ``whole``: the causes whose repair mends the run as it stands. ``far``: what the run
    shows with the repair of each other cause where it is sent as far as it may be, or why that cannot be told; where
    a cause is not in it, the run breaks the law as before. ``before``: what it shows when it is sent so without a
    repair. ``exactly``: what it shows as it stands, where no repair mends it.
    """

    subject = Subject("vllm", RELEASES[-1])

    def __init__(
        self,
        far: Mapping[str, Any],
        whole: Sequence[str] = (),
        before: Followed = BROKEN,
        exactly: Outcome = STOPPED,
    ) -> None:
        self.far, self.whole, self.before, self.exactly = far, whole, before, exactly
        self.asked: list[str] = []

    @contextmanager
    def connect(self, repairs: Sequence[str] = ()) -> Iterator[Any]:
        cause = repairs[-1] if repairs else ""

        def exact(_: Trace) -> Outcome:
            return Outcome() if cause in self.whole else self.exactly

        def far(_: Trace) -> Followed:
            self.asked.append(cause)
            told = self.far.get(cause, BROKEN) if cause else self.before
            if isinstance(told, Exception):
                raise told
            assert isinstance(told, Followed)
            return told

        yield SimpleNamespace(outcome=exact, followed=far)


def cause_of(far: Mapping[str, Any], **more: Any) -> str:
    row, served = finding(), Repairable(far, **more)
    name_causes([row], cast("Any", served))
    return str(row["cause"])


def test_the_cause_is_named_with_which_nothing_breaks_and_the_fewest_operations_are_left_out() -> None:
    other, third = "reset_meets_stores", "event_names_part_as_parent"
    assert cause_of({QUIET: LAWFUL}) == QUIET
    assert cause_of({QUIET: Followed(left_out=3), other: Followed(left_out=2), third: BROKEN}) == other
    assert cause_of({QUIET: Followed(left_out=2), other: Followed(left_out=3)}) == QUIET
    assert cause_of({QUIET: LAWFUL}, whole=[other]) == other, "its repair mends the whole run"


@pytest.mark.parametrize(
    "told", [BROKEN, Followed("launch", "promise"), Followed(stopped="no pool"), EngineDied("9"), EngineError("none")]
)
def test_no_cause_is_named_where_this_way_of_sending_does_not_show_it(told: Any) -> None:
    assert cause_of({QUIET: told}) == ""
    before = told if isinstance(told, Followed) else LAWFUL
    if before != BROKEN:
        assert cause_of({QUIET: LAWFUL}, before=before) == ""


def test_a_run_that_breaks_the_law_as_before_is_not_sent_again() -> None:
    row, served = finding(), Repairable({QUIET: LAWFUL}, exactly=Outcome((Break("violation", 1, "", "", "", ""),)))
    name_causes([row], cast("Any", served))
    assert (row["cause"], served.asked) == ("", [])


def test_nothing_is_sent_after_the_time() -> None:
    row, served = finding(), Repairable({QUIET: LAWFUL})
    name_causes([row], cast("Any", served), time.monotonic() - 1)
    assert (row["cause"], served.asked) == ("", [])


@pytest.mark.soak
@pytest.mark.engine
def test_a_long_run_of_a_release_has_a_cause() -> None:
    """A run that ``slotproof blind`` has drawn: without the repair 2 of 11 blocks stay, and a request has not ended
    that later operations speak of.
    """
    run = json.loads(Path(__file__).with_name("long_run.json").read_text("utf-8"))
    row = {**run, "cause": ""}
    with Served(Subject("vllm", "0.33.0")) as served:
        served.ready()
        name_causes([row], served, None, run["repairs"])
    assert row["cause"] == QUIET

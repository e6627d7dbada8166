"""Harm is found where a broken law has any, is not found where it has none, and is never the harness's own doing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from driven import RIGHT

from conformance.driver.clock import Clock
from conformance.driver.lockstep import ANSWERED, UNSUPPORTED
from conformance.driver.protocol import Json
from conformance.driver.shadow import FULL, Shadow
from conformance.driver.trace import Trace
from conformance.driver.world import is_small, world_of
from conformance.engines import registry
from conformance.engines.toy import ToyAllocator
from conformance.planted.faults.kept import kept_run
from conformance.planted.faults.known_bugs import FAULTS
from conformance.search import harm as search
from conformance.search.harm import ends_engine, harm, with_another
from conformance.stems.allocator.protocol import AllocatorSnapshot
from conformance.stems.stem_registry import STEMS, start
from conformance.traces import trace_files
from conformance.traces.harm_found import Harm, lines_of, rank_of
from conformance.traces.outcome import outcome

OURS = registry.load(registry.own().name).makers


def run_of(fault: str) -> tuple[Trace, int, Callable[[Json], Any]]:
    """The kept run of a fault, the operation that breaks a law, and the maker of the faulty engine."""
    trace = kept_run(FAULTS[fault]).trace
    first = outcome(trace, FAULTS[fault].make).first
    assert first is not None
    return trace, first.step, FAULTS[fault].make


OF_STEMS = [kept for kept in trace_files.every() if kept.trace.stem in STEMS]  # ours has no scheduler, so no server
NAMES = [kept.name for kept in OF_STEMS][::4]


@pytest.mark.soak(but=4)
@pytest.mark.parametrize("name", NAMES)
def test_a_right_engine_that_is_driven_on_does_no_harm_and_never_stops(name: str) -> None:
    """So what the plans send is lawful, and a harm or a stop comes of the broken law."""
    kept = trace_files.load(name)
    if outcome(kept.trace, RIGHT[kept.trace.stem]).verdict == UNSUPPORTED:
        pytest.skip("our implementation lacks a call of the trace")
    found = harm(kept.trace, len(kept.trace.steps), RIGHT[kept.trace.stem])
    assert (found["request"], found["stops"]) == (None, ""), found
    assert found["operations"] > 0


def test_the_plans_are_tried_on_every_stem() -> None:
    of_faults = {fault.stem: kept_run(fault).trace.config for fault in FAULTS.values()}
    configs = {trace.stem: trace.config for trace in every_trace()} | of_faults
    assert configs.keys() == STEMS.keys(), "what no kept trace has, the runs of its faults have"
    for stem in STEMS:
        lock = start(stem, RIGHT[stem], configs[stem])
        moves = STEMS[stem].onward(lock.run).moves
        assert moves.keys() <= {"begin", *(name for plan in search.PLANS for name in plan)}


def every_trace() -> list[Trace]:
    return [kept.trace for kept in OF_STEMS]


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("insert_under_reader", "request 0 reads the tokens of request 2"),
        ("restore_under_lock", "handle 1 reads stranger 1's tokens"),
        ("rejected_draft_takes_page", "request 0 reads request 1's tokens"),
        ("interrupted_step_takes_page", "request 0 reads request 1's tokens"),
        ("window_too_far", "request 0 reads nothing"),
    ],
)
def test_harm_is_found(fault: str, sentence: str) -> None:
    trace, step, make = run_of(fault)
    found = harm(trace, step, make)
    assert found["sentence"].startswith(sentence), found
    assert found["step"] > step, "the harm comes after the law broke"
    assert found["onward"]
    assert rank_of(found) == (1 if sentence.endswith("nothing") else 0)


@pytest.mark.parametrize("fault", ["pr_25805", "half_decode", "pr_26941_free"])
def test_a_leak_has_no_harm_of_this_kind(fault: str) -> None:
    trace, step, make = run_of(fault)
    found = harm(trace, step, make)
    assert (found["request"], found["reads"], found["step"]) == (None, None, None)
    assert found["sentence"] == f"none found in {found['operations']} operations"
    assert found["operations"] > 50
    assert rank_of(found) == 2


def test_harm_in_the_operation_itself_needs_no_plan() -> None:
    shadow = Shadow()
    shadow.begin(3)
    shadow.write(FULL, [5], [7], "request 1")
    wrong = shadow.read(FULL, [5], [8], "request 0")
    assert wrong is not None
    here = Harm.of(wrong)
    assert here.sentence == "request 0 reads request 1's tokens in step 3"
    assert (here.onward, here.operations, here.rank) == ((), 0, 0)
    assert lines_of(here.as_json()) == [
        "harm: request 0 reads request 1's tokens in step 3",
        "request 0 reads request 1's tokens in step 3: token 0 of its text should be in slot 5 of the full pool, which "
        "request 1 wrote in step 3",
    ]
    assert Harm.of(wrong, beside=2).step == 2, "the request beside the trace comes before step 1"
    assert lines_of(None) == []


def test_another_request_makes_room_and_changes_nothing_else() -> None:
    trace, step, make = run_of("insert_under_reader")
    wider = with_another(trace, 4)
    assert wider.steps[1:] == trace.steps
    assert wider.steps[0]["request"] not in {s.get("request") for s in trace.steps}
    assert wider.config["size"] == trace.config["size"] + 4
    assert wider.config["rows"] == trace.config["rows"] + 1
    assert with_another(trace, 0) is trace
    found = harm(trace, step, make)
    assert found["beside"] > 0, "without room the request that reads never runs again"


def test_an_engine_that_kills_its_process_ends_the_search_alone() -> None:
    trace, step, make = run_of("half_decode")

    def deadly(config: Json) -> Any:
        engine = make(config)
        if os.getpid() != here:
            engine.extend = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        return engine

    here = os.getpid()
    found = harm(trace, step, deadly)
    assert found["stops"] == "the process died: SIGKILL"
    assert found["request"] is None


# A world that is too small for harm.


class Twice(ToyAllocator):
    """Gives a freed page back twice, where the pool has more pages than one; else it counts it twice."""

    def free(self, slots: Sequence[int]) -> None:
        super().free(slots)
        if self.pages > 1:
            super().free(slots)

    def snapshot(self) -> AllocatorSnapshot:
        seen = super().snapshot()
        wrong = self.pages == 1 and bool(self.free_pages)
        return replace(seen, available=seen.available + wrong) if wrong else seen


def twice(config: Json) -> Twice:
    return Twice(config["size"], config["page_size"])


def lent(size: int, *rows: int) -> Trace:
    """Each row takes a page, and the last one gives it back."""
    config = {"size": size, "page_size": 1, "rows": 4, "need_sort": False, "size_swa": 1}
    steps: list[Json] = [{"op": "extend", "rows": [row], "more": [1]} for row in rows]
    return Trace("allocator", config, [*steps, {"op": "finish", "row": rows[-1], "committed": 1}])


def test_harm_is_looked_for_on_the_run_before_it_was_shrunk_where_the_shrunk_world_is_too_small() -> None:
    small, drawn = lent(1, 0), lent(4, 0, 1)
    alone = harm(small, 2, twice)
    assert (alone["request"], alone["world"]) == (None, "1 row, 1 page and 2 operations")
    (line,) = lines_of(alone)
    assert line == f"harm: {alone['sentence']} (looked with 1 row, 1 page and 2 operations)"
    found = harm(small, 2, twice, drawn)
    assert found["drawn"] == drawn.as_json()
    assert found["step"] > len(drawn.steps)
    words = ", of the run before it was shrunk (2 rows, 4 pages and 3 operations)"
    assert found["sentence"].endswith(words)
    assert rank_of(found) < 2


def test_a_run_before_shrinking_is_looked_at_only_where_it_can_say_more(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Trace] = []

    def nothing(trace: Trace, *_: Any) -> Harm:
        looked.append(trace)
        return Harm(operations=7)

    monkeypatch.setattr(search, "_harm_of", nothing)
    small, drawn = lent(1, 0), lent(4, 0, 1)
    harm(drawn, 3, twice, lent(4, 0, 1, 2))
    assert [trace.steps for trace in looked] == [drawn.steps], "its world is large enough"
    harm(small, 2, twice, lent(1, 0))
    assert len(looked) == 2, "it was not shrunk"
    late = harm(small, 2, twice, drawn, seconds=1e-9)
    assert len(looked) == 3
    assert "no time was left" in lines_of(late)[0]
    both = harm(small, 2, twice, drawn)
    assert (len(looked), both["operations"], both["drawn"]) == (5, 14, None)
    assert "1 row, 1 page and 2 operations; and before the run was shrunk with 2 rows, 4 pages" in lines_of(both)[0]


def test_no_plan_is_begun_after_the_time() -> None:
    late = Clock(0.0)
    late.begin()
    assert search.search(lent(4, 0, 1), twice, late).operations == 0
    assert search.search(lent(4, 0, 1), twice).operations > 0


@pytest.mark.parametrize(
    ("stem", "config", "words"),
    [
        ("lock_ref", {"components": ["full"], "size": 3, "size_swa": 2, "size_mamba": 1}, "1 handle, 3 pages"),
        ("cache", {"components": ["full", "swa"], "size": 3, "size_swa": 2}, "1 handle, 3 pages, 2 SWA pages"),
        ("mamba_slots", {"size": 3}, "1 handle, 3 state slots"),
        ("block_pool", {"blocks": 2}, "1 handle, 2 blocks"),
    ],
)
def test_a_world_in_words(stem: str, config: Json, words: str) -> None:
    assert world_of(Trace(stem, config, [{"op": "release", "handle": 4}])) == f"{words} and 1 operation"


def test_one_reader_or_one_page_is_a_small_world() -> None:
    assert is_small(lent(4, 0))
    assert is_small(lent(1, 0, 1))
    assert not is_small(lent(2, 0, 1))
    swa = Trace("swa_mapping", {"size": 4, "size_swa": 1}, lent(4, 0, 1).steps)
    assert is_small(swa)


@pytest.mark.parametrize(
    ("op", "law", "ends"),
    [("schedule", ANSWERED, True), ("complete", ANSWERED, True), ("reset", ANSWERED, False), ("schedule", "x", False)],
)
def test_an_exception_in_the_loop_of_an_engine_is_its_end(op: str, law: str, ends: bool) -> None:
    assert ends_engine(Trace("block_cache", {}, [{"op": op}]), law) is ends

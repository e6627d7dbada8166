"""The benchmarks run on all stems, and every timed call leaves the pool as it was."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from driven import NEWEST, driven, have, sampled

from benchmarks import __main__ as main
from benchmarks import (
    engines,
    events,
    locks,
    lockstep,
    recording,
    runs,
    schedulers,
    shadow,
    startup,
    tables,
    transitions,
)
from benchmarks.__main__ import comparison
from benchmarks.engines import Case
from benchmarks.timing import interleaved
from benchmarks.trees import PAGES, WORKS
from conformance.driver.lockstep import breaks
from conformance.driver.protocol import EngineError
from conformance.engines import registry
from conformance.stems.stem_registry import STEMS

CPU = torch.device("cpu")


@pytest.mark.soak(but=1)
@pytest.mark.parametrize("stem", sampled(STEMS, 3))
def test_the_lock_step_of_every_stem_is_measured(stem: str) -> None:
    rate = lockstep.measure(stem, registry.load("ours"), operations=20, passes=1)
    assert rate.operations >= 20
    assert min(rate.a_second, rate.every_law, rate.no_laws) > 0
    assert tuple(rate.shares) == lockstep.SHARES
    assert sum(rate.shares.values()) == pytest.approx(100, abs=0.5)


def test_every_help_is_timed() -> None:
    assert {"", "check", "list", "prove"} <= set(startup.commands())
    row = startup.measure("list", repetitions=1)
    assert row.seconds > 0
    assert startup.Row("", startup.LIMIT_S + 1).late
    assert not startup.Row("", startup.LIMIT_S / 2).late
    assert tables.helps([row]).row_count == 1


@pytest.mark.soak
@pytest.mark.engine
def test_the_cost_of_a_recorder_is_measured() -> None:
    engine, release, requests = next(case for case in recording.cases() if case[0] == "vllm")  # a server takes longer
    cost = recording.measure(engine, release, requests, steps=20)
    assert not cost.skipped
    assert min(cost.own_us, cost.bytes, cost.judged) > 0
    assert tables.recorders([cost, recording.Cost("none", 8, skipped="no release")]).row_count == 2
    assert recording.Cost("", recording.AT, more_us=recording.LIMIT_US + 1).dear
    assert not recording.Cost("", recording.AT, more_us=recording.LIMIT_US - 1).dear


@pytest.mark.soak
def test_the_cost_of_the_shadow_is_measured() -> None:
    cost = shadow.measure("cache", registry.load("ours"), operations=20, passes=1)
    assert cost.operations >= 20
    assert min(cost.with_ms, cost.without_ms) > 0
    assert tables.shadow_memory([cost]).row_count == 1
    assert not shadow.Cost("cache", 1, 1.1, 1.0).dear
    assert shadow.Cost("cache", 1, 1.3, 1.0).dear


def test_a_run_without_its_shadow_reads_nothing() -> None:
    own = registry.load("ours")
    trace = next(t for t in runs.draw("cache", own, 30) if len(t.steps) > 3)
    held = []
    for prepare in (shadow.as_it_is, shadow.without):
        lock = runs.begin("cache", own, trace)
        prepare(lock.run)
        for step in trace.steps:
            lock.do(**step)
        held.append(lock.run.shadow.anything())
    assert held == [True, False]


def test_the_runs_are_the_same_in_every_process() -> None:
    own = registry.load("ours")
    once, again = (runs.draw("swa_mapping", own, 30) for _ in range(2))
    assert once == again


def test_every_law_is_evaluated_where_that_is_asked_for() -> None:
    own = registry.load("ours")
    (trace, *_) = (t for t in runs.draw("allocator", own, 30) if len(t.steps) > 3)
    lock = runs.begin("allocator", own, trace)
    lockstep.with_every_law(lock)
    state = lock.run.project()
    assert lock.broken(state, []) == []
    lost = lock.law.stem.invariants["no_leak"]
    assert breaks(lost, state) is False


@pytest.mark.parametrize("form", events.FORMATS)
def test_kv_events_are_read_and_judged(form: str) -> None:
    rate = events.measure(form, count=200, passes=1)
    assert (rate.format, rate.events) == (form, 200)
    assert rate.a_second > 0
    assert tables.kv_events([rate]).row_count == 1
    assert events.Rate("", 1, events.LIMIT - 1).slow
    assert not events.Rate("", 1, events.LIMIT).slow


@pytest.mark.soak
@pytest.mark.engine
def test_scheduler_steps_are_judged_and_an_engine_without_a_scheduler_is_left_out() -> None:
    rates = [schedulers.measure(*one, operations=30) for one in schedulers.engines()]
    found = [rate for rate in rates if rate is not None]
    assert len(found) < len(rates)
    for rate in found:
        assert rate.skipped or rate.steps > 5
    assert tables.scheduler_steps(found).row_count == len(found)


@pytest.mark.soak
def test_a_release_without_a_scheduler_says_why() -> None:
    gone = schedulers.measure(schedulers.engines()[0][0], "no-release")
    assert gone is not None
    assert "no-release" in gone.skipped
    assert not gone.slow
    assert schedulers.Rate("", 1, schedulers.LIMIT - 1).slow
    assert not schedulers.Rate("", 1, schedulers.LIMIT).slow


@pytest.mark.parametrize("stem", transitions.STEMS)
def test_drawn_transitions_are_granted(stem: str) -> None:
    assert transitions.measure(stem, count=300).a_second > 0


def test_time_inside_another_part_is_counted_once() -> None:
    clock = lockstep.Clock()
    inner = clock.timed(lockstep.LAWS, lambda: sum(range(200_000)))
    outer = clock.timed(lockstep.DIFFERENCES, lambda: (inner(), inner()))
    outer()
    assert clock.spent[lockstep.LAWS] > 10 * clock.spent[lockstep.DIFFERENCES] > 0


@pytest.mark.parametrize("case", [c for c in engines.cases() if c.batch == 16 and c.tokens < 100_000], ids=str)
def test_a_timed_call_leaves_the_pool_as_it_was(case: Case) -> None:
    allocator = engines.own_allocator(case, CPU)
    work = engines.WORKS[case.call](allocator, case, CPU)
    before = allocator.available_size()
    times, repetitions = interleaved([work, work], CPU, budget_s=0, least=2)
    assert repetitions == 2
    assert all(time > 0 for time in times)
    assert allocator.available_size() == before


def test_each_case_is_measured_once() -> None:
    assert all(len(list(same)) == 1 for _, same in itertools.groupby(sorted(engines.cases(), key=str)))


@pytest.mark.soak
@pytest.mark.engine
def test_calls_of_allocators_are_measured_beside_a_release() -> None:
    """Where its Triton kernels are interpreted, a call that needs them has no peer; every other call has one."""
    said = driven(NEWEST, ALLOCATORS, str(have(NEWEST)))
    assert len(said) == 14
    for row in said:
        assert row["own_us"] > 0, row
        if row["call"] in engines.INTERPRETED:
            assert row["engine_us"] is None, row
        else:
            assert row["engine_us"] > 0, row
            assert row["before"] == row["after"], row


# In a process of its own: this one has not loaded the release.
ALLOCATORS = """
    import json, sys
    from dataclasses import asdict
    from pathlib import Path
    import torch
    from benchmarks import engines
    from conformance.engines.sglang.releases import release
    from conformance.engines.sglang.driving.comparison import Comparison

    class Watched(Comparison):
        \"\"\"It keeps the allocators that it makes, and how many slots of each are free.\"\"\"

        def allocator(self, *sizes):
            return self._kept(super().allocator(*sizes))

        def swa_allocator(self, *sizes):
            return self._kept(super().swa_allocator(*sizes))

        def _kept(self, allocator):
            self.made, self.free = allocator, allocator.available_size()
            return allocator

    other, rows = Watched(release.load(Path(sys.argv[2]), sys.argv[1]), "cpu"), []
    for case in engines.cases():
        if case.batch == 16 and case.tokens < 100_000:
            row = asdict(engines.measure(other, case, torch.device("cpu"), 0))
            if row["engine_us"] is not None:
                row |= {"before": other.free, "after": other.made.available_size()}
            rows.append(row)
    print(json.dumps(rows))
"""


@pytest.mark.soak
@pytest.mark.engine
def test_calls_of_prefix_caches_are_measured() -> None:
    said = driven(NEWEST, TREES, str(have(NEWEST)))
    assert [(row["call"], row["page_size"]) for row in said] == [(call, page) for page in PAGES for call in WORKS]
    for row in said:
        assert set(row["ratios"]) == {"its core rust", "its core python"}
        assert row["own_us"] > 0 < min(row["engine_us"].values())


@pytest.mark.engine
@pytest.mark.soak
def test_locks_of_an_engine_are_measured_on_a_tree_with_every_node() -> None:
    said: Any = driven(NEWEST, LOCKS, str(have(NEWEST)))
    assert said["skipped"] is None
    assert [row["batch"] for row in said["rows"]] == list(locks.BATCHES)
    assert all(row["engine_us"] > 0 for row in said["rows"])


LOCKS = """
    import json, sys
    from dataclasses import asdict
    from pathlib import Path
    import torch
    from benchmarks import locks
    from conformance.engines.sglang.releases import release
    from conformance.engines.sglang.driving.comparison import Comparison

    other = Comparison(release.load(Path(sys.argv[2]), sys.argv[1]), "cpu")
    rows, skipped = locks.measure(other, torch.device("cpu"), 0, nodes=40)
    print(json.dumps({"skipped": skipped, "rows": [asdict(row) for row in rows]}))
"""


# In a process of its own: this one has not loaded the release.
TREES = """
    import json, sys
    from dataclasses import asdict
    from pathlib import Path
    import torch
    from benchmarks import trees
    from conformance.engines.sglang.releases import release
    from conformance.engines.sglang.driving.comparison import Comparison

    trees.TEXTS = 40
    other = Comparison(release.load(Path(sys.argv[2]), sys.argv[1]), "cpu")
    rows, skipped = trees.measure(other, torch.device("cpu"), 0)
    print(json.dumps([asdict(row) for row in rows]))
"""


def test_measurements_are_kept_by_day_and_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "MEASUREMENTS", tmp_path)
    main.kept({"accelerator": "NVIDIA H200", "cores": 16}, "{}\n", "one table \n two\n")
    numbers, tables_as_text = sorted(tmp_path.iterdir())
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-nvidia-h200\.json", numbers.name)
    assert tables_as_text.read_text("utf-8").endswith(
        f"[{numbers.name}]({numbers.name}).\n\n```\none table\n two\n```\n"
    )


def test_a_release_that_cannot_be_had_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    found = comparison(None, "no-release", CPU, 0)
    assert found["rows"] == []
    (line,) = capsys.readouterr().out.splitlines()
    assert "skipped" in line


def test_an_engine_without_a_comparison_is_named() -> None:
    with pytest.raises(EngineError, match="ours offers no comparison: there are sglang"):
        engines.load("ours", None, CPU)

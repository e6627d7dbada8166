"""The benchmarks run: lawful streams, and every timed call leaves the pool as it found it."""

from __future__ import annotations

import itertools

import pytest
import torch

from benchmarks import engines, lockstep, transitions
from benchmarks.__main__ import comparison
from benchmarks.engines import Case
from benchmarks.timing import interleaved

CPU = torch.device("cpu")


@pytest.mark.parametrize("stem", lockstep.POOLS)
def test_drawn_runs_are_lawful(stem: str) -> None:
    rate = lockstep.measure(stem, runs=2, steps=30)
    assert rate.steps == 60
    assert rate.steps_a_second > 0
    assert transitions.measure(stem, count=300).a_second > 0


@pytest.mark.parametrize("case", [c for c in engines.cases() if c.batch == 16], ids=str)
def test_a_timed_call_leaves_the_pool_as_it_was(case: Case) -> None:
    allocator = engines.ours(case, CPU)
    work = engines.WORKS[case.call](allocator, case, CPU)
    before = allocator.available_size()
    times, repetitions = interleaved([work, work], CPU, budget_s=0, least=2)
    assert repetitions == 2
    assert all(time > 0 for time in times)
    assert allocator.available_size() == before


def test_each_case_is_measured_once() -> None:
    assert all(len(list(same)) == 1 for _, same in itertools.groupby(sorted(engines.cases(), key=str)))


def test_a_release_that_cannot_be_had_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    found = comparison("no-release", CPU, 0)
    assert found["rows"] == []
    (line,) = capsys.readouterr().out.splitlines()
    assert "skipped" in line
